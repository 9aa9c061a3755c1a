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

use support::refusal::{assert_refused, change_model, change_task, copy_policy, endless};
use support::{Run, greenroom, succeed, text};

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

fn without(name: &str, folder: &Path, data: &Path) {
    copy_policy(folder, data);
    fs::remove_file(folder.join("policy").join(name)).unwrap();
}

const CASES: &[Case] = &[
    Case {
        name: "an unknown key",
        settings: &["run.stepz=3"],
        make: nothing,
        words: &["GR0901", "run.stepz", "did you mean run.steps?", "from --set run.stepz"],
    },
    Case {
        name: "a wrong type",
        settings: &["run.steps=many"],
        make: nothing,
        words: &["GR0901", "run.steps must be a whole number", "\"many\"", "from --set run.steps"],
    },
    Case {
        name: "a word that is none of the right ones",
        settings: &["run.schedule=asink"],
        make: nothing,
        words: &["GR0901", "run.schedule must be one of \"sync\", \"async\", but is \"asink\""],
    },
    Case {
        name: "a value that cannot be",
        settings: &["run.samples_per_group=1"],
        make: nothing,
        words: &["GR0901", "run.samples_per_group", "at least 2", "(1, from --set run.samples_per_group)"],
    },
    Case {
        name: "a missing tokenizer",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| without("tokenizer.json", folder, data),
        words: &["GR0370", "policy/tokenizer.json", "missing"],
    },
    Case {
        name: "a missing model configuration",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| without("config.json", folder, data),
        words: &["GR0908", "policy/config.json"],
    },
    Case {
        name: "missing weights",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| without("model.safetensors", folder, data),
        words: &["GR0908", "{folder}/policy", "safetensors", "model.init_weights = true"],
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
        name: "weights without end",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| {
            without("model.safetensors", folder, data);
            endless(folder, "policy/model.safetensors");
        },
        words: &["GR0907", "policy/model.safetensors", "a device"],
    },
    Case {
        name: "a template without end",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| {
            copy_policy(folder, data);
            let _ = fs::remove_file(folder.join("policy/chat_template.jinja"));
            endless(folder, "policy/chat_template.jinja");
        },
        words: &["GR0907", "policy/chat_template.jinja", "a device"],
    },
    Case {
        name: "no such model",
        settings: &["model.dir={folder}/nowhere"],
        make: nothing,
        words: &["GR0908", "{folder}/nowhere", "no such directory"],
    },
    Case {
        name: "a model's name on a hub",
        settings: &["model.dir=Qwen/Qwen3-0.6B"],
        make: nothing,
        words: &["GR0908", "Qwen/Qwen3-0.6B", "nothing is fetched from hubs", "path of its directory"],
    },
    Case {
        name: "rollouts longer than the model can read",
        settings: &["rollout.max_context_tokens=2048"],
        make: nothing,
        words: &["GR0909", "rollout.max_context_tokens is 2048", "max_position_embeddings is 1024", "at most 1024"],
    },
    Case {
        name: "a missing data file",
        settings: &["data.train={folder}/nowhere.jsonl"],
        make: nothing,
        words: &["GR0907", "data.train", "{folder}/nowhere.jsonl", "cannot be read", "JSONL"],
    },
    Case {
        name: "a data file without end",
        settings: &["data.train=/dev/zero"],
        make: nothing,
        words: &["GR0907", "data.train /dev/zero", "a device"],
    },
    Case {
        name: "a pipe that nobody writes into",
        settings: &["data.held_out={folder}/pipe"],
        make: |folder, _| {
            assert!(Command::new("mkfifo").arg(folder.join("pipe")).status().unwrap().success());
        },
        words: &["GR0907", "data.held_out {folder}/pipe", "a pipe"],
    },
    Case {
        name: "a row that is no JSON",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, _| fs::write(folder.join("rl.jsonl"), "{\n").unwrap(),
        words: &["GR0302", "data.train", "rl.jsonl:1", "not JSON"],
    },
    Case {
        name: "two rows that are no JSON",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, _| fs::write(folder.join("rl.jsonl"), "{\n[\n").unwrap(),
        words: &["GR0302", "rl.jsonl:1", "rl.jsonl:2"],
    },
    Case {
        name: "an empty data file",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, _| fs::write(folder.join("rl.jsonl"), "").unwrap(),
        words: &["GR0302", "rl.jsonl"],
    },
    Case {
        name: "a task with no tests",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, data| change_task(folder, data, |row| row["metadata"]["FAIL_TO_PASS"] = serde_json::json!([])),
        words: &["GR0302", "rl.jsonl:1", "no FAIL_TO_PASS tests", "add them"],
    },
    Case {
        name: "an unknown image",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, data| change_task(folder, data, |row| row["metadata"]["image"] = "atlantis".into()),
        words: &["GR0905", "not configured: atlantis", "data.images"],
    },
    Case {
        name: "a task that names no image",
        settings: &["data.train={folder}/rl.jsonl"],
        make: |folder, data| {
            change_task(folder, data, |row| {
                let metadata = row["metadata"].as_object_mut().unwrap();
                metadata.remove("image");
                metadata.remove("pool");
            });
        },
        words: &["GR0905", "names no image", "data.images.default"],
    },
    Case {
        name: "missing images",
        settings: &["data.images_dir={folder}/nowhere"],
        make: nothing,
        words: &["GR0907", "data.images_dir {folder}/nowhere", "one directory for each image"],
    },
    Case {
        name: "an image that fits into no sandbox",
        settings: &[
            "data.train={folder}/rl.jsonl",
            "data.held_out={folder}/rl.jsonl",
            "data.images_dir={folder}/images",
            "sandbox.local.limits.disk_bytes=16777216",
        ],
        make: |folder, data| {
            change_task(folder, data, |row| {
                row["metadata"]["image"] = "large".into();
                row["metadata"]["instance_id"] = "lost".into();
            });
            fs::create_dir_all(folder.join("images/large/deep")).unwrap();
            fs::write(folder.join("images/large/deep/file"), vec![1; 32 << 20]).unwrap();
        },
        words: &["GR0502", "task lost", "image large", "{folder}/images/large", "deep/file", "larger than disk_bytes"],
    },
    Case {
        name: "an image at no place of a sandbox",
        settings: &["data.images.graph.workdir=testbed"],
        make: nothing,
        words: &["GR0502", "the image of task coin-0", "image graph", "workdir testbed must be an absolute path"],
    },
    Case {
        name: "boxes without walls and untouched ones to grade in",
        settings: &["sandbox.local.isolation=none"],
        make: nothing,
        words: &["GR0901", "sandbox.local.isolation is \"none\"", "rollout.grade_in = \"same-box\""],
    },
    Case {
        name: "a task that needs walls",
        settings: &["data.train={folder}/rl.jsonl", "sandbox.local.isolation=none", "rollout.grade_in=same-box"],
        make: |folder, data| change_task(folder, data, |_| {}),
        words: &["GR0915", "swesmith", "needs sandboxes with walls"],
    },
    Case {
        name: "a model of other sizes than its weights",
        settings: &["model.dir={folder}/policy"],
        make: |folder, data| change_model(folder, data, "num_hidden_layers"),
        words: &["GR0641", "{folder}/policy/config.json", "`num_hidden_layers` is 2000000000", "have 2 layers"],
    },
    Case {
        name: "a model to be made that is larger than the machine",
        settings: &["model.dir={folder}/policy", "model.init_weights=true"],
        make: |folder, data| change_model(folder, data, "hidden_size"),
        words: &["GR0908", "{folder}/policy/config.json", "this machine has"],
    },
    Case {
        name: "missing demonstrations",
        settings: &["data.demonstrations={folder}/nowhere.jsonl"],
        make: nothing,
        words: &["GR0907", "data.demonstrations {folder}/nowhere.jsonl", "cannot be read"],
    },
    Case {
        name: "a demonstration that is none",
        settings: &["data.demonstrations={folder}/sft.jsonl"],
        make: |folder, _| fs::write(folder.join("sft.jsonl"), "{\"messages\": 3}\n").unwrap(),
        words: &["GR0302", "data.demonstrations", "sft.jsonl:1", "has no list `messages`"],
    },
    Case {
        name: "a missing agent file",
        settings: &["agent.file={folder}/agent.yaml"],
        make: nothing,
        words: &["GR0907", "agent.file {folder}/agent.yaml", "config/agent/default.yaml"],
    },
    Case {
        name: "an agent file without end",
        settings: &["agent.file=/dev/zero"],
        make: nothing,
        words: &["GR0907", "agent.file /dev/zero", "a device"],
    },
    Case {
        name: "an agent file that is too large",
        settings: &["agent.file={folder}/agent.yaml"],
        make: |folder, _| fs::File::create(folder.join("agent.yaml")).unwrap().set_len(1 << 40).unwrap(),
        words: &["GR0907", "agent.file", "1099511627776 bytes", "at most"],
    },
    Case {
        name: "an agent file that is no YAML",
        settings: &["agent.file={folder}/agent.yaml"],
        make: |folder, _| fs::write(folder.join("agent.yaml"), "agent: [").unwrap(),
        words: &["GR0310", "{folder}/agent.yaml"],
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
        words: &["error: GR0312", "{folder}/agent.yaml", "template"],
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
        words: &["GR0901", "engine.external.e.url", "nonsense", "http"],
    },
    Case {
        name: "an engine's port that is none",
        settings: &["engine.embedded.count=0", "engine.external.e.url=http://127.0.0.1:99999"],
        make: nothing,
        words: &["GR0901", "engine.external.e.url", "127.0.0.1:99999", "http://HOST:PORT"],
    },
    Case {
        name: "a credential that is read for ever",
        settings: &["engine.client.credentials.api_key={ file = \"/dev/zero\" }"],
        make: nothing,
        words: &["GR0907", "engine.client.credentials.api_key /dev/zero", "a device"],
    },
    Case {
        name: "a credential where its source should be named",
        settings: &["engine.client.credentials.admin_key=hush"],
        make: nothing,
        words: &["GR0901", "engine.client.credentials.admin_key must be a table with one of the keys env, file"],
    },
    Case {
        name: "an unknown device",
        settings: &["engine.embedded.device=abacus", "trainer.device=slide-rule"],
        make: nothing,
        words: &["GR0901", "engine.embedded.device is \"abacus\"", "trainer.device", "slide-rule", "cpu"],
    },
    Case {
        name: "a run directory below a file",
        settings: &[],
        make: |folder, _| fs::write(folder.join("runs"), "a file").unwrap(),
        words: &["GR0204", "{folder}/runs/run", "Not a directory"],
    },
];

