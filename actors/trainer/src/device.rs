//! Which device the tensors live on.
//!
//! One binary serves CPU and CUDA: it is linked against libtorch's CPU half only, and the CUDA half is loaded at run
//! time when the configuration may want it. A named device that is not there is an error; `auto` falls back to the CPU
//! and says so in the log.

use tch::Device;

use crate::error::TrainerError;

/// A parsed `device` setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first CUDA device if there is one, else the CPU.
    Auto,
    /// The CPU.
    Cpu,
    /// This CUDA device.
    Cuda(usize),
}

impl DeviceChoice {
    /// Parses `"auto"`, `"cpu"` or `"cuda:N"`.
    ///
    /// # Errors
    /// [`TrainerError::InvalidConfig`] for anything else.
    pub fn parse(text: &str) -> Result<Self, TrainerError> {
        let cuda_index = || text.strip_prefix("cuda:")?.parse().ok();
        match text {
            "auto" => Ok(Self::Auto),
            "cpu" => Ok(Self::Cpu),
            _ => cuda_index().map(Self::Cuda).ok_or_else(|| {
                TrainerError::config("device", format!("{text:?} is not \"auto\", \"cpu\" or \"cuda:N\""))
            }),
        }
    }

    /// Finds the device.
    ///
    /// # Errors
    /// [`TrainerError::Device`] when a named CUDA device is not usable.
    pub fn resolve(self) -> Result<Device, TrainerError> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto if tch::Cuda::is_available() => Ok(Device::Cuda(0)),
            Self::Auto => {
                tracing::info!("no CUDA device found, the trainer computes on the CPU");
                Ok(Device::Cpu)
            }
            Self::Cuda(index) => {
                let count = usize::try_from(tch::Cuda::device_count()).unwrap_or(0);
                if index < count {
                    return Ok(Device::Cuda(index));
                }
                Err(TrainerError::Device {
                    device: format!("cuda:{index}"),
                    reason: format!("libtorch sees {count} CUDA devices"),
                })
            }
        }
    }
}
