//! Runs one command in the box, from its start to the end of its output.
//!
//! Each command gets a fresh shell, /dev/null as its input, and one pipe for output and errors together, so their order is
//! kept. The command is over when the pipe is: when nobody holds its writing end any more, and the shell has ended. At its
//! deadline, or when the box as a whole exceeds a limit, every process of the box is killed, also such as earlier
//! commands left running: what a session or a double fork hides cannot be told apart from them.

use std::collections::BTreeMap;
use std::io::{PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, WaitStatus, pidfd_open};
use tokio::time::Instant;

use super::process_table::{ProcessTable, reap};
use super::protocol::{Exec, Executed, bounded_duration};
use super::watch::{LimitHit, Watch};
use crate::output::BoundedOutput;

/// How often limits of the whole box are looked at while a command runs.
const WATCH_EVERY: Duration = Duration::from_millis(25);
/// How long output may still flow after every process was killed.
const DRAIN_FOR: Duration = Duration::from_secs(2);

/// What the box does next.
pub(crate) enum AfterCommand {
    /// Answer with this and the output kept.
    Answer(Executed, Vec<u8>),
    /// Greenroom closed the socket: end the box.
    GreenroomGone,
    /// The box's lifetime is over: end the box.
    LifetimeOver,
}

/// What a command runs against.
pub(crate) struct Surroundings<'a> {
    pub(crate) control: &'a UnixStream,
    pub(crate) processes: ProcessTable,
    pub(crate) watch: &'a mut Watch,
    pub(crate) env: &'a BTreeMap<String, String>,
    /// The directory of a command that names none.
    pub(crate) workdir: &'a Path,
    pub(crate) lifetime_ends: Instant,
}

/// Runs one command to its end.
pub(crate) fn run_command(request: &Exec, around: &mut Surroundings<'_>) -> AfterCommand {
    let started = Instant::now();
    let (child, pipe) = match start(request, around) {
        Ok(started) => started,
        Err(exception) => {
            let executed = Executed { returncode: -1, exception: Some(exception), ..Executed::default() };
            return AfterCommand::Answer(executed, Vec::new());
        }
    };
    let mut running = Running {
        child,
        ended: pidfd_open(child, PidfdFlags::empty()).ok(),
        pipe: Some(pipe),
        status: None,
        output: BoundedOutput::new(request.output_limit_bytes as usize),
    };
    let deadline = started + bounded_duration(request.timeout_ms);
    let exception = loop {
        if running.is_over() {
            break None;
        }
        let now = Instant::now();
        if now >= around.lifetime_ends {
            return AfterCommand::LifetimeOver;
        }
        if now >= deadline {
            break Some(("TimeoutExpired".to_owned(), timed_out_text(request)));
        }
        if let Some(hit) = around.watch.look(&around.processes, now) {
            break Some(limit_exception(hit, around.watch));
        }
        let until = deadline.min(around.lifetime_ends).min(now + WATCH_EVERY);
        if !running.wait(around.control, until.duration_since(now)) {
            return AfterCommand::GreenroomGone;
        }
    };
    if exception.is_some() {
        running.kill_and_drain(&around.processes);
    }
    let returncode = if exception.is_some() { -1 } else { returncode(running.status) };
    let executed = Executed {
        returncode,
        dropped_bytes: running.output.dropped_bytes(),
        exception,
        elapsed_ms: started.elapsed().as_millis() as u64,
    };
    AfterCommand::Answer(executed, running.output.into_bytes())
}

/// A started command.
struct Running {
    child: Pid,
    /// Readable once the shell has ended; absent on kernels without pid descriptors, where the watch interval does.
    ended: Option<OwnedFd>,
    /// Gone once it has been read to its end.
    pipe: Option<PipeReader>,
    status: Option<WaitStatus>,
    output: BoundedOutput,
}

impl Running {
    fn is_over(&self) -> bool {
        self.pipe.is_none() && self.status.is_some()
    }

