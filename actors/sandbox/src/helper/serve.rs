//! The box's first process at work: requests in, replies out, until the box is over.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::time::Instant;

use super::files::BoxFiles;
use super::process_table::{ProcessTable, reap};
use super::protocol::{BoxSetup, Channel, Exec, Reply, Request, bounded_duration};
use super::run_command::{AfterCommand, Surroundings, run_command};
use super::watch::Watch;
use crate::config::{HOME_INSIDE, Isolation};

/// How often what earlier commands left running is looked at, between requests.
const IDLE_LOOK_EVERY: Duration = Duration::from_millis(100);

/// Says that the box is ready and serves it. Every process of the box is dead when this returns, or dies with the
/// namespace right after.
pub(crate) fn serve(setup: &BoxSetup, channel: Channel) -> ExitCode {
    let mut server = Server::new(setup, channel);
    let end = server.run();
    server.processes.kill_all(None);
    match end {
        End::GreenroomGone => ExitCode::SUCCESS,
        End::LifetimeOver => {
            // Last words; greenroom may be gone too.
            let _ = server.channel.send(&Reply::Expired, &[]);
            ExitCode::SUCCESS
        }
    }
}

enum End {
    GreenroomGone,
    LifetimeOver,
}

struct Server {
    channel: Channel,
    processes: ProcessTable,
    watch: Watch,
    files: BoxFiles,
    env: BTreeMap<String, String>,
    workdir: PathBuf,
    /// What the work tree is called where there are no walls to make the name true.
    workdir_name: Option<PathBuf>,
    output_bytes: u64,
    lifetime_ends: Instant,
}

impl Server {
    fn new(setup: &BoxSetup, channel: Channel) -> Self {
        let (workdir, home) = match setup.isolation {
            Isolation::Namespaces => (setup.workdir.clone(), PathBuf::from(HOME_INSIDE)),
            Isolation::None => (setup.box_dir.join("work"), setup.box_dir.join("home")),
        };
        let mut env = BTreeMap::from([
            ("HOME".to_owned(), home.display().to_string()),
            ("LANG".to_owned(), "C.UTF-8".to_owned()),
            ("LOGNAME".to_owned(), "agent".to_owned()),
            ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
            ("USER".to_owned(), "agent".to_owned()),
        ]);
        env.extend(setup.env.clone());
        // Without a namespace a sweep finds what a box left running by this.
        env.insert("GREENROOM_BOX_ID".to_owned(), setup.box_id.clone());
        Self {
            channel,
            processes: ProcessTable::new(setup.isolation),
            watch: Watch::new(setup),
            files: BoxFiles::new(setup),
            env,
            workdir,
            workdir_name: (setup.isolation == Isolation::None).then(|| setup.workdir.clone()),
            output_bytes: setup.limits.output_bytes,
            lifetime_ends: Instant::now() + bounded_duration(setup.lifetime_ms),
        }
    }

    fn run(&mut self) -> End {
        if self.channel.send(&Reply::Ready, &[]).is_err() {
            return End::GreenroomGone;
        }
        loop {
            if let Some(end) = self.wait_for_request() {
                return end;
            }
            let Ok((request, payload)) = self.channel.receive::<Request>() else { return End::GreenroomGone };
            if let Some(end) = self.answer(request, &payload) {
                return end;
            }
        }
    }

    /// Blocks until a request is there; meanwhile reaps, and watches what earlier commands left running.
    fn wait_for_request(&mut self) -> Option<End> {
        loop {
            let now = Instant::now();
            if now >= self.lifetime_ends {
                return Some(End::LifetimeOver);
            }
            let (_, someone_lives) = reap(None);
            let mut wait = self.lifetime_ends - now;
            if someone_lives {
                wait = wait.min(IDLE_LOOK_EVERY);
                if self.watch.look(&self.processes, now).is_some() {
                    self.processes.kill_all(None);
                }
            }
            let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
            let mut watched = [PollFd::new(self.channel.stream(), PollFlags::IN)];
            if matches!(poll(&mut watched, Some(&timeout)), Ok(1..)) {
                return None;
            }
        }
    }

    fn answer(&mut self, request: Request, payload: &[u8]) -> Option<End> {
        let sent = match request {
            Request::Exec(exec) => match self.exec(exec) {
                AfterCommand::Answer(executed, output) => self.channel.send(&Reply::Executed(executed), &output),
                AfterCommand::GreenroomGone => return Some(End::GreenroomGone),
                AfterCommand::LifetimeOver => return Some(End::LifetimeOver),
            },
            Request::PutFile { path, mode } => {
                let reply = match self.files.put(&path, mode, payload) {
                    Ok(()) => Reply::FilePut,
                    Err(detail) => Reply::FileFailed { path, detail },
                };
                self.channel.send(&reply, &[])
            }
            Request::ReadFile { path, limit_bytes } => match self.files.read(&path, limit_bytes) {
                Ok(content) => self.channel.send(&Reply::FileRead, &content),
                Err(detail) => self.channel.send(&Reply::FileFailed { path, detail }, &[]),
            },
            Request::Renew { lifetime_ms } => {
                self.lifetime_ends = Instant::now() + bounded_duration(lifetime_ms);
                self.channel.send(&Reply::Renewed, &[])
            }
        };
        sent.is_err().then_some(End::GreenroomGone)
    }

    fn exec(&mut self, mut exec: Exec) -> AfterCommand {
        exec.output_limit_bytes = exec.output_limit_bytes.min(self.output_bytes);
        if let (Some(name), Some(cwd)) = (&self.workdir_name, &mut exec.cwd)
            && let Ok(below) = Path::new(cwd).strip_prefix(name)
        {
            *cwd = self.workdir.join(below).display().to_string();
        }
        let mut around = Surroundings {
            control: self.channel.stream(),
            processes: self.processes,
            watch: &mut self.watch,
            env: &self.env,
            workdir: &self.workdir,
            lifetime_ends: self.lifetime_ends,
        };
        run_command(&exec, &mut around)
    }
}
