//! Cargo, run from a program that cargo runs.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

use crate::libtorch::Libtorch;

/// The repository's root.
pub(crate) fn root() -> PathBuf {
    // the one of the clone that cargo runs in, should several share a target directory
    let crate_dir = std::env::var_os("CARGO_MANIFEST_DIR").unwrap_or_else(|| env!("CARGO_MANIFEST_DIR").into());
    let crate_dir = PathBuf::from(crate_dir);
    crate_dir.ancestors().nth(2).map_or_else(|| crate_dir.clone(), Path::to_owned)
}

/// A cargo command in the repository's root.
pub(crate) fn command() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    // what the outer cargo tells about this crate is not true of the crates that the inner one builds
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") || text.starts_with("CARGO_BIN_") {
            command.env_remove(&name);
        }
    }
    command.current_dir(root()).stdin(Stdio::null());
    command
}

/// Sets what a build with libtorch and its programs need.
pub(crate) fn with_libtorch<'a>(command: &'a mut Command, libtorch: &Libtorch) -> &'a mut Command {
    let mut library_path = libtorch.lib().into_os_string();
    if let Some(given) = std::env::var_os("LD_LIBRARY_PATH").filter(|given| !given.is_empty()) {
        library_path.push(OsString::from(":"));
        library_path.push(given);
    }
    command.env("LIBTORCH", libtorch.root()).env("LD_LIBRARY_PATH", library_path);
    // spinning threads of a pool make small tensors slower, and by far on a busy machine
    if std::env::var_os("OMP_NUM_THREADS").is_none() {
        command.env("OMP_NUM_THREADS", "1");
    }
    command
}

/// Builds the `greenroom` binary, with the small helper of sandboxes beside it, and says where it is; fully optimised and
/// without the checks of invariants where it is for `release`.
pub(crate) fn build_greenroom(libtorch: &Libtorch, release: bool) -> anyhow::Result<PathBuf> {
    let mut build = command();
    build.args([
        "build",
        "--package=greenroom",
        "--bin=greenroom",
        // the helper could be greenroom itself, but a start of that loads all of libtorch
        "--package=greenroom-sandbox",
        "--bin=greenroom-box",
        "--message-format",
        "json-render-diagnostics",
    ]);
    if release {
        build.arg("--release");
    }
    let mut child =
        with_libtorch(&mut build, libtorch).stdout(Stdio::piped()).spawn().context("cargo does not start")?;
    let mut binary = None;
    if let Some(lines) = child.stdout.take() {
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            binary = executable(&line).or(binary);
        }
    }
    let status = child.wait().context("cargo cannot be waited for")?;
    if !status.success() {
        bail!("the build failed ({status}); cargo says above why");
    }
    binary.context("cargo built greenroom but did not say where")
}

/// The path of the binary, from one of cargo's messages.
fn executable(message: &str) -> Option<PathBuf> {
    let message: serde_json::Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" || message["target"]["name"] != "greenroom" {
        return None;
    }
    message["executable"].as_str().map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_is_told_apart_from_the_library_of_its_name() {
        let library =
            r#"{"reason":"compiler-artifact","target":{"name":"greenroom","kind":["lib"]},"executable":null}"#;
        let binary = r#"{"reason":"compiler-artifact","target":{"name":"greenroom","kind":["bin"]},"executable":"/t/greenroom"}"#;
        assert_eq!(executable(library), None);
        assert_eq!(executable(binary), Some(PathBuf::from("/t/greenroom")));
        assert_eq!(executable("Compiling"), None);
    }
}
