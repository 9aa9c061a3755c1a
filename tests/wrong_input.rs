//! Whatever is wrong with what a user gives: one clear line for each problem, naming the input, the place and the remedy;
//! a non-zero exit within seconds; no panic; and nothing half-made that stands in the way of the next try.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::disallowed_methods,
    reason = "the test's own process is real: it waits in real time, and fails by panicking"
)]

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use support::{Run, finish, greenroom, succeed, text};

/// A wrong input, made in a folder of its own from sound data; and what must be said about it.
struct Case {
    name: &'static str,
    /// Settings over those of a sound run; `{folder}` stands for the case's folder.
    settings: &'static [&'static str],
    /// Makes the wrong input in the folder; the second argument is the sound data.
    make: fn(&Path, &Path),
    words: &'static [&'static str],
}

fn nothing(_: &Path, _: &Path) {}

fn copy_policy(folder: &Path, data: &Path) {
    fs::create_dir(folder.join("policy")).unwrap();
    for entry in fs::read_dir(data.join("policy")).unwrap().flatten() {
        fs::copy(entry.path(), folder.join("policy").join(entry.file_name())).unwrap();
    }
}

fn without(name: &str, folder: &Path, data: &Path) {
    copy_policy(folder, data);
    fs::remove_file(folder.join("policy").join(name)).unwrap();
}

/// The first task, changed.
fn change_task(folder: &Path, data: &Path, change: fn(&mut serde_json::Value)) {
    let rows = fs::read_to_string(data.join("rl.jsonl")).unwrap();
    let mut row: serde_json::Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    change(&mut row);
    fs::write(folder.join("rl.jsonl"), format!("{row}\n")).unwrap();
}

const CASES: &[Case] = &[
    Case {
        name: "an unknown key",
        settings: &["run.stepz=3"],
        make: nothing,
        words: &["GR0901", "run.stepz", "did you mean steps"],
    },
    Case {
        name: "a wrong type",
        settings: &["run.steps=many"],
        make: nothing,
        words: &["GR0901", "run.steps must be a whole number", "\"many\""],
    },
    Case {
        name: "a value that cannot be",
        settings: &["run.samples_per_group=1"],
        make: nothing,
        words: &["GR0901", "run.samples_per_group", "at least 2"],
    },
    Case {
        name: "a missing tokenizer",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| without("tokenizer.json", folder, data),
        words: &["policy/tokenizer.json", "missing"],
    },
    Case {
        name: "a missing model configuration",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| without("config.json", folder, data),
        words: &["policy/config.json"],
    },
    Case {
        name: "missing weights",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| without("model.safetensors", folder, data),
        words: &["{folder}/policy", "safetensors"],
    },
    Case {
        name: "truncated weights",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| {
            copy_policy(folder, data);
            let file = fs::OpenOptions::new().write(true).open(folder.join("policy/model.safetensors")).unwrap();
            file.set_len(100_000).unwrap();
        },
        words: &["policy/model.safetensors", "truncated", "100000 bytes"],
    },
    Case {
        name: "weights that are none",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| {
            copy_policy(folder, data);
            fs::write(folder.join("policy/model.safetensors"), "not weights").unwrap();
        },
        words: &["policy/model.safetensors"],
    },
    Case {
        name: "no such model",
        settings: &["model.dir={folder}/nowhere"],
        make: nothing,
        words: &["{folder}/nowhere"],
    },
    Case {
        name: "a missing data file",
        settings: &["data.train={folder}/nowhere.jsonl"],
        make: nothing,
        words: &["{folder}/nowhere.jsonl", "cannot be read", "JSONL"],
    },
    Case {
        name: "a row that is no JSON",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, _| fs::write(folder.join("rl.jsonl"), "{\n").unwrap(),
        words: &["rl.jsonl:1", "not JSON"],
    },
    Case {
        name: "an empty data file",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, _| fs::write(folder.join("rl.jsonl"), "").unwrap(),
        words: &["rl.jsonl"],
    },
    Case {
        name: "a task with no tests",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, data| change_task(folder, data, |row| row["metadata"]["FAIL_TO_PASS"] = serde_json::json!([])),
        words: &["rl.jsonl:1", "no FAIL_TO_PASS tests", "add them"],
    },
    Case {
        name: "an unknown image",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, data| change_task(folder, data, |row| row["metadata"]["image"] = "atlantis".into()),
        words: &["GR0905", "atlantis", "data.images"],
    },
    Case {
        name: "missing images",
        settings: &["data.images_dir={folder}/nowhere"],
        make: nothing,
        words: &["data.images_dir", "{folder}/nowhere"],
    },
    Case {
        name: "missing demonstrations",
        settings: &["data.demonstrations={folder}/nowhere.jsonl"],
        make: nothing,
        words: &["{folder}/nowhere.jsonl", "cannot be read"],
    },
    Case {
        name: "a demonstration that is none",
        settings: &["data.demonstrations={folder}/sft.jsonl"],
        make: |folder, _| fs::write(folder.join("sft.jsonl"), "{\"messages\": 3}\n").unwrap(),
        words: &["sft.jsonl:1"],
    },
    Case {
        name: "a missing agent file",
        settings: &["agent.file={folder}/agent.yaml"],
        make: nothing,
        words: &["agent.file", "{folder}/agent.yaml"],
    },
    Case {
        name: "an agent file that is no YAML",
        settings: &["agent.file={folder}/agent.yaml"],
        make: |folder, _| fs::write(folder.join("agent.yaml"), "agent: [").unwrap(),
        words: &["{folder}/agent.yaml"],
    },
    Case {
        name: "an agent file with a bad template",
        settings: &["agent.file={folder}/agent.yaml"],
        make: |folder, data| {
            let sound = fs::read_to_string(data.join("agent.yaml")).unwrap();
            assert!(sound.contains("{{task}}") || sound.contains("{{ task }}"), "{sound}");
            let broken = sound.replace("{{ task }}", "{{ task").replace("{{task}}", "{{task");
            fs::write(folder.join("agent.yaml"), broken).unwrap();
        },
        words: &["{folder}/agent.yaml", "template"],
    },
    Case {
        name: "no engine",
        settings: &["engine.embedded.count=0"],
        make: nothing,
        words: &["GR0901", "needs an engine", "engine.embedded.count"],
    },
    Case {
        name: "an engine's address that is none",
        settings: &["engine.embedded.count=0", "engine.external.e.url=nonsense"],
        make: nothing,
        words: &["nonsense", "http"],
    },
    Case {
        name: "an engine's port that is none",
        settings: &["engine.embedded.count=0", "engine.external.e.url=http://127.0.0.1:99999"],
        make: nothing,
        words: &["127.0.0.1:99999"],
    },
    Case {
        name: "an unknown device",
        settings: &["engine.embedded.device=abacus"],
        make: nothing,
        words: &["abacus", "cpu"],
    },
    Case {
        name: "a run directory below a file",
        settings: &[],
        make: |folder, _| fs::write(folder.join("runs"), "a file").unwrap(),
        words: &["{folder}/runs/run", "Not a directory"],
    },
];

