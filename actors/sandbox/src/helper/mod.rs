//! The helper process of one box: greenroom's own program, started again, that walls itself in and then serves.
//!
//! `outer` (a child of greenroom) reads the box's set-up from its stdin, which is a unix socket, makes the namespaces and
//! the box's file tree, and forks `init`, the first process of the box's pid namespace. `init` gives up every privilege
//! and then runs commands and moves files on request. It is the box: when it ends, for whatever reason, the kernel kills
//! every process of the namespace and its mounts vanish. It ends when greenroom's end of the socket closes, so nothing
//! survives a killed greenroom; when the box's lifetime is over; and when `outer` dies.
//!
//! Everything here is single-threaded and blocking, and runs in its own process only.

mod calls;
mod confine;
mod copy_tree;
mod files;
mod mounts;
mod namespaces;
mod network;
mod process_table;
pub(crate) mod protocol;
mod run_command;
mod serve;
mod watch;

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use protocol::{BoxSetup, Reply};

/// How a set-up step failed: the step in words, and what the system said.
#[derive(Debug)]
pub(crate) struct SetupFailure {
    pub(crate) stage: &'static str,
    pub(crate) detail: String,
    /// True when the kernel refuses namespaces to us altogether, which has a remedy of its own.
    pub(crate) namespaces_refused: bool,
    /// True when the next box of the same image will fail in the same way.
    pub(crate) lasting: bool,
}

impl SetupFailure {
    pub(crate) fn at(stage: &'static str) -> impl Fn(rustix::io::Errno) -> Self {
        move |errno| Self { stage, detail: errno.to_string(), namespaces_refused: false, lasting: false }
    }

    pub(crate) fn io(stage: &'static str, what: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let what = what.into();
        move |error| Self {
            stage,
            detail: format!("{what}: {error}"),
            namespaces_refused: false,
            lasting: is_lasting(&error),
        }
    }
}

/// Whether an error lies in how files stand, and not in how busy the machine is.
fn is_lasting(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{
        FileTooLarge, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem, StorageFull,
    };
    let kinds =
        [FileTooLarge, IsADirectory, NotADirectory, NotFound, PermissionDenied, ReadOnlyFilesystem, StorageFull];
    kinds.contains(&error.kind())
}

/// The whole life of a helper process: call it from `main` **before any thread is started**, for the hidden subcommand
/// that [`crate::LocalProviderConfig::helper_argv`] names. It talks on stdin (a socket given by the provider) and returns
/// when the box is over. Started by hand it says what it is and fails.
pub fn box_init_main() -> ExitCode {
    let control = match take_control_socket() {
        Ok(control) => control,
        Err(detail) => {
            eprintln!("this is greenroom's helper for sandboxes, started by greenroom itself: {detail}");
            return ExitCode::from(64);
        }
    };
    // Directories of the box's tree must be open to the box's user, whatever greenroom's habit is.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let mut channel = protocol::Channel::new(control);
    let setup: BoxSetup = match channel.receive_setup() {
        Ok(setup) => setup,
        Err(error) => {
            eprintln!("greenroom box helper: cannot read the set-up: {error}");
            return ExitCode::from(65);
        }
    };
    match namespaces::enter(setup, channel) {
        Ok(code) => code,
        Err((failure, mut channel)) => {
            let reply = Reply::SetupFailed {
                stage: failure.stage.to_owned(),
                detail: failure.detail,
                namespaces_refused: failure.namespaces_refused,
                lasting: failure.lasting,
            };
            // Nobody to tell when this fails too: the provider sees the socket close.
            let _ = channel.send(&reply, &[]);
            ExitCode::from(66)
        }
    }
}

/// Takes stdin as the control socket and leaves /dev/null there; closes every other descriptor that slipped in from
/// greenroom, so that a box can never reach one of greenroom's files.
fn take_control_socket() -> Result<UnixStream, String> {
    let threads =
        std::fs::read_dir("/proc/self/task").map_err(|error| format!("/proc is not readable: {error}"))?.count();
    if threads != 1 {
        return Err(format!("it must run single-threaded, but there are {threads} threads"));
    }
    let inherited: Vec<i32> = std::fs::read_dir("/proc/self/fd")
        .map_err(|error| format!("/proc is not readable: {error}"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|descriptor| *descriptor > 2)
        .collect();
    for descriptor in inherited {
        // One of them is the listing's own, closed already.
        let _ = nix::unistd::close(descriptor);
    }
    let duplicate = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
    rustix::net::getsockname(&duplicate).map_err(|_| "its stdin is not a socket".to_owned())?;
    let null = std::fs::File::options().read(true).write(true).open("/dev/null").map_err(|error| error.to_string())?;
    rustix::stdio::dup2_stdin(&null).map_err(|error| error.to_string())?;
    rustix::stdio::dup2_stdout(&null).map_err(|error| error.to_string())?;
    Ok(UnixStream::from(duplicate))
}
