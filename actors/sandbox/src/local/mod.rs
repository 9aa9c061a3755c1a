//! Boxes on this machine.
//!
//! Each box is a helper process (see the helper's page) and a directory `<sandboxes dir>/<box id>` with an owner file. The
//! helper ends when greenroom's end of its socket closes, so a killed greenroom leaves at most directories, which
//! [`LocalProvider::sweep`](crate::Provider::sweep) removes at the next start.

mod client;
mod local_box;
mod owner;
mod remove_tree;
mod sweep;

use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures::{StreamExt, TryStreamExt};
use greenroom_core::{in_place, spawn_blocking_named};
use tokio::sync::OnceCell;

use crate::config::{Isolation, LocalProviderConfig, WorkTreeStore};
use crate::error::SandboxError;
use crate::helper::protocol::{BoxSetup, Reply};
use crate::provider::{BoxSummary, ImageSpec, Labels, Provider, SandboxBox, SweepReport};
use client::BoxClient;
use local_box::LocalBox;
use owner::{BoxRecord, ProcessMark};

/// The work tree of a box without walls, in its directory.
pub(crate) const WORK: &str = "work";
/// How long a box that only shows that it can be made may live.
const CHECK_LIFETIME_MS: u64 = 60_000;
/// Images that are tried at once.
const CHECKED_AT_ONCE: usize = 4;

/// Makes boxes with namespaces, or without walls when that was asked for.
#[derive(Debug)]
pub struct LocalProvider {
    config: LocalProviderConfig,
    sandboxes_dir: PathBuf,
    helper_argv: Vec<String>,
    owner: ProcessMark,
    next_number: AtomicU64,
    /// Before the first box is made, what others left is removed.
    swept: OnceCell<()>,
}

impl LocalProvider {
    /// A provider that keeps its boxes below `sandboxes_dir` (usually `<run dir>/sandboxes`), which is made.
    pub fn new(config: LocalProviderConfig, sandboxes_dir: impl Into<PathBuf>) -> Result<Self, SandboxError> {
        let sandboxes_dir = sandboxes_dir.into();
        let failed = |detail: String| SandboxError::Directory { path: sandboxes_dir.clone(), detail };
        std::fs::create_dir_all(&sandboxes_dir).map_err(|error| failed(error.to_string()))?;
        std::fs::set_permissions(&sandboxes_dir, std::fs::Permissions::from_mode(0o700))
            .map_err(|error| failed(error.to_string()))?;
        let sandboxes_dir = sandboxes_dir.canonicalize().map_err(|error| failed(error.to_string()))?;
        let owner = ProcessMark::of(std::process::id()).ok_or_else(|| SandboxError::Directory {
            path: PathBuf::from("/proc"),
            detail: "it is not mounted".to_owned(),
        })?;
        let helper_argv = match config.helper_argv.is_empty() {
            true => default_helper_argv(),
            false => config.helper_argv.clone(),
        };
        Ok(Self { config, sandboxes_dir, helper_argv, owner, next_number: AtomicU64::new(0), swept: OnceCell::new() })
    }

    /// Makes and destroys an empty box: the first thing a run does, so that a machine that cannot is known at once.
    pub async fn check(&self) -> Result<(), SandboxError> {
        let probe = self.create(&ImageSpec::new("probe", None), &Labels::new(), CHECK_LIFETIME_MS).await?;
        probe.destroy().await
    }

    /// Makes and destroys a box of each image, a few at a time, so that one that cannot be used is known before a rollout
    /// needs it. The error is that of the first in order; what a busy machine could not do in time is left to the pools.
    pub async fn check_images(&self, images: &[ImageSpec]) -> Result<(), SandboxError> {
        let checks = futures::stream::iter(images.to_vec()).map(|image| async move {
            let sandbox = match self.create(&image, &Labels::new(), CHECK_LIFETIME_MS).await {
                Err(error) if !error.is_lasting() => {
                    tracing::warn!(image = image.name, %error, "this image could not be tried");
                    return Ok(());
                }
                made => made?,
            };
            sandbox.destroy().await
        });
        checks.buffered(CHECKED_AT_ONCE).try_collect::<()>().await
    }

    async fn sweep_first(&self) -> Result<(), SandboxError> {
        let report = self.sweep().await?;
        if !report.removed.is_empty() {
            let (removed, killed) = (report.removed.len(), report.killed_processes);
            tracing::info!(removed, killed, "removed sandboxes that an earlier greenroom left behind");
        }
        Ok(())
    }

