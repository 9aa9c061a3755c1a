//! The header of one safetensors file, checked against the file's size.
//!
//! Layout: eight bytes of little-endian header length, the header (JSON), then the tensors' bytes back to back.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use tch::{Device, Kind, Tensor};

use crate::error::PolicyError;

/// Longer headers are refused: a truncated or foreign file often starts with an absurd length.
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// An open safetensors file whose header is consistent with its size.
#[derive(Debug)]
pub struct WeightFile {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    data_start: u64,
}

impl WeightFile {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// [`PolicyError::File`] when it cannot be read, [`PolicyError::Checkpoint`] when it is truncated, longer than its
    /// header says, or no safetensors file.
    pub fn open(path: &Path) -> Result<Self, PolicyError> {
        let unreadable = |error: std::io::Error| PolicyError::File {
            action: "read",
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let wrong = |reason: String| PolicyError::Checkpoint { path: path.to_owned(), reason };
        let mut file = File::open(path).map_err(unreadable)?;
        let file_bytes = file.metadata().map_err(unreadable)?.len();
        if file_bytes < 8 {
            return Err(wrong(format!("truncated: {file_bytes} bytes are not even the length of a header")));
        }
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(unreadable)?;
        let header_bytes = u64::from_le_bytes(length);
        if header_bytes > MAX_HEADER_BYTES || header_bytes + 8 > file_bytes {
            return Err(wrong(format!(
                "truncated or no safetensors file: header of {header_bytes} bytes in {file_bytes}"
            )));
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header).map_err(unreadable)?;
        let metadata: Metadata =
            serde_json::from_slice(&header).map_err(|error| wrong(format!("the header is broken: {error}")))?;
        let weight_file = Self { path: path.to_owned(), file, metadata, data_start: header_bytes + 8 };
        let expected_bytes = weight_file.data_start + weight_file.metadata.data_len() as u64;
        if expected_bytes == file_bytes {
            return Ok(weight_file);
        }
        let what = if expected_bytes > file_bytes { "truncated" } else { "too long" };
        let cut = weight_file.first_tensor_beyond(file_bytes);
        let place = cut.map(|name| format!("; tensor `{name}` is cut off")).unwrap_or_default();
        Err(wrong(format!("{what}: {file_bytes} bytes where its header promises {expected_bytes}{place}")))
    }

    fn first_tensor_beyond(&self, file_bytes: u64) -> Option<String> {
        let names = self.metadata.offset_keys();
        names.into_iter().find(|name| {
            self.metadata.info(name).is_some_and(|info| self.data_start + info.data_offsets.1 as u64 > file_bytes)
        })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names of its tensors, in file order.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.metadata.offset_keys()
    }

    /// Shape, type and place of a tensor.
    #[must_use]
    pub fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.metadata.info(name)
    }

    /// The kind of a tensor's numbers.
    ///
    /// # Errors
    /// [`PolicyError::Checkpoint`] for a type other than bf16, f16 and f32, or a tensor that is not there.
    pub fn kind(&self, name: &str) -> Result<Kind, PolicyError> {
        let wrong = |reason: String| PolicyError::Checkpoint { path: self.path.clone(), reason };
        let info = self.info(name).ok_or_else(|| wrong(format!("tensor `{name}` is missing")))?;
        match info.dtype {
            Dtype::BF16 => Ok(Kind::BFloat16),
            Dtype::F16 => Ok(Kind::Half),
            Dtype::F32 => Ok(Kind::Float),
            other => Err(wrong(format!("tensor `{name}` is of type {other:?}; bf16, f16 and f32 are read"))),
        }
    }

    /// Reads a tensor and brings it to a kind and a device.
    ///
    /// # Errors
    /// As [`WeightFile::kind`], and [`PolicyError::File`] when the bytes cannot be read.
    pub fn tensor(&mut self, name: &str, kind: Kind, device: Device) -> Result<Tensor, PolicyError> {
        let stored_kind = self.kind(name)?;
        let (shape, start, end) = match self.info(name) {
            Some(info) => (info.shape.clone(), info.data_offsets.0, info.data_offsets.1),
            None => (Vec::new(), 0, 0),
        };
        let mut bytes = vec![0; end - start];
        let read = self.file.seek(SeekFrom::Start(self.data_start + start as u64));
        read.and_then(|_| self.file.read_exact(&mut bytes)).map_err(|error| PolicyError::File {
            action: "read",
            path: self.path.clone(),
            reason: format!("tensor `{name}`: {error}"),
        })?;
        let size: Vec<i64> = shape.iter().map(|&length| length as i64).collect();
        let stored = Tensor::f_from_data_size(&bytes, &size, stored_kind)?;
        Ok(stored.f_to_device_(device, kind, false, false)?)
    }
}
