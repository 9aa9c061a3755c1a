//! A person looks at a run and steers it: `greenroom ctl` and `greenroom shell` against a real node that plays all roles.
//!
//! The promises: what is shown is what the run's own database says; who may only look cannot steer; whatever steers is in
//! the history, with who and what; a run that is told to stop does, and says so by its exit status.

#![cfg(all(feature = "torch", feature = "cluster"))]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::disallowed_methods)] // helpers of tests

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use support::ledger::Ledger;
use support::{finish, finish_child, greenroom, succeed, text, wait_until};

mod support;

/// A node that plays all roles, and certificates for people.
struct Cluster {
    dir: tempfile::TempDir,
    node: Option<Child>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // only where a test failed; the child is this test's own
        if let Some(node) = &mut self.node {
            let _ = node.kill();
            let _ = node.wait();
        }
    }
}

impl Cluster {
    fn start() -> Self {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let at = |name: &str| dir.path().join(name);
        succeed(greenroom().args(["ca", "create", "--dir"]).arg(at("ca")));
        for (name, role) in [("all", "node"), ("ada", "operator"), ("eve", "viewer")] {
            let mut issue = greenroom();
            issue.args(["ca", "issue", "--name", name, "--role", role, "--host", "127.0.0.1", "--dir"]).arg(at("ca"));
            succeed(issue.arg("--out").arg(at(name)));
        }
        fs::write(at("cookie"), "0123456789abcdef0123456789abcdef\n").unwrap();
        fs::set_permissions(at("cookie"), fs::Permissions::from_mode(0o600)).unwrap();
        let data = support::data();
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        fs::write(
            at("small.toml"),
            format!(
                "seed = 0\n[model]\ninit_weights = false\ndir = \"policy\"\n\
                 [data]\nroot = {data:?}\ntrain = \"coins.jsonl\"\ndemonstrations = \"few.jsonl\"\n\
                 [warm_start]\nlearning_rate = 1e-6\n\
                 [run]\nsteps = 500\ngroups_per_batch = 3\nsamples_per_group = 4\nwarn_after_steps_without_signal = 0\n\
                 [run.evaluation]\nbefore_and_after = false\n"
            ),
        )
        .unwrap();
        fs::write(
            at("node.toml"),
            format!(
                "run = \"looked-at\"\nconfig = [{:?}, \"small.toml\"]\nstate_dir = \"state\"\n\
                 [cluster]\nnode = \"all\"\nbind = \"127.0.0.1:0\"\n\
                 roles = [\"controller\", \"rollout\", \"engine\", \"trainer\", \"sandbox\"]\ncookie_file = \"cookie\"\n\
                 [cluster.tls]\nca = \"all/ca.pem\"\ncertificate = \"all/all.pem\"\nkey = \"all/all.key\"\n",
                repository.join("config/quickstart/quickstart.toml")
            ),
        )
        .unwrap();
        let mut node = greenroom();
        node.args(["node", "--config"]).arg(at("node.toml"));
        node.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let node = Some(node.spawn().unwrap());
        let mut cluster = Self { dir, node };
        wait_until("the node's address", || {
            let ended = cluster.node.as_mut().unwrap().try_wait().unwrap();
            if ended.is_some() {
                let output = finish_child(cluster.node.take().unwrap());
                panic!("the node ended:\n{}", text(&output.stderr));
            }
            cluster.address().is_some()
        });
        cluster
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn address(&self) -> Option<String> {
        let address = fs::read_to_string(self.path("state/address")).ok()?;
        Some(address.trim().to_owned()).filter(|address| !address.is_empty())
    }

    fn way(&self, command: &mut Command, who: &str) {
        command.args(["--run", "looked-at", "--at", &self.address().unwrap(), "--tls-dir"]).arg(self.path(who));
        command.arg("--cookie-file").arg(self.path("cookie"));
    }

    /// Does one verb as somebody.
    fn ctl(&self, who: &str, words: &[&str]) -> Output {
        let mut command = greenroom();
        command.arg("ctl");
        self.way(&mut command, who);
        finish(command.args(words))
    }

    /// Does one verb that must succeed, for its JSON.
    fn json(&self, words: &[&str]) -> Value {
        let output = self.ctl("ada", &[&["-o", "json"], words].concat());
        assert!(output.status.success(), "{words:?} ended with {}:\n{}", output.status, text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Does one verb as somebody; gives its exit status, and what it printed and said.
    fn said(&self, who: &str, words: &[&str]) -> (i32, String) {
        let output = self.ctl(who, words);
        (output.status.code().unwrap(), format!("{}{}", text(&output.stdout), text(&output.stderr)))
    }

    fn until(&self, what: &str, words: &[&str], holds: impl Fn(&Value) -> bool) {
        wait_until(what, || holds(&self.json(words)));
    }
}

#[test]
fn a_run_is_looked_at_and_steered_by_whoever_may() {
    let mut cluster = Cluster::start();
    cluster.until("a first step", &["status"], |status| status["step"].as_u64() > Some(0));
    looks_tell_what_the_run_knows(&cluster);
    wrong_words_are_refused_with_the_right_ones(&cluster);
    only_an_operator_steers(&cluster);
    what_steers_is_in_the_history(&cluster);
    settings_are_changed_only_where_they_can_be(&cluster);
    the_doctor_and_the_bundle_look_at_everything(&cluster);
    the_shell_does_the_same_verbs(&cluster);

    let (status, said) = cluster.said("ada", &["stop", "--after-step"]);
    assert_eq!(status, 0, "{said}");
    let node = finish_child(cluster.node.take().unwrap());
    assert_eq!(node.status.code(), Some(3), "stopped, and can go on:\n{}", text(&node.stderr));
    let ledger = Ledger::open(&cluster.path("state/run"));
    assert_eq!(ledger.column("SELECT ending FROM processes"), ["stopped"]);
}

fn looks_tell_what_the_run_knows(cluster: &Cluster) {
    let status = cluster.json(&["status"]);
    assert_eq!((&status["run"], &status["steps"]), (&"looked-at".into(), &500.into()), "{status:#}");
    assert_eq!((&status["engines"], &status["nodes_up"]), (&1.into(), &1.into()), "{status:#}");
    assert_eq!(status["unanswered"], Value::Array(Vec::new()));
    assert!(!status["bottleneck"].as_str().unwrap().is_empty());
    let nodes = cluster.json(&["nodes"]);
    let node = nodes.as_array().unwrap().iter().find(|node| node["node"] == "all").unwrap();
    assert_eq!((&node["state"], &node["roles"][0]), (&"alive".into(), &"controller".into()), "{node:#}");
    assert!(node["disk_free_bytes"].as_u64() > Some(0) && node["certificate_days"].as_i64() > Some(300), "{node:#}");
    let engines = cluster.json(&["engines"]);
    assert_eq!(engines.as_array().unwrap().len(), 1, "{engines:#}");
    assert!(engines[0]["engine"].as_str().unwrap().starts_with("all/"), "{engines:#}");
    let weights = cluster.json(&["weights"]);
    assert_eq!(weights[0]["kind"], "publisher", "{weights:#}");

    let count = cluster.json(&["sql", "SELECT count(*) AS steps FROM steps"]);
    let ledger = Ledger::open(&cluster.path("state/run"));
    let later: u64 = ledger.column("SELECT count(*) FROM steps")[0].parse().unwrap();
    assert!((1..=later).contains(&count[0]["steps"].as_u64().unwrap()), "{count} of {later}");
    let ended = cluster.json(&["sql", "SELECT rollout FROM rollouts WHERE trained_step = 1 ORDER BY rollout LIMIT 1"]);
    let rollout = ended[0]["rollout"].as_str().unwrap();
    let (_, story) = cluster.said("eve", &["why", rollout]);
    for told in ["it was issued", "it was given lease", "came from all/", "reward", "trained on in step 1"] {
        assert!(story.contains(told), "{told} is missing in:\n{story}");
    }
    let (status, said) = cluster.said("ada", &["sql", "DELETE FROM steps"]);
    assert!(status == 1 && said.contains("GR0933"), "{said}");
    let events = cluster.json(&["events", "-n", "5"]);
    assert_eq!(events.as_array().unwrap().len(), 5);
    assert!(events[4]["body"]["event"].is_string(), "{events:#}");
    for verb in ["tree", "ps", "pools", "rollouts", "leases", "status", "nodes", "engines", "weights"] {
        let (status, said) = cluster.said("eve", &[verb]);
        assert!(status == 0 && !said.is_empty(), "{verb}: {said}");
    }
    let inspected = cluster.json(&["inspect", "conductor"]);
    assert_eq!(inspected["state"]["steps"], 500, "{inspected:#}");
}

fn wrong_words_are_refused_with_the_right_ones(cluster: &Cluster) {
    let cases: [(&[&str], &str); 4] = [
        (&["add-engine", "pw", "http://bob:hunter2@127.0.0.1:9/?token=x"], "engine.client.credentials.api_key"),
        (&["statsu"], "did you mean status?"),
        (&["pause", "everything"], "pause rollouts, or pause training"),
        (&["status", "-o", "xml"], "table, json or yaml"),
    ];
    for (words, expected) in cases {
        let (status, said) = cluster.said("ada", words);
        assert!(status == 2 && said.contains("GR0930") && said.contains(expected), "{words:?}: {status} {said}");
    }
    let (status, said) = cluster.said("all", &["status"]);
    assert!(status == 1 && said.contains("GR0935"), "a node's certificate would fence the node: {said}");
    assert!(cluster.said("eve", &["explain", "GR0932"]).1.contains("role operator"));
}

fn only_an_operator_steers(cluster: &Cluster) {
    for words in [["pause", "rollouts"], ["stop", "--now"], ["cancel", "t00001-g000-s00-a00"]] {
        let (status, said) = cluster.said("eve", &words);
        assert!(status == 5 && said.contains("GR0932") && said.contains("eve-"), "{words:?}: {status} {said}");
    }
    for (what, flag) in [("rollouts", "rollouts_paused"), ("training", "training_paused")] {
        assert_eq!(cluster.said("ada", &["pause", what]).0, 0);
        let status = cluster.json(&["status"]);
        assert_eq!(status[flag], true, "{status:#}");
        let sentence = status["bottleneck"].as_str().unwrap();
        assert!(sentence.contains(&format!("an operator holds {what}")), "{sentence}");
        assert_eq!(cluster.said("ada", &["resume", what]).0, 0);
        assert_eq!(cluster.json(&["status"])[flag], false);
    }
    let step = cluster.json(&["status"])["step"].as_u64();
    cluster.until("another step", &["status"], |status| status["step"].as_u64() > step);
}

fn what_steers_is_in_the_history(cluster: &Cluster) {
    let ledger = Ledger::open(&cluster.path("state/run"));
    let steered = ledger.column(
        "SELECT json_extract(body, '$.what') || ' by ' || json_extract(body, '$.by') FROM events
         WHERE event = 'steered' ORDER BY seq",
    );
    let whats = ["pause rollouts", "resume rollouts", "pause training", "resume training"];
    assert_eq!(steered.len(), whats.len(), "those that were refused are not there: {steered:?}");
    for (steered, what) in steered.iter().zip(whats) {
        assert!(steered.starts_with(&format!("{what} by operator ada-")), "{steered}");
    }
    let seen = cluster.json(&["events", "-n", "1000"]);
    assert!(!seen.to_string().contains("hunter2"));
    let seen = seen.as_array().unwrap().iter().filter(|event| event["event"] == "steered").count();
    assert!(seen <= whats.len());
}

fn settings_are_changed_only_where_they_can_be(cluster: &Cluster) {
    let (status, said) = cluster.said("ada", &["set", "rollout.max_running", "3"]);
    assert!(status == 0 && said.contains("rollout.max_running is 3 now"), "{said}");
    let (status, said) = cluster.said("ada", &["set", "run.train_timeout_ms", "5m"]);
    assert!(status == 0 && said.contains("is 300000 now"), "{said}");
    let settings = cluster.json(&["set"]);
    let of = |key: &str| settings.as_array().unwrap().iter().find(|row| row["key"] == key).unwrap().clone();
    assert_eq!(of("rollout.max_running")["value"], 3);
    assert_eq!(of("run.train_timeout_ms")["value"], 300_000);
    assert_eq!(of("run.step_retries")["value"], of("run.step_retries")["configured"]);
    let (status, said) = cluster.said("ada", &["checkpoint"]);
    assert!(status == 0 && said.contains("checkpoints/step-0"), "{said}");
    let fields = cluster.json(&["checkpoint"]);
    let path = fields["path"].as_str().unwrap();
    assert!(fields["step"].as_u64() > Some(0) && fields["node"] == "all", "{fields:#}");
    assert!(Path::new(path).is_absolute() && path.contains("/checkpoints/step-0"), "{fields:#}");
    for (words, expected) in [
        (&["set", "rollout.max_runing", "5"] as &[&str], "did you mean rollout.max_running?"),
        (&["set", "run.steps", "5"], "rollout.max_running"),
        (&["set", "rollout.max_running", "0"], "must be at least 1"),
        (&["set", "rollout.max_running", "many"], "write a whole number"),
        (&["set", "rollout.guard_ms", "30d"], "sandbox_lifetime_ms"),
        (&["drain", "all"], "has the role controller"),
        (&["rm-engine", "nowhere/1"], "there is no engine"),
        (&["drain", "nowhere"], "there is no engine"),
        (&["cancel", "t09999-g000-s00-a00"], "neither waits nor runs"),
        (&["inspect", "nothing"], "there are:"),
    ] {
        let (status, said) = cluster.said("ada", words);
        assert!(status == 1 && said.contains("GR0933") && said.contains(expected), "{words:?}: {status} {said}");
    }
    let engine = cluster.json(&["engines"])[0]["engine"].as_str().unwrap().to_owned();
    let (status, said) = cluster.said("ada", &["drain", &engine]);
    assert!(status == 0 && said.contains("the run waits"), "it is the only one: {said}");
    cluster.until("a drained engine", &["engines"], |engines| engines[0]["state"] == "draining");
    assert_eq!(cluster.said("ada", &["undrain", &engine]).0, 0);
    cluster.until("a serving engine", &["engines"], |engines| engines[0]["state"] == "serving");
    assert_eq!(cluster.said("ada", &["publish"]).0, 0);
    let step = cluster.json(&["status"])["step"].as_u64();
    cluster.until("a step after that", &["status"], |status| status["step"].as_u64() > step);
}

fn the_doctor_and_the_bundle_look_at_everything(cluster: &Cluster) {
    let output = cluster.ctl("eve", &["doctor", "-o", "json"]);
    let findings: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let worst =
        ["well", "doubtful", "ill"].iter().rposition(|health| findings.iter().any(|one| one["health"] == *health));
    assert_eq!(output.status.code(), Some(worst.unwrap() as i32), "{findings:#?}");
    let parts: Vec<&str> = findings.iter().map(|finding| finding["part"].as_str().unwrap()).collect();
    for part in ["actors", "node all", "engines", "weights", "weight checksums"] {
        assert!(parts.iter().any(|found| found.starts_with(part)), "{part} is not in {parts:?}");
    }

    let path = cluster.path("bundle.tar");
    let file = path.to_str().unwrap();
    let (status, said) = cluster.said("eve", &["bundle", file]);
    assert_eq!(status, 0, "{said}");
    let names = succeed(Command::new("tar").args(["-tf", file]));
    for name in ["config.toml", "node.toml", "events.jsonl", "status.json", "doctor.txt", "logs/all.log"] {
        assert!(text(&names.stdout).contains(&format!("greenroom-bundle/{name}")), "{name}:\n{}", text(&names.stdout));
    }
    let whole = fs::read(&path).unwrap();
    let cookie = fs::read_to_string(cluster.path("cookie")).unwrap();
    assert!(!text(&whole).contains(cookie.trim()) && !text(&whole).contains("PRIVATE KEY"));
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    let (status, said) = cluster.said("eve", &["bundle", file]);
    assert!(status == 1 && said.contains("give another name"), "nothing is overwritten: {said}");
}

fn the_shell_does_the_same_verbs(cluster: &Cluster) {
    let mut command = greenroom();
    command.arg("shell").env("HOME", cluster.dir.path());
    cluster.way(&mut command, "eve");
    let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = b"status\nnodes \xff\nsql \"SELECT id FROM run\" -o json\nstatsu\npause rollouts\ncheckpoint\nquit\n";
    shell.stdin.take().unwrap().write_all(lines).unwrap();
    let output = finish_child(shell);
    let (shown, said) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(5), "that of the last failure, `pause` by a viewer: {shown}{said}");
    assert!(said.contains("not UTF-8") && shown.contains("checkpoints/step-0"), "{shown}{said}");
    assert!(shown.contains("run looked-at: step") && shown.contains("\"id\": \"looked-at\""), "{shown}{said}");
    assert!(said.contains("GR0932") && said.contains("did you mean status?"), "{said}");
}
