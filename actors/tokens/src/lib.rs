//! The tokenizer and the chat template of a model: how messages become token ids.
