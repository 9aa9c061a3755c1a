//! Named f32 tensors as a safetensors file.
//!
//! Written tensor by tensor (no second copy of the whole), synced to disk before returning.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, View, serialize_to_file};
use tch::{Device, Kind, Tensor};

use crate::error::TrainerError;

/// A tensor that is brought to the host when its turn to be written comes.
struct LazyTensor<'a> {
    tensor: &'a Tensor,
    shape: Vec<usize>,
    failure: &'a RefCell<Option<TrainerError>>,
}

impl View for LazyTensor<'_> {
    fn dtype(&self) -> Dtype {
        Dtype::F32
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // The trait has no way to fail: the error waits in `failure` and the file is then not used.
        let mut bytes = vec![0_u8; self.data_len()];
        if let Err(error) = copy_bytes(self.tensor, &mut bytes) {
            *self.failure.borrow_mut() = Some(error);
        }
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.tensor.numel() * 4
    }
}

fn copy_bytes(tensor: &Tensor, bytes: &mut [u8]) -> Result<(), TrainerError> {
    let host = tensor.f_detach()?.f_to_device(Device::Cpu)?.f_to_kind(Kind::Float)?.f_contiguous()?;
    Ok(host.f_copy_data_u8(bytes, host.numel())?)
}

/// Writes tensors as f32 and syncs the file.
///
/// # Errors
/// [`TrainerError::CheckpointIo`], [`TrainerError::Tensor`].
pub fn write(path: &Path, tensors: &[(String, &Tensor)]) -> Result<(), TrainerError> {
    let io_error = |reason: String| TrainerError::CheckpointIo { path: path.to_owned(), reason };
    let failure = RefCell::new(None);
    let views = tensors.iter().map(|(name, tensor)| {
        let shape = tensor.size().iter().map(|size| *size as usize).collect();
        (name.as_str(), LazyTensor { tensor, shape, failure: &failure })
    });
    serialize_to_file(views, None, path).map_err(|error| io_error(error.to_string()))?;
    if let Some(error) = failure.into_inner() {
        return Err(error);
    }
    let file = std::fs::File::open(path).map_err(|error| io_error(error.to_string()))?;
    file.sync_all().map_err(|error| io_error(error.to_string()))
}

/// Reads all tensors of a file that was checked before; on the CPU.
///
/// # Errors
/// [`TrainerError::CheckpointIo`], [`TrainerError::CheckpointDamaged`], [`TrainerError::Tensor`].
pub fn read(path: &Path) -> Result<BTreeMap<String, Tensor>, TrainerError> {
    let damaged = |reason: String| TrainerError::CheckpointDamaged { path: path.to_owned(), reason };
    let bytes = std::fs::read(path)
        .map_err(|error| TrainerError::CheckpointIo { path: path.to_owned(), reason: error.to_string() })?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| damaged(error.to_string()))?;
    let mut tensors = BTreeMap::new();
    for (name, view) in file.iter() {
        if view.dtype() != Dtype::F32 {
            return Err(damaged(format!("tensor {name} is {:?}, not F32", view.dtype())));
        }
        let shape: Vec<i64> = view.shape().iter().map(|size| *size as i64).collect();
        tensors.insert(name.to_owned(), Tensor::f_from_data_size(view.data(), &shape, Kind::Float)?);
    }
    Ok(tensors)
}
