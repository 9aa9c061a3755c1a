//! What the tests of this crate share: the recorded models.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::path::PathBuf;

use safetensors::SafeTensors;
use tch::{Kind, Tensor};

/// Names of the recorded models.
pub const MODELS: [&str; 3] = ["qwen3", "qwen2", "llama"];

/// The directory of a recorded model.
pub fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/policy").join(name)
}

/// What `transformers` computed for a recorded model.
pub struct Expected {
    /// All sequences end to end.
    pub ids: Vec<i64>,
    /// Their bounds.
    pub cu_seqlens: Vec<i64>,
    /// `[T, vocab]`.
    pub logits: Tensor,
}

/// Reads the recording of a model.
pub fn expected(name: &str) -> Expected {
    let bytes = std::fs::read(fixture(name).join("expected.tensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let read = |name: &str, kind: Kind| {
        let view = file.tensor(name).unwrap();
        let size: Vec<i64> = view.shape().iter().map(|&n| n as i64).collect();
        Tensor::from_data_size(view.data(), &size, kind)
    };
    Expected {
        ids: Vec::try_from(read("ids", Kind::Int64)).unwrap(),
        cu_seqlens: Vec::try_from(read("cu_seqlens", Kind::Int64)).unwrap(),
        logits: read("logits", Kind::Float),
    }
}

/// The largest absolute difference; fails when shapes differ or anything is not finite.
pub fn max_abs_difference(left: &Tensor, right: &Tensor) -> f64 {
    assert_eq!(left.size(), right.size());
    let difference = (left - right).abs().max().double_value(&[]);
    assert!(difference.is_finite());
    difference
}
