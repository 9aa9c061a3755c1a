//! Checkpoints of a learner: everything that a resumed run needs to go on bit for bit.
//!
//! A directory with `masters.safetensors` (f32 parameters), `moments.safetensors` (`first/NAME`, `second/NAME`),
//! `reference.safetensors` (when there is a reference policy made from the run itself), `state.json` and `manifest.json`.
//! It is written atomically and verified before use ([`crate::atomic_dir`]); names and shapes are compared with the
//! model before anything is overwritten. The learner draws no random numbers of its own (the order of a warm start comes
//! from its request's seed), so there is no generator to store.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tch::Tensor;

use crate::atomic_dir;
use crate::config::{OptimizerConfig, ScheduleConfig};
use crate::error::TrainerError;
use crate::optimizer::AdamW;
use crate::parameters::ParameterSet;
use crate::tensor_file;

const MASTERS: &str = "masters.safetensors";
const MOMENTS: &str = "moments.safetensors";
const REFERENCE: &str = "reference.safetensors";
const STATE: &str = "state.json";
const FORMAT: u32 = 1;

/// What is not a tensor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointState {
    /// Layout of the directory.
    pub format: u32,
    /// The training step after which it was made.
    pub step: u64,
    /// Optimizer steps applied; the learning rate follows from it.
    pub optimizer_steps: u64,
    /// The last exported weight version, if any.
    pub weight_version: Option<String>,
    /// AdamW's settings at that time.
    pub optimizer: OptimizerConfig,
    /// The schedule at that time.
    pub schedule: ScheduleConfig,
    /// Whether `reference.safetensors` is there.
    pub has_reference: bool,
}

/// A checkpoint that was read, verified and found to fit.
#[derive(Debug)]
pub struct LoadedCheckpoint {
    /// What is not a tensor.
    pub state: CheckpointState,
    /// f32 parameters, in the learner's order.
    pub masters: Vec<Tensor>,
    /// First moments.
    pub first: Vec<Tensor>,
    /// Second moments.
    pub second: Vec<Tensor>,
    /// Parameters of the reference policy.
    pub reference: Option<Vec<(String, Tensor)>>,
}

/// Writes a checkpoint as `dir`, replacing an older one of that name.
///
/// # Errors
/// [`TrainerError::CheckpointIo`], [`TrainerError::Tensor`].
pub fn save(
    dir: &Path,
    state: &CheckpointState,
    parameters: &ParameterSet,
    optimizer: &AdamW,
    reference: Option<&[(String, Tensor)]>,
) -> Result<(), TrainerError> {
    let state = CheckpointState { format: FORMAT, has_reference: reference.is_some(), ..state.clone() };
    atomic_dir::write(dir, |partial| {
        let masters: Vec<(String, &Tensor)> =
            parameters.masters().map(|(name, tensor)| (name.to_owned(), tensor)).collect();
        tensor_file::write(&partial.join(MASTERS), &masters)?;

        let mut moments = Vec::with_capacity(2 * masters.len());
        for ((name, _), (first, second)) in masters.iter().zip(optimizer.moments()) {
            moments.push((format!("first/{name}"), first));
            moments.push((format!("second/{name}"), second));
        }
        tensor_file::write(&partial.join(MOMENTS), &moments)?;

        let mut files = vec![MASTERS.to_owned(), MOMENTS.to_owned(), STATE.to_owned()];
        if let Some(reference) = reference {
            let tensors: Vec<(String, &Tensor)> =
                reference.iter().map(|(name, tensor)| (name.clone(), tensor)).collect();
            tensor_file::write(&partial.join(REFERENCE), &tensors)?;
            files.push(REFERENCE.to_owned());
        }
        let path = partial.join(STATE);
        let text = serde_json::to_vec_pretty(&state)
            .map_err(|error| TrainerError::CheckpointIo { path: path.clone(), reason: error.to_string() })?;
        atomic_dir::write_file(&path, &text)?;
        Ok(files)
    })
}

/// Reads and checks a checkpoint for a learner with these parameters; changes nothing.
///
/// # Errors
/// [`TrainerError::CheckpointIo`], [`TrainerError::CheckpointDamaged`], [`TrainerError::CheckpointMismatch`].
pub fn load(dir: &Path, parameters: &ParameterSet) -> Result<LoadedCheckpoint, TrainerError> {
    atomic_dir::verify(dir)?;
    let state = read_state(&dir.join(STATE))?;
    let shapes: Vec<(&str, Vec<i64>)> = parameters.masters().map(|(name, master)| (name, master.size())).collect();

    let path = dir.join(MASTERS);
    let mut tensors = tensor_file::read(&path)?;
    let masters = take_all(&path, &mut tensors, &shapes, "")?;
    refuse_rest(&path, &tensors)?;

    let path = dir.join(MOMENTS);
    let mut tensors = tensor_file::read(&path)?;
    let first = take_all(&path, &mut tensors, &shapes, "first/")?;
    let second = take_all(&path, &mut tensors, &shapes, "second/")?;
    refuse_rest(&path, &tensors)?;

    let reference = if state.has_reference {
        let path = dir.join(REFERENCE);
        let mut tensors = tensor_file::read(&path)?;
        let values = take_all(&path, &mut tensors, &shapes, "")?;
        Some(shapes.iter().map(|(name, _)| (*name).to_owned()).zip(values).collect())
    } else {
        None
    };
    Ok(LoadedCheckpoint { state, masters, first, second, reference })
}

fn read_state(path: &Path) -> Result<CheckpointState, TrainerError> {
    let damaged = |reason: String| TrainerError::CheckpointDamaged { path: path.to_owned(), reason };
    let text = std::fs::read(path)
        .map_err(|error| TrainerError::CheckpointIo { path: path.to_owned(), reason: error.to_string() })?;
    let state: CheckpointState = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if state.format != FORMAT {
        return Err(damaged(format!("format {} instead of {FORMAT}", state.format)));
    }
    Ok(state)
}

fn take_all(
    path: &Path,
    tensors: &mut BTreeMap<String, Tensor>,
    shapes: &[(&str, Vec<i64>)],
    prefix: &str,
) -> Result<Vec<Tensor>, TrainerError> {
    let take = |(name, shape): &(&str, Vec<i64>)| {
        let name = format!("{prefix}{name}");
        let mismatch = |reason: String| TrainerError::CheckpointMismatch { path: path.to_owned(), reason };
        let tensor = tensors.remove(&name).ok_or_else(|| mismatch(format!("tensor {name} is missing")))?;
        if tensor.size() != *shape {
            return Err(mismatch(format!("tensor {name} has shape {:?}, the model's is {shape:?}", tensor.size())));
        }
        Ok(tensor)
    };
    shapes.iter().map(take).collect()
}

fn refuse_rest(path: &Path, rest: &BTreeMap<String, Tensor>) -> Result<(), TrainerError> {
    match rest.keys().next() {
        Some(name) => Err(TrainerError::CheckpointMismatch {
            path: path.to_owned(),
            reason: format!("tensor {name} is not part of the model"),
        }),
        None => Ok(()),
    }
}