fn place_of(case: &Case, folder: &Path) -> PathBuf {
    if case.name == "a run directory below a file" { folder.join("runs") } else { folder.join("own") }
}

/// Runs a command that must fail, and checks how it does so. The error is one line, or one and a line for each problem.
fn assert_refused(name: &str, command: &mut Command, words: &[String]) -> String {
    let begun = Instant::now();
    let output = finish(command);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{name}: {}\n{said}", output.status);
    assert!(begun.elapsed().as_secs() < 90, "{name} took {:?}", begun.elapsed());
    assert_eq!(text(&output.stdout), "", "{name}");
    let from_error = said.lines().skip_while(|line| !line.starts_with("error: ")).collect::<Vec<_>>();
    let is_clear = from_error.first().is_some_and(|line| line.len() > "error: ".len())
        && from_error.iter().skip(1).all(|line| line.starts_with("  "));
    assert!(is_clear, "{name} must say one thing, and nothing after it:\n{said}");
    for word in words {
        assert!(from_error.iter().any(|line| line.contains(word.as_str())), "{name}: {word:?} is missing in\n{said}");
    }
    for noise in ["panicked", "backtrace", "Actor panicked", "thread '", "Some(", "Error {"] {
        assert!(!said.contains(noise), "{name}: {noise:?} is noise in\n{said}");
    }
    said
}

#[test]
fn wrong_input_is_refused_in_one_clear_line_and_leaves_nothing() {
    let data = support::data();
    let mut failures = Vec::new();
    for case in CASES {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let here = |text: &str| text.replace("{folder}", &folder.path().to_string_lossy());
        (case.make)(folder.path(), &data);
        let settings: Vec<String> = case.settings.iter().map(|setting| here(setting)).collect();
        let run = Run::new(&settings.iter().map(String::as_str).collect::<Vec<_>>());
        let runs = place_of(case, folder.path());
        let mut command = run.begin_in(&runs);
        let words: Vec<String> = case.words.iter().map(|word| here(word)).collect();
        // all cases are tried, so that one look shows everything that does not hold
        let tried = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let said = assert_refused(case.name, &mut command, &words);
            println!("--- {}\n{}", case.name, said.trim_end());
            assert!(!runs.join("run").exists(), "{}: a half-made run is left", case.name);
        }));
        failures.extend(tried.err().map(|_| case.name));
    }
    assert!(failures.is_empty(), "these do not hold: {failures:?}");
}

