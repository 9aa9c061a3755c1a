"""Trains and generates with `transformers` on the model our side has written; prints one JSON object.

    python peer.py MODEL_DIR SEQUENCES LENGTH REQUESTS PROMPT NEW_TOKENS REPEATS

One thread, f32. A training step is forward and backward of the mean logprob of the tokens; generation is `generate` with
sampling over one batch of equal prompts' length, so that no padding is computed. The best of the repeats counts.
"""

import json
import sys
import time

import torch
import transformers
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)


def measure(repeats, tokens, work):
    """Tokens a second of wall time and of processor time, the best of some repeats."""
    wall = processor = 0.0
    work()
    for _ in range(repeats):
        began, processor_began = time.perf_counter(), time.process_time()
        work()
        wall = max(wall, tokens / (time.perf_counter() - began))
        processor = max(processor, tokens / (time.process_time() - processor_began))
    return {"wall": wall, "processor": processor}


def main():
    directory = sys.argv[1]
    sequences, length, requests, prompt, new_tokens, repeats = map(int, sys.argv[2:8])
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="sdpa")
    vocabulary = model.config.vocab_size
    ids = torch.randint(0, vocabulary, (sequences, length))

    def train():
        logits = model(ids, use_cache=False).logits
        torch.log_softmax(logits, -1).gather(2, ids[:, :, None]).mean().backward()

    prompts = torch.randint(0, vocabulary, (requests, prompt))

    def generate():
        with torch.no_grad():
            model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                top_k=0,
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                pad_token_id=0,
            )

    result = {
        "name": f"transformers {transformers.__version__}, torch {torch.__version__}",
        "training": measure(repeats, sequences * length, train),
        "generation": measure(repeats, requests * new_tokens, generate),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
