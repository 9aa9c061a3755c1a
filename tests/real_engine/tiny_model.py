#!/usr/bin/env python3
"""Writes a tiny random Qwen3 with a byte-level tokenizer as a Hugging Face directory: tiny_model.py DIR SEED.

It says nothing sensible; it gives a server something to load. Two seeds give two models of the same shape whose greedy
outputs differ, which is what a test of weight updates needs.
"""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

VOCABULARY = 512
CONTEXT = 1024
END = "<|end|>"


def tokenizer():
    pieces = [END] + sorted(pre_tokenizers.ByteLevel.alphabet())
    bytes_only = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, []))
    bytes_only.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_only.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bytes_only, eos_token=END, pad_token=END, bos_token=END)


def model(seed):
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=False,
        eos_token_id=0,
        bos_token_id=0,
        pad_token_id=0,
    )
    network = Qwen3ForCausalLM(config).to(torch.float32).eval()
    with torch.no_grad():
        # The usual start gives almost uniform logits; larger matrices make the output depend on context and seed.
        for parameter in network.parameters():
            if parameter.dim() == 2:
                parameter.normal_(0.0, 2.0 / parameter.shape[1] ** 0.5)
        # Greedy decoding never ends by itself: the end token's logit is always 0, and some other's is larger.
        network.lm_head.weight[0] = 0.0
    return network


def main():
    directory, seed = sys.argv[1], int(sys.argv[2])
    model(seed).save_pretrained(directory)
    tokenizer().save_pretrained(directory)


if __name__ == "__main__":
    main()
