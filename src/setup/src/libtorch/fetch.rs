//! The wheels that libtorch is unpacked from.
//!
//! pip is asked where the user's package index has them, so no address stands here. Each is fetched into `NAME.part` by range
//! requests: an interrupted download goes on in the middle of the file. Only a file with the pinned checksum gets its name.
//! Where the index gives no address that works without pip, pip downloads.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

use super::VERSION;
use crate::progress::{Progress, say};
use crate::python::{Python, ScriptEnd};

/// A wheel: its requirement, its file and the file's checksum.
struct Wheel {
    requirement: &'static str,
    file: &'static str,
    sha256: &'static str,
}

/// Any Python may ask for these: the libraries in them do not depend on it.
const WHEELS: &[Wheel] = &[
    Wheel {
        requirement: "torch==2.11.0",
        file: "torch-2.11.0-cp312-cp312-manylinux_2_28_x86_64.whl",
        sha256: "0f68f4ac6d95d12e896c3b7a912b5871619542ec54d3649cf48cc1edd4dd2756",
    },
    Wheel {
        requirement: "nvidia-cuda-runtime==13.0.96",
        file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
        sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    },
    Wheel {
        requirement: "nvidia-cuda-cupti==13.0.85",
        file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
        sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
    },
];

/// What pip must be told to look for these wheels whatever Python it runs in.
const PLATFORM: &[&str] = &[
    "--no-deps",
    "--only-binary=:all:",
    "--implementation=cp",
    "--python-version=3.12",
    "--abi=cp312",
    "--abi=none",
    "--platform=manylinux_2_28_x86_64",
    "--platform=manylinux_2_25_x86_64",
    "--platform=manylinux_2_17_x86_64",
    "--platform=manylinux2014_x86_64",
];

/// So many failures in a row, without one byte between them, and the download is given up.
const FRUITLESS_TRIES: u32 = 5;

/// Provides the wheels in `downloads`.
///
/// # Errors
/// One cannot be had, or what comes has another checksum.
pub(crate) fn wheels(python: &Python, downloads: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let missing: Vec<&Wheel> = WHEELS.iter().filter(|wheel| !verified(wheel, &downloads.join(wheel.file))).collect();
    if !missing.is_empty() {
        say(&format!(
            "fetching libtorch {VERSION}: 544 MB in {} wheels, from the package index that pip is set to",
            WHEELS.len()
        ));
        let addresses = addresses(python, &missing);
        for wheel in missing {
            let address = addresses.iter().find(|(file, _)| file == wheel.file).map(|(_, address)| address.as_str());
            provide(python, wheel, address, downloads)?;
        }
    }
    Ok(WHEELS.iter().map(|wheel| downloads.join(wheel.file)).collect())
}

/// Provides one wheel: by range requests if there is an address, else by pip.
fn provide(python: &Python, wheel: &Wheel, address: Option<&str>, downloads: &Path) -> anyhow::Result<()> {
    let path = downloads.join(wheel.file);
    let part = downloads.join(format!("{}.part", wheel.file));
    if let Some(address) = address {
        // a part that was damaged on disk is thrown away once; damaged a second time, it comes so from the index
        for last in [false, true] {
            match download(python, address, &part, wheel.requirement) {
                Ok(()) if verified(wheel, &part) => return Ok(std::fs::rename(&part, &path)?),
                Ok(()) if last => bail!("{} has another checksum than it must have; nothing of it is kept", wheel.file),
                Ok(()) => say(&format!("{}: fetching it anew", wheel.requirement)),
                Err(error) => {
                    say(&format!("{}: {error:#}; leaving it to pip", wheel.requirement));
                    break;
                }
            }
        }
    }
    let mut pip = python.pip();
    pip.arg("download").args(PLATFORM).arg("--dest").arg(downloads).arg(wheel.requirement);
    let status = pip.stdout(std::io::stderr()).status().context("pip does not start")?;
    if !status.success() {
        bail!("pip cannot download {} ({status}); it says above why", wheel.requirement);
    }
    if !verified(wheel, &path) {
        bail!("pip brought no {} with the right checksum", wheel.file);
    }
    std::fs::remove_file(&part).ok();
    Ok(())
}