fn place_of(case: &Case, folder: &Path) -> PathBuf {
    if case.name == "a run directory below a file" { folder.join("runs") } else { folder.join("own") }
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
    let wrong = [
        "run.stepz=3",
        "sed=1",
        "rollout.max_turns=2.5",
        "trainer.loss.klip=1",
        "weights.mode=most",
        "rollout.top_p=7",
        "engine.embedded.device=gpu",
    ];
    let run = Run::new(&wrong);
    let words = wrong.map(|setting| setting.split('=').next().unwrap().to_owned());
    assert_refused("problems of every kind", &mut run.begin(), &words);
}

/// Wrong input of the other commands.
#[test]
fn other_commands_refuse_in_the_same_way() {
    let cases: &[(&[&str], &[&str])] = &[
        (&["engine", "--model", "Qwen/Qwen3-0.6B"], &["GR0908", "--model", "Qwen/Qwen3-0.6B", "hubs"]),
        (&["engine", "--model", "/nowhere"], &["GR0908", "--model /nowhere"]),
        (&["engine", "--model", "{data}/policy", "--device", "gpu"], &["GR0911", "--device is \"gpu\"", "cuda:N"]),
        (&["dataset", "check", "/dev/zero"], &["GR0907", "/dev/zero", "a device"]),
        (&["dataset", "check", "/nowhere.jsonl"], &["GR0907", "/nowhere.jsonl"]),
        (&["config", "show", "--config", "/dev/zero"], &["GR0901", "/dev/zero", "a device"]),
        (&["config", "show", "--set", "run.stepz=1"], &["GR0901", "did you mean run.steps?"]),
        (
            &["dataset", "check", "{data}/rl.jsonl", "--set", "sandbox.pool.warm_bxes=1"],
            &["GR0901", "sandbox.pool.warm_boxes"],
        ),
        (&["check", "/nowhere/mine"], &["GR0203", "/nowhere/mine"]),
        (&["up", "--name", "../x"], &["GR0906", "../x"]),
        (
            &["up", "--name", "mine", "--runs", "/nowhere", "--resume"],
            &["GR0203", "/nowhere/mine", "no run in /nowhere"],
        ),
    ];
    let data = support::data();
    for (arguments, words) in cases {
        let arguments = arguments.iter().map(|text| text.replace("{data}", &data.display().to_string()));
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        assert_refused("another command", greenroom().args(arguments), &words);
    }
}