#[test]
fn a_file_that_is_no_toml_is_named_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.toml");
    fs::write(&file, "seed = 1\n[run\nsteps = 2\n").unwrap();
    let mut command = greenroom();
    command.args(["up", "--name", "run", "--runs"]).arg(folder.path()).arg("--config").arg(&file);
    assert_refused("bad TOML", &mut command, &["GR0901".to_owned(), format!("{}:2:", file.display())]);
    assert!(!folder.path().join("run").exists());
}

#[test]
fn every_problem_is_told_at_once() {
    let run = Run::new(&["run.stepz=3", "sed=1", "rollout.max_turns=2.5", "trainer.loss.klip=1"]);
    let words = ["run.stepz", "sed", "rollout.max_turns", "trainer.loss.klip"].map(str::to_owned);
    assert_refused("four problems", &mut run.begin(), &words);
}

/// A refused try is no obstacle, an existing run is, and a damaged one is told from a sound one. The run itself is made
/// once, of one step.
#[test]
fn an_existing_run_is_neither_overwritten_nor_guessed_at() {
    let run = Run::new(&["run.steps=1", "run.groups_per_batch=1", "run.samples_per_group=2"]);
    let dir = run.dir().display().to_string();
    assert_refused("resume of nothing", &mut run.resume(), &["run".to_owned()]);
    assert!(!run.dir().exists());
    let mut nothing = run.resume();
    nothing.args(["--config", "config/quickstart/quickstart.toml", "--set"]);
    nothing.arg(format!("data.root={}", run.data().display()));
    assert_refused("resume of nothing, configured", &mut nothing, &["GR0203".to_owned(), dir.clone()]);
    assert_refused("check of nothing", greenroom().arg("check").arg(run.dir()), &["GR0203".to_owned(), dir.clone()]);

    // truncated weights first, then the right ones, under the same name
    let cut = tempfile::tempdir().unwrap();
    copy_policy(cut.path(), run.data());
    let weights = cut.path().join("policy/model.safetensors");
    fs::OpenOptions::new().write(true).open(&weights).unwrap().set_len(100_000).unwrap();
    let bad_model = format!("model.dir={}", cut.path().join("policy").display());
    assert_refused("truncated", run.begin().args(["--set", &bad_model]), &["truncated".to_owned()]);
    succeed(&mut run.begin());

    assert_refused("an existing run", &mut run.begin(), &["GR0202".to_owned(), dir.clone(), "--resume".to_owned()]);
    let before = support::tree(&run.dir());
    let mut changed = run.resume();
    changed.arg("--config").arg(run.dir().join("config.toml")).args(["--set", &bad_model, "--set", "run.steps=2"]);
    assert_refused("a resume with a bad model", &mut changed, &["truncated".to_owned()]);
    let config = Path::new("config.toml");
    assert!(before[config] == support::tree(&run.dir())[config], "a failed resume must not change the configuration");
    succeed(&mut run.resume());

    let damage = |name: &str, content: &[u8], words: &[&str]| {
        let file = run.dir().join(name);
        let sound = fs::read(&file).unwrap();
        fs::write(&file, content).unwrap();
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        assert_refused(&format!("a damaged {name}"), &mut run.resume(), &words);
        assert_eq!(fs::read(&file).unwrap(), content, "what is damaged is left for a look");
        fs::write(&file, sound).unwrap();
    };
    damage("config.toml", b"[run\n", &["GR0901", &format!("{dir}/config.toml:1:")]);
    damage(
        "run.db",
        b"this is no database, whatever its name says",
        &["GR0201", &format!("{dir}/run.db"), "not a database"],
    );
    succeed(&mut run.resume());
}

/// Nobody listens at the engine's address: the run says so and ends within the configured times.
#[test]
fn an_engine_that_cannot_be_reached_ends_the_run_in_the_configured_time() {
    let run = Run::new(&[
        "engine.embedded.count=0",
        "engine.external.far.url=http://127.0.0.1:9",
        "run.update_timeout_ms=1500",
        "run.step_retries=1",
    ]);
    let words = ["GR0207", "engine pool", "far", "http://127.0.0.1:9"].map(str::to_owned);
    assert_refused("an engine that refuses", &mut run.begin(), &words);
    run.assert_no_sandbox_processes();
    run.assert_no_sandbox_directories();
}
