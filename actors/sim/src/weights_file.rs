//! Tiny but real weights: a safetensors file that holds the policy's skill.

use std::path::Path;

use greenroom_core::Seed;
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};

use crate::ledger::ContentHash;

const FILE: &str = "model.safetensors";
/// Words of the tensor of which only a part changes from step to step.
const BODY_WORDS: u64 = 256;

/// The weights of a simulated policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SimulatedWeights {
    /// The probability that the policy solves a task.
    pub(crate) skill: f32,
    /// The step after which they are.
    pub(crate) step: u64,
}

/// Weights as they were read from a directory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LoadedWeights {
    pub(crate) skill: f32,
    pub(crate) content: ContentHash,
}

impl SimulatedWeights {
    /// The file's bytes.
    pub(crate) fn to_bytes(self) -> Result<Vec<u8>, String> {
        let skill = self.skill.to_le_bytes();
        let body: Vec<u8> =
            (0..BODY_WORDS).flat_map(|word| (word / 16 * u64::from(word % 16 < self.step)).to_le_bytes()).collect();
        let tensor = |dtype, shape: usize, bytes| TensorView::new(dtype, vec![shape], bytes);
        let skill = tensor(Dtype::F32, 1, &skill).map_err(|error| error.to_string())?;
        let body = tensor(Dtype::I64, BODY_WORDS as usize, &body).map_err(|error| error.to_string())?;
        serialize([("policy.skill", skill), ("policy.body", body)], None).map_err(|error| error.to_string())
    }

    /// The checksum of the file.
    pub(crate) fn content(self) -> Result<ContentHash, String> {
        Ok(checksum(&self.to_bytes()?))
    }

    /// Makes the directory, replacing an older one.
    pub(crate) fn write(self, dir: &Path) -> Result<(), String> {
        let bytes = self.to_bytes()?;
        let part = dir.with_extension("part");
        let write = || {
            for place in [&part, dir] {
                if place.exists() {
                    std::fs::remove_dir_all(place)?;
                }
            }
            std::fs::create_dir_all(&part)?;
            std::fs::write(part.join(FILE), bytes)?;
            std::fs::write(part.join("config.json"), r#"{"model_type":"simulated"}"#)?;
            std::fs::rename(&part, dir)
        };
        write().map_err(|error| error.to_string())
    }
}

/// Reads what is in a directory.
pub(crate) fn read(dir: &Path) -> Result<LoadedWeights, String> {
    let bytes = std::fs::read(dir.join(FILE)).map_err(|error| error.kind().to_string())?;
    let tensors = SafeTensors::deserialize(&bytes).map_err(|error| error.to_string())?;
    let skill = tensors.tensor("policy.skill").map_err(|error| error.to_string())?;
    let skill = skill.data().try_into().map(f32::from_le_bytes).map_err(|_| "policy.skill has another size")?;
    Ok(LoadedWeights { skill, content: checksum(&bytes) })
}

fn checksum(bytes: &[u8]) -> ContentHash {
    // any stable hash serves; the text keeps every byte
    let text: String = bytes.iter().map(|byte| char::from(*byte)).collect();
    Seed::new(1).child(&text).value()
}