/// A refused try is no obstacle, an existing run is, and a damaged one is told from a sound one. The run itself is made
/// once, of one step; it is begun with relative paths, and gone on with from another directory.
#[test]
fn an_existing_run_is_neither_overwritten_nor_guessed_at() {
    let run = Run::new(&["run.steps=1", "run.groups_per_batch=1", "run.samples_per_group=2", "data.root=."]);
    let begin = || {
        let mut command = run.begin();
        command.current_dir(run.data());
        command
    };
    let dir = run.dir().display().to_string();
    assert_refused("resume of nothing", &mut run.resume(), &["GR0203".to_owned(), dir.clone()]);
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
    assert_refused("truncated", begin().args(["--set", &bad_model]), &["truncated".to_owned()]);
    let began = text(&succeed(&mut begin()).stderr);
    assert!(
        began.lines().any(|line| line == format!("the run begins in {dir}")),
        "where it lies is said first:\n{began}"
    );
    assert!(began.lines().any(|line| line == format!("the run lies in {dir}")), "and last:\n{began}");

    assert_refused("an existing run", &mut begin(), &["GR0202".to_owned(), dir.clone(), "--resume".to_owned()]);
    let mut misspelt = greenroom();
    misspelt.args(["up", "--resume", "--name", "rum", "--runs"]).arg(run.dir().parent().unwrap());
    assert_refused("a misspelt run", &mut misspelt, &["GR0203".to_owned(), "are run".to_owned()]);
    other_inputs_are_refused(&run, cut.path());
    a_complete_run_says_so(&run);

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
    damage("inputs.json", b"{", &["GR0907", &format!("{dir}/inputs.json"), "damaged"]);
    damage(
        "run.db",
        b"this is no database, whatever its name says",
        &["GR0201", &format!("{dir}/run.db"), "not a database"],
    );
    // with more to do it goes on, and is complete then
    succeed(run.resume().args(["--set", "run.steps=2"]));
    assert_eq!(run.metrics().len(), 2);
    a_complete_run_says_so(&run);
}

