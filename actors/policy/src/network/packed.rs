//! The forward pass of training: sequences laid end to end in one row, none seeing another.
//!
//! `cu_seqlens` are the cumulated lengths, as flash attention has them: `[0, len_0, len_0 + len_1, …, T]`. Attention is one
//! fused call per sequence (no padding is computed); everything else is done for all tokens at once.

use tch::{Kind, Tensor};

use super::Network;
use super::layer::AttentionInput;
use crate::error::PolicyError;

impl Network {
    /// `ids [T]` and `positions [T]` (int64, on the network's device) to hidden states `[T, hidden_size]`, after the last
    /// norm; differentiable with respect to the parameters unless gradients are switched off.
    ///
    /// # Errors
    /// [`PolicyError::Input`] when kinds, shapes or `cu_seqlens` do not fit; [`PolicyError::Torch`] for ids outside the
    /// vocabulary or positions outside the context (on the CPU; on CUDA they must be checked by the caller).
    pub fn forward_packed(&self, ids: &Tensor, positions: &Tensor, cu_seqlens: &[i64]) -> Result<Tensor, PolicyError> {
        check_packing(ids, positions, cu_seqlens)?;
        self.run(ids, positions, &mut |_, heads| attend_packed(heads, cu_seqlens))
    }

    /// Positions `0..len` of each sequence, `[T]` int64, on the network's device.
    ///
    /// # Errors
    /// [`PolicyError::Torch`] when memory runs out.
    pub fn packed_positions(&self, cu_seqlens: &[i64]) -> Result<Tensor, PolicyError> {
        let positions: Vec<i64> = cu_seqlens.windows(2).flat_map(|pair| 0..pair[1] - pair[0]).collect();
        Ok(Tensor::f_from_slice(&positions)?.f_to(self.device())?)
    }
}

fn check_packing(ids: &Tensor, positions: &Tensor, cu_seqlens: &[i64]) -> Result<(), PolicyError> {
    let wrong = |reason: String| Err(PolicyError::Input(reason));
    if ids.dim() != 1 || ids.kind() != Kind::Int64 {
        return wrong(format!("ids must be int64 of shape [T], got {:?} of shape {:?}", ids.kind(), ids.size()));
    }
    if positions.size() != ids.size() || positions.kind() != Kind::Int64 {
        let (kind, shape) = (positions.kind(), positions.size());
        return wrong(format!(
            "positions must be int64 of the shape of ids {:?}, got {kind:?} of shape {shape:?}",
            ids.size()
        ));
    }
    let rising = cu_seqlens.windows(2).all(|pair| pair[0] < pair[1]);
    if cu_seqlens.len() < 2 || cu_seqlens[0] != 0 || !rising || cu_seqlens.last() != ids.size().first() {
        return wrong(format!("cu_seqlens must rise from 0 to {}, got {cu_seqlens:?}", ids.size()[0]));
    }
    Ok(())
}

/// Causal attention within each sequence: `[T, heads, head_dim]` to `[T, heads * head_dim]`.
fn attend_packed(heads: &AttentionInput, cu_seqlens: &[i64]) -> Result<Tensor, PolicyError> {
    let mut parts = Vec::with_capacity(cu_seqlens.len() - 1);
    for pair in cu_seqlens.windows(2) {
        let (start, length) = (pair[0], pair[1] - pair[0]);
        let sequence = |tensor: &Tensor| tensor.f_narrow(0, start, length)?.f_transpose(0, 1)?.f_unsqueeze(0);
        let (query, key, value) = (sequence(&heads.query)?, sequence(&heads.key)?, sequence(&heads.value)?);
        let grouped = query.size()[1] != key.size()[1];
        let attended =
            Tensor::f_scaled_dot_product_attention(&query, &key, &value, None::<&Tensor>, 0.0, true, None, grouped)?;
        parts.push(attended.f_squeeze_dim(0)?.f_transpose(0, 1)?.f_flatten(1, 2)?);
    }
    Ok(Tensor::f_cat(&parts, 0)?)
}
