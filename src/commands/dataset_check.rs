//! `greenroom dataset check`: whether each task is worth what it says, in the same sandboxes and by the same grading as in a run.
//!
//! A task that earns 1 untouched teaches nothing, one that earns 0 when mended teaches the wrong thing, and one that is graded
//! now so, now so teaches noise. Each is a line; the exit status is 1 when there is any. A machine that cannot make sandboxes
//! is an error and says nothing about the tasks.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use greenroom::config::{self, Config, Layers};
use greenroom::core::spawn_named;
use greenroom::messages::sandbox::{ExecOutcome, ExecRequest, SandboxFile, Shell};
use greenroom::rollout::grading::{
    CommandOutcome, GradeCommand, GradeError, GradeStep, Grader, GradingTask, InstanceCommits, Taken, Work,
};
use greenroom::rollout::{Dataset, GradingLimits, Task};
use greenroom::sandbox::{ImageSpec, Isolation, Labels, LocalProvider, Provider, SandboxBox, SandboxError};
use serde_json::Value;

use crate::cli::CheckDataset;

/// How often each task is graded, untouched and mended.
const TIMES: u32 = 2;
/// Boxes at work at once.
const AT_ONCE: usize = 2;
/// How long a box lives at the most, beyond the time that grading may take.
const SLACK_MS: u64 = 600_000;
const OUTPUT_BYTES: u64 = 64 << 20;
/// Where the bug's patch lies while it is undone; outside of the work tree.
const PATCH_PATH: &str = "/tmp/bug.patch";

/// What was found out about one task.
enum Finding {
    /// Untouched 0, and mended 1 where a fix is known.
    Right { has_fix: bool },
    /// What is wrong with it.
    Wrong(String),
}

struct Setting {
    provider: LocalProvider,
    images: BTreeMap<String, ImageSpec>,
    setup_timeout_ms: u64,
    limits: GradingLimits,
}