    fn make_box_dir(&self, labels: &Labels) -> Result<(String, PathBuf), SandboxError> {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        // The start time keeps names apart when a process number comes again, as in a container it always does.
        let box_id = format!("{}-{}-{number}", self.owner.process_id, self.owner.started_ticks);
        let box_dir = self.sandboxes_dir.join(&box_id);
        let failed =
            |error: std::io::Error| SandboxError::Directory { path: box_dir.clone(), detail: error.to_string() };
        // Somebody may have cleared the run's directory of its sandboxes: one level is made again, never more.
        let _ = std::fs::DirBuilder::new().mode(0o700).create(&self.sandboxes_dir);
        std::fs::create_dir(&box_dir).map_err(failed)?;
        let record = BoxRecord { owner: self.owner.clone(), helper: None, labels: labels.clone() };
        record.write(&box_dir).map_err(failed)?;
        Ok((box_id, box_dir))
    }

    fn setup(&self, image: &ImageSpec, box_id: &str, box_dir: &Path, lifetime_ms: u64) -> BoxSetup {
        BoxSetup {
            box_id: box_id.to_owned(),
            isolation: self.config.isolation,
            box_dir: box_dir.to_owned(),
            source_dir: image.source_dir.clone(),
            workdir: image.workdir.clone(),
            read_only_paths: self.config.read_only_paths.clone(),
            work_tree_store: self.config.work_tree_store,
            limits: self.config.limits.clone(),
            env: image.env.clone(),
            lifetime_ms,
            box_user_id: self.config.box_user_id,
        }
    }

    /// Starts the helper and waits until its box is ready.
    async fn start(&self, image: &ImageSpec, setup: &BoxSetup, labels: &Labels) -> Result<BoxClient, SandboxError> {
        let failed = |stage: &str, detail: String| SandboxError::CreateFailed {
            image: image.name.clone(),
            stage: stage.to_owned(),
            detail,
            lasting: false,
        };
        let (ours, theirs) =
            std::os::unix::net::UnixStream::pair().map_err(|error| failed("socket", error.to_string()))?;
        let (program, arguments) =
            self.helper_argv.split_first().ok_or_else(|| failed("helper", "no program".into()))?;
        let mut command = tokio::process::Command::new(program);
        command
            .args(arguments)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C on a terminal is greenroom's to answer, not its boxes'.
            .process_group(0)
            .kill_on_drop(true);
        // The program may be linked against libraries that only this finds; the box itself never sees it.
        if let Some(value) = std::env::var_os("LD_LIBRARY_PATH") {
            command.env("LD_LIBRARY_PATH", value);
        }
        command.env("GREENROOM_BOX_ID", &setup.box_id);
        let spawned = in_place(|| command.spawn());
        let helper = spawned.map_err(|error| failed("helper", format!("{program}: {error}")))?;
        drop(command);
        let mark = helper.id().and_then(ProcessMark::of);
        let record = BoxRecord { owner: self.owner.clone(), helper: mark, labels: labels.clone() };
        in_place(|| record.write(&setup.box_dir)).map_err(|error| failed("owner file", error.to_string()))?;
        let mut client =
            BoxClient::new(&setup.box_id, ours, helper).map_err(|error| failed("socket", error.to_string()))?;
        let wait_ms = self.config.create_timeout_ms;
        let error = match tokio::time::timeout(Duration::from_millis(wait_ms), client.start(setup)).await {
            Ok(Ok(Reply::Ready)) => return Ok(client),
            Ok(Ok(Reply::SetupFailed { stage, detail, namespaces_refused: true, .. })) => {
                SandboxError::NamespacesUnavailable { stage, detail, remedy: remedy() }
            }
            Ok(Ok(Reply::SetupFailed { stage, detail, lasting, .. })) => {
                let detail = match &image.source_dir {
                    Some(source) if stage == "work tree" => format!("{}: {detail}", source.display()),
                    _ => detail,
                };
                SandboxError::CreateFailed { image: image.name.clone(), stage, detail, lasting }
            }
            Ok(Ok(other)) => failed("helper", format!("it answered {other:?}")),
            Ok(Err(error)) => failed("helper", format!("{program} ended early: {error}")),
            Err(_) => failed("helper", format!("not ready after {wait_ms} ms")),
        };
        client.abandon().await;
        Err(error)
    }
}

