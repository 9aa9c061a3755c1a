//! The Trainer: GRPO, SFT, optimizer, checkpoints
