//! Rotary position embeddings: each head is rotated by angles proportional to its token's position.
//!
//! The halves of a head form the pairs that are rotated (the layout of Hugging Face checkpoints, `rotate_half`).
//! Frequencies are computed in f64, rounded to f32 as `transformers` has them; tables are made once, for every position the
//! model knows, so that a position's angles are the same bits in whatever batch it appears.

use std::f64::consts::TAU;

use tch::{Device, Kind, Tensor};

use crate::error::PolicyError;
use crate::model::{ModelConfig, RopeScaling};

/// Cosines and signed sines, `[max_position_embeddings, head_dim]`.
#[derive(Debug)]
pub struct RopeTable {
    cosines: Tensor,
    signed_sines: Tensor,
}

/// The rows of a [`RopeTable`] for some positions, `[T, 1, head_dim]`.
#[derive(Debug)]
pub(crate) struct Rotation {
    cosines: Tensor,
    signed_sines: Tensor,
    half: i64,
}

impl RopeTable {
    /// The table of a model, in a kind and on a device.
    ///
    /// # Errors
    /// [`PolicyError::Torch`] when memory runs out.
    pub fn new(config: &ModelConfig, kind: Kind, device: Device) -> Result<Self, PolicyError> {
        let _guard = tch::no_grad_guard();
        let frequencies = Tensor::f_from_slice(&inverse_frequencies(config))?;
        let positions = Tensor::f_arange(config.max_position_embeddings as i64, (Kind::Float, Device::Cpu))?;
        let angles = positions.f_unsqueeze(1)?.f_mul(&frequencies.f_unsqueeze(0)?)?;
        let (cosines, sines) = (angles.f_cos()?, angles.f_sin()?);
        let place = |table: Tensor| table.f_to_device_(device, kind, false, false);
        Ok(Self {
            cosines: place(Tensor::f_cat(&[&cosines, &cosines], 1)?)?,
            signed_sines: place(Tensor::f_cat(&[&sines.f_neg()?, &sines], 1)?)?,
        })
    }

    pub(crate) fn at(&self, positions: &Tensor) -> Result<Rotation, PolicyError> {
        let half = self.cosines.size()[1] / 2;
        Ok(Rotation {
            cosines: self.cosines.f_index_select(0, positions)?.f_unsqueeze(1)?,
            signed_sines: self.signed_sines.f_index_select(0, positions)?.f_unsqueeze(1)?,
            half,
        })
    }
}

impl Rotation {
    /// Rotates `[T, heads, head_dim]`: `x cos + (x with its halves exchanged) (∓ sin)`.
    pub(crate) fn apply(&self, heads: &Tensor) -> Result<Tensor, PolicyError> {
        let exchanged = heads.f_roll([self.half], [-1])?;
        Ok(heads.f_mul(&self.cosines)?.f_addcmul(&exchanged, &self.signed_sines)?)
    }
}

/// One frequency (radians a token) for each pair, `head_dim / 2` of them, scaled.
fn inverse_frequencies(config: &ModelConfig) -> Vec<f32> {
    let half = config.head_dim / 2;
    let plain = |pair: usize| 1.0 / config.rope_theta.powf(pair as f64 / half as f64);
    (0..half).map(|pair| scale_frequency(plain(pair), config.rope_scaling) as f32).collect()
}

fn scale_frequency(frequency: f64, scaling: RopeScaling) -> f64 {
    match scaling {
        RopeScaling::None => frequency,
        RopeScaling::Linear { factor } => frequency / factor,
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
            let wavelength = TAU / frequency;
            if wavelength > original_max_position_embeddings / low_freq_factor {
                return frequency / factor;
            }
            if wavelength < original_max_position_embeddings / high_freq_factor {
                return frequency;
            }
            let turns = original_max_position_embeddings / wavelength;
            let smooth = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor);
            (1.0 - smooth) * frequency / factor + smooth * frequency
        }
    }
}