#[async_trait]
impl Provider for LocalProvider {
    async fn create(
        &self,
        image: &ImageSpec,
        labels: &Labels,
        lifetime_ms: u64,
    ) -> Result<Box<dyn SandboxBox>, SandboxError> {
        check_image(image)?;
        self.swept.get_or_try_init(|| self.sweep_first()).await?;
        let (box_id, box_dir) = in_place(|| self.make_box_dir(labels))?;
        // Removes the directory also when this future is dropped half-way.
        let mut directory = local_box::BoxDirectory::new(box_dir.clone());
        if self.config.work_tree_store == WorkTreeStore::Disk {
            in_place(|| std::fs::create_dir(box_dir.join("store"))).map_err(|error| directory.failed(&error))?;
        }
        let setup = self.setup(image, &box_id, &box_dir, lifetime_ms);
        match self.start(image, &setup, labels).await {
            Ok(client) => {
                let has_walls = self.config.isolation == Isolation::Namespaces;
                let plain_workdir = (!has_walls).then(|| box_dir.join(WORK).display().to_string());
                Ok(Box::new(LocalBox::new(box_id, plain_workdir, client, directory)))
            }
            Err(error) => {
                directory.remove().await?;
                Err(error)
            }
        }
    }

    async fn list(&self, labels: &Labels) -> Result<Vec<BoxSummary>, SandboxError> {
        let (directory, labels) = (self.sandboxes_dir.clone(), labels.clone());
        let work = spawn_blocking_named("sandbox-list", move || sweep::list(&directory, &labels));
        flatten(work.await, &self.sandboxes_dir)
    }

    async fn sweep(&self) -> Result<SweepReport, SandboxError> {
        let directory = self.sandboxes_dir.clone();
        let work = spawn_blocking_named("sandbox-sweep", move || sweep::sweep(&directory));
        flatten(work.await, &self.sandboxes_dir)
    }
}

type Joined<T> = Result<Option<std::io::Result<T>>, tokio::task::JoinError>;

fn flatten<T>(joined: Joined<T>, directory: &Path) -> Result<T, SandboxError> {
    let failed = |detail: String| SandboxError::Directory { path: directory.to_owned(), detail };
    match joined {
        Ok(Some(done)) => done.map_err(|error| failed(error.to_string())),
        Ok(None) | Err(_) => Err(failed("the task that read it ended early".to_owned())),
    }
}

fn check_image(image: &ImageSpec) -> Result<(), SandboxError> {
    let refuse = |detail: String| {
        let (image, stage) = (image.name.clone(), "image".to_owned());
        Err(SandboxError::CreateFailed { image, stage, detail, lasting: true })
    };
    let plain = image.workdir.components().skip(1).all(|part| matches!(part, std::path::Component::Normal(_)));
    if !image.workdir.is_absolute() || !plain || image.workdir.components().count() < 2 {
        return refuse(format!("workdir {} must be an absolute path without `..`", image.workdir.display()));
    }
    match &image.source_dir {
        Some(source) if !source.is_dir() => refuse(format!("source_dir {} is not a directory", source.display())),
        _ => Ok(()),
    }
}

/// `greenroom-box` beside this program if it is there, else this program with its hidden subcommand.
fn default_helper_argv() -> Vec<String> {
    let this = std::env::current_exe().unwrap_or_else(|_| PathBuf::from("/proc/self/exe"));
    let beside = this.with_file_name("greenroom-box");
    match beside.is_file() {
        true => vec![beside.display().to_string()],
        false => vec![this.display().to_string(), "box-init".to_owned()],
    }
}

/// Which switch of this machine stands in the way, as far as can be told.
fn remedy() -> String {
    let read = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let switch = if read("/proc/sys/user/max_user_namespaces") == "0" {
        "run `sysctl -w user.max_user_namespaces=15000`"
    } else if read("/proc/sys/kernel/unprivileged_userns_clone") == "0" {
        "run `sysctl -w kernel.unprivileged_userns_clone=1`"
    } else if read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1" {
        "run `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`"
    } else {
        "in a container, allow unshare and mount in its seccomp profile and unmask /proc"
    };
    format!("{switch}; or, where the container itself is wall enough, set sandbox.local.isolation = \"none\"")
}