/// What the run was begun with, by content; `folder` holds a model with other weights. The run has more to do, so that it
/// would go on if it were let.
fn other_inputs_are_refused(run: &Run, folder: &Path) {
    let data = run.data();
    let tokenizer = tempfile::tempdir().unwrap();
    copy_policy(tokenizer.path(), data);
    fs::write(tokenizer.path().join("policy/chat_template.jinja"), "{{ messages }}").unwrap();
    fs::copy(data.join("coins.jsonl"), folder.join("moved.jsonl")).unwrap();
    let config = fs::read(run.dir().join("config.toml")).unwrap();
    let model = |folder: &Path| format!("model.dir={}", folder.join("policy").display());
    let saved_model = format!("saved is {}", data.join("policy").display());
    let saved_data = format!("saved is {}", data.join("coins.jsonl").display());
    let cases: &[(String, &[&str])] = &[
        (model(folder), &["model.dir: ", &saved_model, "given is "]),
        (model(tokenizer.path()), &["model.dir (tokenizer): ", &saved_model]),
        ("data.train=rl.jsonl".to_owned(), &["data.train: ", &saved_data, "rl.jsonl"]),
        ("data.held_out=coins.jsonl".to_owned(), &["data.held_out: ", "heldout.jsonl", "coins.jsonl"]),
    ];
    for (setting, words) in cases {
        let words: Vec<String> =
            ["GR0910", "begin a new run"].iter().chain(*words).map(|word| (*word).to_owned()).collect();
        for steps in ["run.steps=1", "run.steps=2"] {
            assert_refused(setting, run.resume().args(["--set", setting, "--set", steps]), &words);
        }
    }
    for steps in ["run.steps=1", "run.steps=2"] {
        let words = ["GR0209", "seed 0", "seed 5"].map(str::to_owned);
        assert_refused("another seed", run.resume().args(["--set", "seed=5", "--set", steps]), &words);
    }
    assert!(config == fs::read(run.dir().join("config.toml")).unwrap(), "who was refused has changed nothing");
    let moved = format!("data.train={}", folder.join("moved.jsonl").display());
    let same = succeed(run.resume().args(["--set", &moved]));
    assert!(text(&same.stderr).contains("is complete"), "a file may be moved: {}", text(&same.stderr));
}

