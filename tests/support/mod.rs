//! What the tests of whole runs share: the real binary, the quickstart's data made once, a policy that can do something.
//!
//! Data lie below the target directory, keyed by the code that makes them, and are made under a file lock: test binaries
//! may run at the same time.

#![allow(dead_code, reason = "each test takes what it needs")]

use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use greenroom_core::Seed;

pub mod cluster;
pub mod ledger;
pub mod refusal;

/// The longest that any step of a test may take.
pub const PATIENCE: Duration = Duration::from_secs(300);

const REPOSITORY: &str = env!("CARGO_MANIFEST_DIR");

/// The binary.
pub fn greenroom() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_greenroom"));
    command.env_remove("GREENROOM_FAULTS").env_remove("GREENROOM_LOG").env("OMP_NUM_THREADS", "1");
    command
}

/// The quickstart's data and, in `policy/`, a model that was warm-started a little: it plays the game of the tests.
pub fn data() -> PathBuf {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let key = sources_key();
    let made = root.join(format!("quickstart-{key:016x}"));
    let lock = fs::File::create(root.join("quickstart.lock")).unwrap();
    lock.lock().unwrap();
    if !made.join("policy").exists() {
        let half = root.join(format!("quickstart-{key:016x}.part"));
        let _ = fs::remove_dir_all(&half);
        make_data(&half);
        let _ = fs::remove_dir_all(&made);
        fs::rename(&half, &made).unwrap();
    }
    made
}

fn make_data(into: &Path) {
    succeed(greenroom().args(["dataset", "quickstart", "--seed", "0", "--out"]).arg(into));
    coin_tasks(into);
    first_lines(&into.join("tosses.jsonl"), 8, &into.join("few.jsonl"));
    let runs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut up = greenroom();
    up.args(["up", "--config"]).arg(Path::new(REPOSITORY).join("config/quickstart/quickstart.toml"));
    for setting in [
        "run.steps=0",
        "data.train=coins.jsonl",
        "run.evaluation.before_and_after=false",
        "data.demonstrations=tosses.jsonl",
    ] {
        up.args(["--set", setting]);
    }
    up.args(["--set", &format!("data.root={}", into.display()), "--name", "policy", "--runs"]).arg(runs.path());
    succeed(&mut up);
    fs::rename(runs.path().join("policy/weights/export/000000"), into.join("policy")).unwrap();
}

const COIN: &str = "Write 0 or 1 into out.txt";

/// Tasks whose reward is what the policy tosses, and demonstrations of both sides: a minute's policy learns it in seconds,
/// and every group has winners and losers, so that every step has something to learn.
fn coin_tasks(data: &Path) {
    let row = |number: u32| {
        let metadata = serde_json::json!({
            "instance_id": format!("coin-{number}"), "task": COIN, "image": "graph",
            "eval_kind": "cmd", "eval_cmd": "test \"$(cat out.txt)\" = 1",
        });
        format!("{}\n", serde_json::json!({ "text": COIN, "label": format!("coin-{number}"), "metadata": metadata }))
    };
    fs::write(data.join("coins.jsonl"), (0..6).map(row).collect::<String>()).unwrap();
    let sound = fs::read_to_string(data.join("sft.jsonl")).unwrap();
    let system =
        serde_json::from_str::<serde_json::Value>(sound.lines().next().unwrap()).unwrap()["messages"][0].clone();
    let say = |role: &str, content: String| serde_json::json!({ "role": role, "content": content });
    let command = |line: &str| say("assistant", format!("```mswea_bash_command\n{line}\n```"));
    let toss = |number: u64| {
        let side = Seed::new(0).child_numbered("coin", number).value() % 2;
        let messages = [
            system.clone(),
            say("user", COIN.to_owned()),
            command(&format!("echo {side} > out.txt")),
            say("user", "0\n".to_owned()),
            command("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
        ];
        format!("{}\n", serde_json::json!({ "messages": messages }))
    };
    fs::write(data.join("tosses.jsonl"), (0..600).map(toss).collect::<String>()).unwrap();
}

fn first_lines(from: &Path, lines: usize, to: &Path) {
    let text = fs::read_to_string(from).unwrap();
    fs::write(to, text.lines().take(lines).flat_map(|line| [line, "\n"]).collect::<String>()).unwrap();
}

/// Changes when the code that makes the data does.
fn sources_key() -> u64 {
    let mut files = Vec::new();
    for folder in ["actors/rollout/src/dataset", "config/quickstart", "tests/support"] {
        collect(&Path::new(REPOSITORY).join(folder), &mut files);
    }
    files.sort();
    let mut hasher = std::hash::DefaultHasher::new();
    for file in files {
        fs::read(&file).unwrap().hash(&mut hasher);
    }
    hasher.finish()
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        if entry.path().is_dir() { collect(&entry.path(), files) } else { files.push(entry.path()) }
    }
}

