//! Which device the tensors live on.
//!
//! One binary serves CPU and CUDA: it is linked against libtorch's CPU half only, and `libtorch_cuda.so` is loaded here
//! when the configuration may want it, before anything asks libtorch for CUDA (it remembers the first answer). A named
//! device that is not there is an error with the reason; `auto` falls back to the CPU and says so in the log.

use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use tch::Device;

use crate::error::TrainerError;

/// Found through `LD_LIBRARY_PATH` (torch's `lib` directory); its own run path finds the NVIDIA libraries.
const CUDA_LIBRARY: &str = "libtorch_cuda.so";

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

    /// Finds the device, loading libtorch's CUDA half unless the CPU is asked for.
    ///
    /// # Errors
    /// [`TrainerError::Device`] when a named CUDA device is not usable.
    pub fn resolve(self) -> Result<Device, TrainerError> {
        match self {
            Self::Cpu => Ok(Device::Cpu),
            Self::Auto => match cuda_devices() {
                Ok(count) if count > 0 => Ok(Device::Cuda(0)),
                found => {
                    tracing::info!(?found, "no CUDA device, the trainer computes on the CPU");
                    Ok(Device::Cpu)
                }
            },
            Self::Cuda(index) => {
                let unusable = |reason: String| TrainerError::Device { device: format!("cuda:{index}"), reason };
                let count = cuda_devices().map_err(unusable)?;
                if index < count {
                    return Ok(Device::Cuda(index));
                }
                Err(unusable(format!("libtorch sees {count} CUDA devices")))
            }
        }
    }
}

/// The number of CUDA devices, or why CUDA cannot be used at all.
fn cuda_devices() -> Result<usize, String> {
    static LOADED: OnceLock<Result<(), String>> = OnceLock::new();
    LOADED.get_or_init(load_cuda).clone()?;
    Ok(usize::try_from(tch::Cuda::device_count()).unwrap_or(0))
}

#[allow(unsafe_code)] // there is no safe way to load a library at run time
fn load_cuda() -> Result<(), String> {
    // SAFETY: this is the other half of the libtorch that is linked already; its initialisers register CUDA's kernels and
    // expect nothing of the caller. The library is never unloaded.
    let library = unsafe { Library::open(Some(CUDA_LIBRARY), RTLD_NOW | RTLD_GLOBAL) };
    let library = library.map_err(|error| format!("{CUDA_LIBRARY} cannot be loaded: {error}"))?;
    std::mem::forget(library);
    Ok(())
}
