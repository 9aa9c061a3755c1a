"""Records logits of tiny random models from `transformers`, for the tests of this crate.

    python record_fixtures.py ../../../tests/fixtures/policy

Each model is a small Hugging Face directory (config.json, model.safetensors in f32) with `expected.tensors` (safetensors) in it:
`ids` (int64 [T]), `cu_seqlens` (int64 [N+1]) and `logits` (f32 [T, vocab]), each sequence computed on its own.
Needs torch and transformers; the numbers in the repository come from the versions in `versions.json`.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 128
LENGTHS = [1, 37, 80]
COMMON = dict(
    vocab_size=VOCABULARY,
    num_hidden_layers=2,
    max_position_embeddings=256,
    rms_norm_eps=1e-6,
    initializer_range=0.08,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=None,
)

MODELS = {
    "qwen3": lambda: Qwen3ForCausalLM(
        Qwen3Config(
            hidden_size=48,
            intermediate_size=96,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=16,
            tie_word_embeddings=False,
            rope_theta=1_000_000.0,
            **COMMON,
        )
    ),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            hidden_size=48,
            intermediate_size=96,
            num_attention_heads=4,
            num_key_value_heads=4,
            tie_word_embeddings=False,
            **COMMON,
        )
    ),
    "llama": lambda: LlamaForCausalLM(
        LlamaConfig(
            hidden_size=64,
            intermediate_size=96,
            num_attention_heads=4,
            num_key_value_heads=1,
            tie_word_embeddings=True,
            attention_bias=True,
            mlp_bias=True,
            rope_theta=500_000.0,
            rope_scaling=dict(
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=64,
            ),
            **COMMON,
        )
    ),
}


def record(name, make, root):
    torch.manual_seed(sum(name.encode()))
    model = make().float().eval()
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            # Norms of ones and biases of zeros would hide mistakes.
            if "norm" in parameter_name:
                parameter.copy_(1 + 0.3 * torch.randn_like(parameter))
            elif parameter_name.endswith("bias"):
                parameter.copy_(0.2 * torch.randn_like(parameter))
    directory = root / name
    model.save_pretrained(directory)
    (directory / "generation_config.json").unlink(missing_ok=True)
    sequences = [torch.randint(0, VOCABULARY, (length,)) for length in LENGTHS]
    with torch.no_grad():
        logits = [model(sequence[None], use_cache=False).logits[0] for sequence in sequences]
    bounds = [0]
    for length in LENGTHS:
        bounds.append(bounds[-1] + length)
    save_file(
        {
            "ids": torch.cat(sequences),
            "cu_seqlens": torch.tensor(bounds),
            "logits": torch.cat(logits).contiguous(),
        },
        str(directory / "expected.tensors"),
    )


def main():
    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    for name, make in MODELS.items():
        record(name, make, root)
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    (root / "versions.json").write_text(json.dumps(versions, indent=1) + "\n")


if __name__ == "__main__":
    main()