/// Runs a command to its end; anything but success fails the test with what it said.
pub fn succeed(command: &mut Command) -> Output {
    let output = finish(command);
    assert!(output.status.success(), "{command:?} ended with {}:\n{}", output.status, text(&output.stderr));
    output
}

/// Runs a command to its end, whatever that is; one that does not end in time is killed and fails the test.
pub fn finish(command: &mut Command) -> Output {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    finish_child(child)
}

/// As [`finish`], of a child that runs already.
pub fn finish_child(child: Child) -> Output {
    let pid = child.id();
    let (done, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    match ended.recv_timeout(PATIENCE) {
        Ok(output) => output.unwrap(),
        Err(_) => {
            signal(pid, "KILL");
            panic!("process {pid} did not end within {PATIENCE:?}")
        }
    }
}

/// Sends a signal by its name.
pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args(["-s", name, &pid.to_string()]).stderr(Stdio::null()).status().unwrap();
    assert!(status.success(), "process {pid} could not be sent SIG{name}");
}

/// Waits until something holds.
pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < PATIENCE, "{what} did not happen within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A run of the real binary: small, of the quickstart's tasks, from the policy in [`data`], sync and batch-invariant.
pub struct Run {
    runs: tempfile::TempDir,
    data: PathBuf,
    settings: Vec<String>,
    marker: String,
}

impl Run {
    /// A run that was not started yet; later settings win.
    pub fn new(settings: &[&str]) -> Self {
        let runs = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let data = data();
        let marker = format!("box-of-{}", runs.path().file_name().unwrap().to_string_lossy());
        let mut all: Vec<String> = [
            "seed=0",
            "model.init_weights=false",
            "model.dir=policy",
            "data.train=coins.jsonl",
            "data.demonstrations=few.jsonl",
            // few and gentle: the policy can do something already
            "warm_start.learning_rate=1e-6",
            "run.steps=3",
            "run.groups_per_batch=3",
            "run.samples_per_group=4",
            "run.evaluation.before_and_after=false",
        ]
        .map(str::to_owned)
        .to_vec();
        all.push(format!("data.root={}", data.display()));
        all.push(format!("sandbox.local.helper_argv={:?}", box_helper(&marker)));
        all.extend(settings.iter().map(|setting| (*setting).to_owned()));
        Self { runs, data, settings: all, marker }
    }

    pub fn data(&self) -> &Path {
        &self.data
    }

    /// The run's directory.
    pub fn dir(&self) -> PathBuf {
        self.runs.path().join("run")
    }

    /// The command that begins the run.
    pub fn begin(&self) -> Command {
        self.begin_in(self.runs.path())
    }

    /// The same, as a run below another directory.
    pub fn begin_in(&self, runs: &Path) -> Command {
        let mut command = greenroom();
        command.args(["up", "--config"]).arg(Path::new(REPOSITORY).join("config/quickstart/quickstart.toml"));
        for setting in &self.settings {
            command.args(["--set", setting]);
        }
        command.args(["--name", "run", "--runs"]).arg(runs);
        command
    }

