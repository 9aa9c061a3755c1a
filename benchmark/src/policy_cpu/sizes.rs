//! The models that are measured, and how much arithmetic their matrices need.

use anyhow::Context;
use greenroom_policy::{ModelConfig, TinyModel};

use crate::measure::Stopwatch;
use tch::{Kind, Tensor};

/// A model and its loads.
pub struct Size {
    /// For people.
    pub title: &'static str,
    /// Its sizes.
    pub model: TinyModel,
    /// Sequences of a training step, and tokens in each.
    pub training: (usize, usize),
    /// Tokens of each prompt.
    pub prompt: usize,
    /// New tokens of each request.
    pub new_tokens: usize,
}

/// The quickstart's shape and one of twenty times as many weights.
pub fn sizes() -> [Size; 2] {
    let tiny = TinyModel {
        vocab_size: 1024,
        hidden_size: 128,
        intermediate_size: 384,
        num_hidden_layers: 2,
        num_attention_heads: 4,
        num_key_value_heads: 2,
        head_dim: 32,
        max_position_embeddings: 1024,
        eos_token_ids: vec![2],
    };
    let small = TinyModel {
        vocab_size: 4096,
        hidden_size: 320,
        intermediate_size: 960,
        num_hidden_layers: 7,
        num_attention_heads: 10,
        num_key_value_heads: 2,
        ..tiny.clone()
    };
    [
        Size { title: "0.5M weights", model: tiny, training: (16, 400), prompt: 256, new_tokens: 64 },
        Size { title: "10M weights", model: small, training: (4, 256), prompt: 64, new_tokens: 32 },
    ]
}

/// Floating-point operations of the matrix products, by the usual count: two for each weight and token.
pub struct Arithmetic {
    body: f64,
    head: f64,
    /// Attention over one position, all layers: scores and weighted values.
    attention: f64,
}

impl Arithmetic {
    /// Of this model.
    pub fn of(config: &ModelConfig) -> Self {
        let matrices = config.tensors().into_iter().filter(|spec| spec.shape.len() == 2);
        let weights = |name: &str| -> f64 {
            let spec = config.tensors().into_iter().find(|spec| spec.name == name);
            spec.map_or(0.0, |spec| spec.shape.iter().product::<i64>() as f64)
        };
        let all: f64 = matrices.map(|spec| spec.shape.iter().product::<i64>() as f64).sum();
        let embedding = weights("model.embed_tokens.weight");
        let own_head = weights("lm_head.weight");
        let head = if own_head > 0.0 { own_head } else { embedding };
        let width = (config.num_attention_heads * config.head_dim * config.num_hidden_layers) as f64;
        Self { body: 2.0 * (all - embedding - own_head), head: 2.0 * head, attention: 4.0 * width }
    }

    /// Of a training step over sequences of this length, each token: the backward pass is twice the forward one.
    pub fn per_trained_token(&self, length: usize) -> f64 {
        3.0 * (self.body + self.head + self.attention * length as f64 / 2.0)
    }

    /// Of a request with this prompt, each new token.
    pub fn per_new_token(&self, prompt: usize, new_tokens: usize) -> f64 {
        let (prompt, new) = (prompt as f64, new_tokens as f64);
        let reading = prompt * (self.body + self.attention * prompt / 2.0);
        let writing = new * (self.body + self.head + self.attention * (prompt + new / 2.0));
        (reading + writing) / new
    }
}

/// Floating-point operations a second of one large f32 matrix product on one thread: of wall and of processor time.
pub fn product_speed() -> anyhow::Result<[f64; 2]> {
    const SIDE: i64 = 768;
    let _guard = tch::no_grad_guard();
    let left = Tensor::f_rand([SIDE, SIDE], (Kind::Float, tch::Device::Cpu)).context("matrix")?;
    let right = left.f_transpose(0, 1)?.f_contiguous()?;
    let stopwatch = Stopwatch::start();
    const TIMES: i64 = 10;
    for _ in 0..TIMES {
        let _product = left.f_matmul(&right)?;
    }
    let cost = stopwatch.cost();
    let operations = (TIMES * 2 * SIDE * SIDE * SIDE) as f64;
    Ok([operations / cost.wall_s, operations / cost.processor_s])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_operations_is_that_of_the_matrices() {
        let [tiny, small] = sizes().map(|size| ModelConfig::tiny(&size.model).unwrap());
        let weights = |config: &ModelConfig| -> i64 {
            config.tensors().iter().map(|spec| spec.shape.iter().product::<i64>()).sum()
        };
        assert!((400_000..600_000).contains(&weights(&tiny)), "{}", weights(&tiny));
        assert!((9_000_000..11_000_000).contains(&weights(&small)), "{}", weights(&small));
        let arithmetic = Arithmetic::of(&tiny);
        // two layers of q, o (128 × 128), k, v (64 × 128) and three MLP matrices (384 × 128)
        assert_eq!(arithmetic.body, 2.0 * 2.0 * (2.0 * 16_384.0 + 2.0 * 8_192.0 + 3.0 * 49_152.0));
        assert_eq!(arithmetic.head, 2.0 * 1024.0 * 128.0);
        assert_eq!(arithmetic.attention, 4.0 * 2.0 * 128.0);
    }
}