/// Fetches what is missing of `part`, again and again while that brings anything.
fn download(python: &Python, address: &str, part: &Path, name: &str) -> anyhow::Result<()> {
    let bytes = || part.metadata().map_or(0, |data| data.len());
    let mut fruitless = 0;
    if bytes() > 0 {
        say(&format!("{name}: going on after {} MB", bytes() / 1_000_000));
    }
    let mut progress = Progress::new(&format!("fetching {name}"), 0);
    loop {
        let before = bytes();
        let arguments = [address.as_ref(), part.as_os_str()];
        let why = match python.script(include_str!("../python/fetch.py"), arguments, &mut progress)? {
            ScriptEnd::Done => return Ok(()),
            ScriptEnd::Failed(why) => bail!("{why}"),
            ScriptEnd::TryAgain(why) => why,
        };
        fruitless = if bytes() > before { 0 } else { fruitless + 1 };
        if fruitless == FRUITLESS_TRIES {
            bail!("{why}, {FRUITLESS_TRIES} times in a row");
        }
        std::thread::sleep(Duration::from_secs(1 << fruitless));
    }
}

/// Where the index has the files: file name and address. Empty when pip cannot tell, as versions before 22.2.
fn addresses(python: &Python, wheels: &[&Wheel]) -> Vec<(String, String)> {
    let mut pip = python.pip();
    // the target only keeps pip from minding what is installed here: nothing is
    pip.args(["install", "--dry-run", "--ignore-installed", "--quiet", "--report=-"]).args(PLATFORM);
    pip.arg("--target").arg(std::env::temp_dir().join("greenroom-nothing"));
    pip.args(wheels.iter().map(|wheel| wheel.requirement));
    let report = pip.output().ok().filter(|output| output.status.success());
    let report: Option<serde_json::Value> = report.and_then(|output| serde_json::from_slice(&output.stdout).ok());
    addresses_in(&report.unwrap_or_default())
}

fn addresses_in(report: &serde_json::Value) -> Vec<(String, String)> {
    let items = report["install"].as_array().map(Vec::as_slice).unwrap_or_default();
    let addresses = items.iter().filter_map(|item| item["download_info"]["url"].as_str());
    let named = addresses.filter_map(|address| {
        let plain = address.split(['?', '#']).next()?;
        Some((plain.rsplit('/').next()?.to_owned(), address.to_owned()))
    });
    named.collect()
}

/// Whether the file has the wheel's checksum. One that has another is removed: it can only mislead.
fn verified(wheel: &Wheel, path: &Path) -> bool {
    if !path.is_file() {
        return false;
    }
    let right = sha256(path, &format!("checking {}", wheel.requirement)).is_ok_and(|sum| sum == wheel.sha256);
    if !right {
        say(&format!("{} is not what it must be and is removed", path.display()));
        std::fs::remove_file(path).ok();
    }
    right
}

/// A file's SHA-256 in hexadecimal.
pub(crate) fn sha256(path: &Path, name: &str) -> std::io::Result<String> {
    /// Below this, a bar would only flicker.
    const WORTH_A_BAR: u64 = 64 << 20;
    let mut file = File::open(path)?;
    let total = file.metadata()?.len();
    let mut progress = (total > WORTH_A_BAR).then(|| Progress::new(name, total));
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut done = 0;
    loop {
        let count = file.read(&mut buffer)?;
        if count == 0 {
            break;
        }
        sum.update(&buffer[..count]);
        done += count as u64;
        if let Some(progress) = &mut progress {
            progress.at(done);
        }
    }
    Ok(sum.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests;