pub(super) fn run(arguments: &CheckDataset) -> anyhow::Result<ExitCode> {
    let dataset = greenroom::up::dataset("the file of tasks", &arguments.file)?;
    let patches = patches(&arguments.file)?;
    let config = settings(arguments)?;
    let scratch = std::env::temp_dir().join(format!("greenroom-check-{}", std::process::id()));
    let setting = Setting {
        provider: LocalProvider::new(config.sandbox.local.clone(), &scratch)?,
        images: greenroom::up::images_of(&config, &dataset)?,
        setup_timeout_ms: config.rollout.setup_timeout_ms,
        limits: config.rollout.grading_limits(),
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let checked = runtime.block_on(check_all(Arc::new(setting), &dataset, patches));
    // a folder that is left over is swept by nobody, but it is empty
    let _ = std::fs::remove_dir(&scratch);
    tell(&checked?)
}

fn tell(findings: &[(String, Finding)]) -> anyhow::Result<ExitCode> {
    let (mut wrong, mut without_fix) = (0, 0);
    for (task, finding) in findings {
        match finding {
            Finding::Right { has_fix: true } => {}
            Finding::Right { has_fix: false } => without_fix += 1,
            Finding::Wrong(what) => {
                wrong += 1;
                super::print(&format!("{task}: {what}"))?;
            }
        }
    }
    eprintln!("{} tasks: {} right, {wrong} wrong", findings.len(), findings.len() - wrong);
    if without_fix > 0 {
        eprintln!(
            "{without_fix} of the right ones tell no fix (metadata.bug_patch): only that doing nothing earns 0 was checked"
        );
    }
    Ok(if wrong == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The configuration that says how boxes are made.
fn settings(arguments: &CheckDataset) -> anyhow::Result<Config> {
    let folder = arguments.file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = folder.join("data.toml");
    let mut files = arguments.config.clone();
    if files.is_empty() && beside.is_file() {
        files.push(beside);
    }
    let has_files = !files.is_empty();
    let layers = Layers { files, environment: std::env::vars().collect(), settings: arguments.set.clone() };
    let mut config = config::load(&layers)?.config;
    if !has_files {
        config.data.images_dir = Some(folder.join("images"));
    }
    let mut problems: Vec<String> = config.sandbox.problems();
    if config.sandbox.local.isolation == Isolation::None {
        let why = "boxes without walls see each other's files, and tasks are checked in untouched ones";
        problems.push(format!("sandbox.local.isolation is \"none\": {why}; check them where boxes have walls"));
    }
    if !problems.is_empty() {
        return Err(config::ConfigError { problems }.into());
    }
    Ok(config)
}

/// The bug's patch of each row that tells it, in the order of the rows.
fn patches(file: &Path) -> anyhow::Result<Vec<Option<String>>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let patch = |line: &str| {
        let row: Value = serde_json::from_str(line).ok()?;
        let metadata = row.get("metadata")?;
        let places = [metadata.get("bug_patch"), metadata.get("swesmith_inst").and_then(|row| row.get("patch"))];
        places.into_iter().flatten().find_map(Value::as_str).map(str::to_owned)
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    Ok(text.lines().filter(|line| !line.trim().is_empty()).map(patch).collect())
}

async fn check_all(
    setting: Arc<Setting>,
    dataset: &Dataset,
    patches: Vec<Option<String>>,
) -> anyhow::Result<Vec<(String, Finding)>> {
    setting.provider.check().await.context("this machine cannot make sandboxes")?;
    let bar = super::dataset::bar()?;
    bar.set_length(dataset.tasks().len() as u64);
    let gate = Arc::new(tokio::sync::Semaphore::new(AT_ONCE));
    let mut checks = Vec::new();
    for (task, patch) in dataset.tasks().iter().cloned().zip(patches) {
        let (setting, gate, bar) = (setting.clone(), gate.clone(), bar.clone());
        checks.push(spawn_named("check-task", async move {
            let _turn = gate.acquire_owned().await?;
            let finding = check(&setting, &task, patch.as_deref()).await;
            let finding = finding.with_context(|| format!("task {}", task.id))?;
            bar.set_message(task.id.to_string());
            bar.inc(1);
            anyhow::Ok((task.id.to_string(), finding))
        }));
    }
    let mut findings = Vec::new();
    for check in checks {
        findings.push(check.await?.context("a check broke off; see the log")??);
    }
    bar.finish_and_clear();
    Ok(findings)
}

async fn check(setting: &Setting, task: &Task, patch: Option<&str>) -> anyhow::Result<Finding> {
    for (patch, wanted, when) in [(None, 0.0, "untouched"), (patch, 1.0, "mended")] {
        if wanted > 0.0 && patch.is_none() {
            break;
        }
        for time in 1..=TIMES {
            match reward(setting, task, patch).await? {
                Ok((reward, _)) if reward == wanted => {}
                Ok((reward, why)) => {
                    return Ok(Finding::Wrong(format!(
                        "{when} it earns {reward} instead of {wanted}, time {time}: {why}"
                    )));
                }
                Err(why) => return Ok(Finding::Wrong(format!("{when} it cannot be graded: {why}"))),
            }
        }
    }
    Ok(Finding::Right { has_fix: patch.is_some() })
}

/// The reward, with the grader's reason; or why the task cannot be graded. As in a run, the work is taken out of the box in
/// which it was done and graded in another one.
async fn reward(setting: &Setting, task: &Task, patch: Option<&str>) -> anyhow::Result<Result<(f64, String), String>> {
    let acting = TaskBox::make(setting, task).await?;
    let work = acting.work(task, patch).await;
    acting.held.destroy().await?;
    let mut grader = match work? {
        Ok(work) => Grader::new(work),
        Err(why) => return Ok(Err(why)),
    };
    loop {
        let grading = TaskBox::make(setting, task).await?;
        let graded = grading.grade(task, &mut grader).await;
        grading.held.destroy().await?;
        match graded? {
            Ok(None) => {}
            Ok(Some(grade)) => return Ok(Ok(grade)),
            Err(why) => return Ok(Err(why)),
        }
    }
}

/// A box with a task in it.
struct TaskBox<'a> {
    held: Box<dyn SandboxBox>,
    workdir: String,
    setting: &'a Setting,
}

impl<'a> TaskBox<'a> {
    async fn make(setting: &'a Setting, task: &Task) -> anyhow::Result<Self> {
        let image = setting.images.get(&task.image).with_context(|| format!("there is no image {:?}", task.image))?;
        let lifetime_ms = setting.setup_timeout_ms + setting.limits.timeout.as_millis() as u64 + SLACK_MS;
        let held = setting.provider.create(image, &Labels::new(), lifetime_ms).await?;
        let workdir = task.workdir.clone().unwrap_or_else(|| image.workdir.display().to_string());
        Ok(Self { held, workdir, setting })
    }

    /// The task in this box, or why it cannot be set up.
    async fn set_up(&self, task: &Task) -> anyhow::Result<Result<GradingTask, String>> {
        match self.put_files(&task.files).await {
            Err(refused @ SandboxError::Refused { .. }) => return Ok(Err(format!("metadata.files: {refused}"))),
            written => written?,
        }
        if let Some(command) = &task.setup_cmd {
            let outcome = self.exec(command, Shell::Bash, self.setting.setup_timeout_ms).await?;
            if outcome.returncode != 0 {
                return Ok(Err(format!("setup_cmd ended with {}: {}", outcome.returncode, one_line(&outcome.output))));
            }
        }
        let mut commits = None;
        if task.needs_commits() {
            let outcome = self.run(&InstanceCommits::resolve_command(&self.workdir, task.id.as_str())).await?;
            match InstanceCommits::parse(task.id.as_str(), &outcome) {
                Ok(found) => commits = Some(found),
                Err(error) => return Ok(Err(error.to_string())),
            }
        }
        Ok(Ok(task.grading_task(&self.workdir, self.setting.limits, commits)))
    }

    /// What is left when nothing was done, or the patch undone.
    async fn work(&self, task: &Task, patch: Option<&str>) -> anyhow::Result<Result<Work, String>> {
        let grading = match self.set_up(task).await? {
            Ok(grading) => grading,
            Err(why) => return Ok(Err(why)),
        };
        if let Some(patch) = patch {
            self.put(PATCH_PATH, patch.as_bytes().to_vec()).await?;
            let undo = format!("git -c safe.directory='*' apply -R --whitespace=nowarn {PATCH_PATH}");
            let outcome = self.exec(&undo, Shell::Sh, self.setting.setup_timeout_ms).await?;
            if outcome.returncode != 0 {
                return Ok(Err(format!("its bug_patch cannot be undone: {}", one_line(&outcome.output))));
            }
        }
        let taken = grading.taken(&self.run(&grading.take_command()).await?);
        Ok(Ok(match taken {
            Taken::Not(reason) => Work::NotTaken(reason),
            Taken::File(path) => Work::Change(self.held.read_file(&path, self.setting.limits.change_bytes).await?),
        }))
    }

    /// The grade, or nothing where the grader wants another box.
    async fn grade(&self, task: &Task, grader: &mut Grader) -> anyhow::Result<Result<Option<(f64, String)>, String>> {
        let in_words = |error: GradeError| one_line(&error.to_string());
        let mut reported = match self.set_up(task).await? {
            Ok(grading) => grader.on_fresh_box(grading),
            Err(why) => return Ok(Err(why)),
        };
        loop {
            if let Err(error) = reported {
                return Ok(Err(in_words(error)));
            }
            reported = match grader.next() {
                GradeStep::FreshBox => return Ok(Ok(None)),
                GradeStep::Done(grade) => return Ok(Ok(Some((grade.reward, format!("{:?}", grade.reason))))),
                GradeStep::Run(command) => grader.on_outcome(&self.run(&command).await?),
                GradeStep::WriteFiles(files) => {
                    for (path, content) in files {
                        self.put(&path, content).await?;
                    }
                    grader.on_files_written()
                }
            };
        }
    }

    async fn run(&self, command: &GradeCommand) -> anyhow::Result<CommandOutcome> {
        self.exec(&command.command, Shell::Sh, command.timeout.as_millis() as u64).await
    }

    async fn exec(&self, command: &str, shell: Shell, timeout_ms: u64) -> anyhow::Result<CommandOutcome> {
        let request = ExecRequest {
            command: command.to_owned(),
            shell,
            cwd: Some(self.workdir.clone()),
            env: BTreeMap::new(),
            timeout_ms,
            output_limit_bytes: OUTPUT_BYTES,
        };
        Ok(outcome(self.held.exec(request).await?))
    }

    async fn put_files(&self, files: &BTreeMap<String, String>) -> Result<(), SandboxError> {
        for (path, content) in files {
            self.put(path, content.as_bytes().to_vec()).await?;
        }
        Ok(())
    }

    async fn put(&self, path: &str, content: Vec<u8>) -> Result<(), SandboxError> {
        let path = PathBuf::from(&self.workdir).join(path).display().to_string();
        let file = SandboxFile { path, content, executable: false };
        self.held.put_files(vec![file]).await
    }
}

fn outcome(outcome: ExecOutcome) -> CommandOutcome {
    let output = String::from_utf8_lossy(&outcome.output).into_owned();
    match outcome.exception {
        Some(exception) if exception.kind == "TimeoutExpired" => CommandOutcome::timed_out(output),
        Some(exception) => CommandOutcome { not_started: Some(exception.text), ..CommandOutcome::finished(-1, output) },
        None => CommandOutcome::finished(outcome.returncode.into(), output),
    }
}

fn one_line(text: &str) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = text.chars().count().saturating_sub(300);
    text.chars().skip(skipped).collect()
}