    /// The command that goes on with it, from its own directory alone.
    pub fn resume(&self) -> Command {
        let mut command = greenroom();
        command.args(["up", "--resume", "--name", "run", "--runs"]).arg(self.runs.path());
        command
    }

    /// Begins it, or goes on with it when it has begun.
    pub fn go_on(&self) -> Command {
        if self.dir().join("run.db").exists() { self.resume() } else { self.begin() }
    }

    /// How many processes have worked on it.
    pub fn epoch(&self) -> u64 {
        let ledger = ledger::Ledger::try_open(&self.dir());
        let epochs = ledger.and_then(|ledger| ledger.try_column("SELECT max(epoch) FROM processes"));
        epochs.ok().and_then(|epochs| epochs.first()?.parse().ok()).unwrap_or(0)
    }

    pub fn spawn(command: &mut Command) -> Child {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// `metrics.jsonl` without what depends on the machine.
    pub fn metrics(&self) -> Vec<serde_json::Value> {
        metrics_of(&self.dir())
    }

    /// Nothing of a sandbox is left once the run's process is gone: no helper, nothing inside, and (after an orderly end)
    /// no directory. Helpers end a moment after their greenroom does, so this waits.
    pub fn assert_no_sandbox_processes(&self) {
        wait_until(&format!("the end of the sandboxes of {}", self.dir().display()), || self.sandbox_processes() == 0);
    }

    pub fn assert_no_sandbox_directories(&self) {
        let left: Vec<_> = fs::read_dir(self.dir().join("sandboxes")).into_iter().flatten().flatten().collect();
        assert!(left.is_empty(), "left behind: {left:?}");
    }

    /// Processes of this run's boxes. A process inside a box is a child of its helper, or carries the box's mark.
    fn sandbox_processes(&self) -> usize {
        let mark = self.dir().join("sandboxes").to_string_lossy().into_owned();
        let processes = fs::read_dir("/proc").unwrap().flatten().filter(|entry| {
            let read = |name: &str| text(&fs::read(entry.path().join(name)).unwrap_or_default());
            let is_dead = read("stat").rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'));
            let is_process = entry.file_name().to_string_lossy().parse::<u32>().is_ok();
            let inside = fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd.starts_with(&mark));
            is_process
                && !is_dead
                // the run's own command line has it among its settings
                && (read("cmdline").contains(&self.marker) && !read("cmdline").contains("--set") || inside)
        });
        processes.count()
    }
}

/// What starts a sandbox's helper: the small one, which is built beside the program where the whole workspace is and starts in
/// a tenth of the time, else the program. It takes no notice of a further argument, and the process table shows it.
pub fn box_helper(marker: &str) -> Vec<String> {
    let program = Path::new(env!("CARGO_BIN_EXE_greenroom"));
    let small = program.with_file_name("greenroom-box");
    let words = match small.is_file() {
        true => vec![small.to_str().unwrap(), marker],
        false => vec![program.to_str().unwrap(), "box-init", marker],
    };
    words.into_iter().map(str::to_owned).collect()
}

/// `metrics.jsonl` of a run's directory without what depends on the machine.
pub fn metrics_of(run: &Path) -> Vec<serde_json::Value> {
    let lines = fs::read_to_string(run.join("metrics.jsonl")).unwrap_or_default();
    let untimed = lines.lines().map(|line| {
        let mut line: serde_json::Value = serde_json::from_str(line).unwrap();
        drop_times(&mut line);
        line
    });
    untimed.collect()
}

fn drop_times(value: &mut serde_json::Value) {
    if let serde_json::Value::Object(table) = value {
        table.remove("times");
        table.values_mut().for_each(drop_times);
    }
}

/// The bytes of every file below a directory, by relative path.
pub fn tree(directory: &Path) -> std::collections::BTreeMap<PathBuf, Vec<u8>> {
    let mut files = Vec::new();
    collect(directory, &mut files);
    files.into_iter().map(|file| (file.strip_prefix(directory).unwrap().to_owned(), fs::read(&file).unwrap())).collect()
}