    /// Waits for output, the shell's end or the time to look around. False when greenroom is gone.
    fn wait(&mut self, control: &UnixStream, at_most: Duration) -> bool {
        let mut watched = vec![PollFd::new(control, PollFlags::RDHUP)];
        if let Some(pipe) = &self.pipe {
            watched.push(PollFd::new(pipe, PollFlags::IN));
        }
        if let (Some(ended), None) = (&self.ended, &self.status) {
            watched.push(PollFd::new(ended, PollFlags::IN));
        }
        let timeout = Timespec { tv_sec: at_most.as_secs() as i64, tv_nsec: at_most.subsec_nanos().into() };
        // Interrupted is as good as woken: everything is looked at again.
        let _ = poll(&mut watched, Some(&timeout));
        let control_closed = watched[0].revents().intersects(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
        let pipe_ready = self.pipe.is_some() && !watched[1].revents().is_empty();
        if control_closed {
            return false;
        }
        if pipe_ready {
            self.read_some();
        }
        if self.status.is_none() {
            self.status = reap(Some(self.child)).0;
        }
        true
    }

    fn read_some(&mut self) {
        let Some(pipe) = &mut self.pipe else { return };
        match pipe.read(self.output.space()) {
            Ok(0) => self.pipe = None,
            Ok(length) => self.output.filled(length),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => self.pipe = None,
        }
    }

    /// Ends every process of the box; what they had written before is kept.
    fn kill_and_drain(&mut self, processes: &ProcessTable) {
        let awaited = self.status.is_none().then_some(self.child);
        self.status = self.status.take().or(processes.kill_all(awaited));
        let give_up = Instant::now() + DRAIN_FOR;
        while let Some(pipe) = &self.pipe {
            let left = give_up.saturating_duration_since(Instant::now());
            let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut watched = [PollFd::new(pipe, PollFlags::IN)];
            if !matches!(poll(&mut watched, Some(&timeout)), Ok(1..)) || left.is_zero() {
                return;
            }
            self.read_some();
        }
    }
}

type Exception = (String, String);

fn start(request: &Exec, around: &Surroundings<'_>) -> Result<(Pid, PipeReader), Exception> {
    let values = request.env.iter().flat_map(|(name, value)| [name, value]);
    if values.chain([&request.command]).any(|text| text.contains('\0')) {
        return Err(("ValueError".to_owned(), "embedded null byte".to_owned()));
    }
    let cwd = match &request.cwd {
        Some(cwd) => around.workdir.join(cwd),
        None => around.workdir.to_owned(),
    };
    let shown = request.cwd.clone().unwrap_or_else(|| cwd.display().to_string());
    match std::fs::metadata(&cwd) {
        Ok(about) if about.is_dir() => {}
        Ok(_) => return Err(os_exception(nix::errno::Errno::ENOTDIR as i32, &shown)),
        Err(error) => return Err(os_exception(error.raw_os_error().unwrap_or(2), &shown)),
    }
    let failed = |error: std::io::Error| os_exception(error.raw_os_error().unwrap_or(0), &request.shell);
    let (reader, writer) = std::io::pipe().map_err(failed)?;
    // A larger pipe means fewer turns of the loop for commands that print a lot.
    let _ = rustix::pipe::fcntl_setpipe_size(reader.as_fd(), 1 << 20);
    let mut command = Command::new(&request.shell);
    command
        .args(["-c", &request.command])
        .current_dir(&cwd)
        .env_clear()
        .envs(around.env)
        .env("PWD", &cwd)
        .envs(&request.env)
        .stdin(Stdio::null())
        .stdout(writer.try_clone().map_err(failed)?)
        .stderr(writer)
        .process_group(0);
    // The standard library keeps no thread or handler of its own: the child is reaped by its number, with all others.
    let child = command.spawn().map_err(failed)?;
    Ok((Pid::from_child(&child), reader))
}

/// The exception Python raises for an error of the system, in its words.
fn os_exception(errno: i32, what: &str) -> Exception {
    let kind = match errno {
        2 => "FileNotFoundError",
        11 => "BlockingIOError",
        13 => "PermissionError",
        20 => "NotADirectoryError",
        _ => "OSError",
    };
    let text = nix::errno::Errno::from_raw(errno).desc();
    (kind.to_owned(), format!("[Errno {errno}] {text}: {}", python_quoted(what)))
}

/// A text as Python's `repr` shows it, for the texts that paths are.
fn python_quoted(text: &str) -> String {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    let mut quoted = String::from(quote);
    for character in text.chars() {
        match character {
            '\\' => quoted.push_str("\\\\"),
            '\n' => quoted.push_str("\\n"),
            '\r' => quoted.push_str("\\r"),
            '\t' => quoted.push_str("\\t"),
            _ if character == quote => quoted.extend(['\\', quote]),
            _ => quoted.push(character),
        }
    }
    quoted.push(quote);
    quoted
}

fn timed_out_text(request: &Exec) -> String {
    let seconds = match request.timeout_ms % 1000 {
        0 => (request.timeout_ms / 1000).to_string(),
        _ => (request.timeout_ms as f64 / 1000.0).to_string(),
    };
    format!("Command '{}' timed out after {seconds} seconds", request.command)
}

fn limit_exception(hit: LimitHit, watch: &Watch) -> Exception {
    let (kind, text) = match hit {
        LimitHit::Memory => {
            ("MemoryLimitExceeded", format!("more than {} bytes of memory", watch.limits().memory_bytes))
        }
        LimitHit::Processes => ("ProcessLimitExceeded", format!("more than {} processes", watch.limits().processes)),
        LimitHit::Disk => ("DiskLimitExceeded", format!("more than {} bytes of disk", watch.limits().disk_bytes)),
    };
    (kind.to_owned(), format!("the sandbox used {text}; all its processes were killed"))
}

fn returncode(status: Option<WaitStatus>) -> i32 {
    let Some(status) = status else { return -1 };
    status.exit_status().unwrap_or_else(|| -status.terminating_signal().unwrap_or(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_are_worded_as_python_words_them() {
        let cases = [
            (2, "/nowhere", "FileNotFoundError", "[Errno 2] No such file or directory: '/nowhere'"),
            (7, "/bin/sh", "OSError", "[Errno 7] Argument list too long: '/bin/sh'"),
            (13, "/it's", "PermissionError", "[Errno 13] Permission denied: \"/it's\""),
            (20, "a\\b'\"", "NotADirectoryError", "[Errno 20] Not a directory: 'a\\\\b\\'\"'"),
        ];
        for (errno, what, kind, text) in cases {
            assert_eq!(os_exception(errno, what), (kind.to_owned(), text.to_owned()));
        }
    }

    #[test]
    fn whole_seconds_are_shown_without_a_point() {
        for (timeout_ms, shown) in [(30_000, "30"), (500, "0.5"), (1250, "1.25")] {
            let request = Exec {
                shell: "/bin/sh".into(),
                command: "sleep 99".into(),
                cwd: None,
                env: BTreeMap::new(),
                timeout_ms,
                output_limit_bytes: 0,
            };
            assert_eq!(timed_out_text(&request), format!("Command 'sleep 99' timed out after {shown} seconds"));
        }
    }
}