fn a_complete_run_says_so(run: &Run) {
    let (before, epoch) = (support::tree(&run.dir()), run.epoch());
    let output = succeed(&mut run.resume());
    let summary = run.dir().join("summary.json");
    assert_eq!(text(&output.stderr), format!("the run run is complete; its summary is {}\n", summary.display()));
    assert_eq!(text(&output.stdout).trim_end(), fs::read_to_string(&summary).unwrap().trim_end());
    assert_eq!(run.epoch(), epoch, "no process has worked on it");
    let after = support::tree(&run.dir());
    let is_content = |name: &&PathBuf| !name.to_string_lossy().starts_with("run.db");
    let changed: Vec<_> =
        before.keys().filter(is_content).filter(|name| before.get(*name) != after.get(*name)).collect();
    assert!(changed.is_empty(), "{changed:?}");
}

/// A run belongs to the process that works on it, and to nobody when that is gone: not even to a process that has got its
/// number since.
#[test]
fn a_run_is_held_by_its_process_and_not_by_a_number() {
    let run = Run::new(&[
        "engine.embedded.count=0",
        "engine.external.far.url=http://127.0.0.1:9",
        "run.update_timeout_ms=600000",
        "run.step_retries=1",
    ]);
    let mut child = Run::spawn(&mut run.begin());
    support::wait_until("the start", || run.epoch() == 1 || child.try_wait().unwrap().is_some());
    let in_use = ["GR0208".to_owned(), run.dir().display().to_string(), format!("process {}", child.id())];
    assert_refused("a run in use", &mut run.resume(), &in_use);
    child.kill().unwrap();
    child.wait().unwrap();
    run.assert_no_sandbox_processes();

    let mut engine = greenroom();
    engine.args(["engine", "--bind", "127.0.0.1:0", "--model"]).arg(run.data().join("policy"));
    let mut other = Run::spawn(&mut engine);
    fs::write(run.dir().join("run.pid"), other.id().to_string()).unwrap();
    let goes_on = ["GR0207", "http://127.0.0.1:9"].map(str::to_owned);
    assert_refused("a reused number", run.resume().args(["--set", "run.update_timeout_ms=1500"]), &goes_on);
    other.kill().unwrap();
    other.wait().unwrap();
    run.assert_no_sandbox_processes();
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
