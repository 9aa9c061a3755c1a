//! What a person gets to read about a configuration, right or wrong.

use super::*;

fn layers(toml: &str, environment: &[(&str, &str)], settings: &[&str]) -> (tempfile::TempDir, Layers) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("run.toml");
    std::fs::write(&file, toml).unwrap();
    let environment = environment.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
    let settings = settings.iter().map(|setting| (*setting).to_owned()).collect();
    (dir, Layers { files: vec![file], environment, settings })
}

#[test]
fn later_layers_win_and_say_where_they_come_from() {
    let environment = [
        ("GREENROOM__RUN__STEPS", "7"),
        ("AGENT_EXEC_TIMEOUT_SEC", "45"),
        ("SLIME_MODE", "async"),
        ("ROLLOUT_SHUFFLE", "0"),
        ("PATH", "/bin"),
    ];
    let toml =
        "seed = 3\n[run]\nsteps = 5\ngroups_per_batch = 4\n[rollout.template_variables]\nenable_thinking = false";
    let settings = ["run.temperature=0.7", "data.root=/a folder", "trainer.optimizer.learning_rate=4e-3"];
    let (_dir, layers) = layers(toml, &environment, &settings);
    let loaded = load(&layers).unwrap();
    let config = &loaded.config;
    assert_eq!((config.seed, config.run.steps, config.run.groups_per_batch), (3, 7, 4));
    assert_eq!((config.rollout.exec_timeout_ms, config.rollout.shuffle), (45_000, false));
    assert_eq!(config.run.schedule, greenroom_run::ScheduleMode::Async);
    assert!((config.run.temperature - 0.7).abs() < 1e-6);
    assert_eq!(config.data.root, Some("/a folder".into()));
    assert_eq!(config.rollout.template_variables["enable_thinking"], false);
    let origins = loaded.with_origins();
    let file = layers.files[0].display();
    for line in [
        "run.steps = 7  # GREENROOM__RUN__STEPS",
        "run.samples_per_group = 8  # default",
        &format!("run.groups_per_batch = 4  # {file}:4"),
        &format!("rollout.template_variables.enable_thinking = false  # {file}:6"),
        "run.temperature = 0.7  # --set run.temperature",
        "run.schedule = \"async\"  # SLIME_MODE",
        "run.min_trainable_fraction = 0.5  # default",
        "data.held_out = (not set)  # default",
    ] {
        assert!(origins.lines().any(|found| found == line), "{line} is missing in:\n{origins}");
    }
    #[cfg(feature = "torch")]
    assert!(origins.contains("trainer.optimizer.learning_rate = 0.004  # "), "{origins}");
}

#[test]
fn what_is_shown_can_be_loaded_and_is_the_same() {
    let toml = "seed = 3\n[run]\ntemperature = 0.7\n[data.images.\"a.b\"]\nsource_dir = \"x\"\n[engine.external.far]\nurl = \"http://h:1\"";
    let (_dir, given) = layers(toml, &[], &["seed=9223372036854775807"]);
    let loaded = load(&given).unwrap();
    let (_dir, again) = layers(&loaded.to_toml(), &[], &[]);
    assert_eq!(load(&again).unwrap().config, loaded.config);
}

/// A wrong layer and the whole line that is said about it; `{file}` stands for the file.
struct Case {
    toml: &'static str,
    environment: &'static [(&'static str, &'static str)],
    settings: &'static [&'static str],
    line: &'static str,
}

const fn of_file(toml: &'static str, line: &'static str) -> Case {
    Case { toml, environment: &[], settings: &[], line }
}

const fn of_setting(settings: &'static [&'static str], line: &'static str) -> Case {
    Case { toml: "", environment: &[], settings, line }
}

const CASES: &[Case] = &[
    of_file("sed = 1", "unknown key sed: did you mean seed? (from {file}:1)"),
    of_file("[run]\n\nstepz = 5", "unknown key run.stepz: did you mean run.steps? (from {file}:3)"),
    of_file("[agent]\nzzz = 1", "unknown key agent.zzz: known here are agent.file (from {file}:2)"),
    of_setting(
        &["run.evaluation.held_otu=true"],
        "unknown key run.evaluation.held_otu: did you mean run.evaluation.held_out? (from --set run.evaluation.held_otu)",
    ),
    of_file(
        "[data.images.money]\nsorce_dir = \"x\"",
        "unknown key data.images.money.sorce_dir: did you mean data.images.money.source_dir? (from {file}:2)",
    ),
    of_file(
        "[run]\nsteps = \"many\"",
        "run.steps must be a whole number of at least 0, but is \"many\" (from {file}:2)",
    ),
    of_setting(
        &["run.samples_per_group=-1"],
        "run.samples_per_group must be a whole number from 0 to 4294967295, but is -1 (from --set run.samples_per_group)",
    ),
    Case {
        toml: "",
        environment: &[("GREENROOM__ROLLOUT__MAX_TURNS", "2.5")],
        settings: &[],
        line: "rollout.max_turns must be a whole number from 0 to 4294967295, but is 2.5 (from GREENROOM__ROLLOUT__MAX_TURNS)",
    },
    Case {
        toml: "",
        environment: &[("AGENT_MAX_TURNS", "few")],
        settings: &[],
        line: "rollout.max_turns must be a whole number from 0 to 4294967295, but is \"few\" (from AGENT_MAX_TURNS)",
    },
    of_setting(
        &["run.schedule=asink"],
        "run.schedule must be one of \"sync\", \"async\", but is \"asink\": did you mean \"async\"? (from --set run.schedule)",
    ),
    of_setting(
        &["run.schedule=3"],
        "run.schedule must be one of \"sync\", \"async\", but is 3 (from --set run.schedule)",
    ),
    of_setting(
        &["rollout.shuffle=True"],
        "rollout.shuffle must be true or false, but is \"True\" (from --set rollout.shuffle)",
    ),
    of_setting(
        &["run.temperature=nan"],
        "run.temperature must be a number, but is \"nan\" (from --set run.temperature)",
    ),
    of_setting(&["data.root=17"], "data.root must be a path in quotes, but is 17 (from --set data.root)"),
    of_setting(&["run=3"], "run must be a table, but is 3 (from --set run)"),
    of_setting(
        &["run.steps.x=3"],
        "run.steps must be a whole number of at least 0, but is {\"x\":3} (from --set run.steps.x)",
    ),
    of_setting(
        &["sandbox.local.read_only_paths=[\"/usr\", 3]"],
        "sandbox.local.read_only_paths[1] must be a path in quotes, but is 3 (from --set sandbox.local.read_only_paths)",
    ),
    of_file("[engine.external.far]\nmax_in_flight = 3", "engine.external.far.url is missing (from {file}:2)"),
    of_setting(
        &["engine.client.credentials.api_key=hush"],
        "engine.client.credentials.api_key must be a table with one of the keys env, file (from --set engine.client.credentials.api_key)",
    ),
    of_setting(&["nonsense"], "--set nonsense must be KEY=VALUE, such as run.steps=10"),
    of_setting(
        &["seed=99999999999999999999"],
        "seed must be a whole number of at least 0, but is 1e+20 (from --set seed)",
    ),
];

#[test]
fn a_problem_names_key_source_what_was_given_and_what_is_right() {
    for case in CASES {
        let (_dir, layers) = layers(case.toml, case.environment, case.settings);
        let expected = case.line.replace("{file}", &layers.files[0].display().to_string());
        assert_eq!(load(&layers).unwrap_err().problems, [expected]);
    }
}

#[test]
fn every_problem_is_told_at_once() {
    // all cases that stand in no other's way, in one configuration, with numbers that only a run refuses
    let toml = "sed = 1\n[run]\nstepz = 5\nsteps = \"many\"\nsamples_per_group = 1\n[rollout]\nmax_turns = 2.5\n\
                top_p = 0.0\n[model]\ndir = \"m\"\n[engine.embedded]\ncount = 1\ndevice = \"gpu\"\n[data]\ntrian = \"t\"";
    let environment = [("GREENROOM__WEIGHTS__MODE", "most"), ("ROLLOUT_BATCH_SIZE", "0")];
    let (_dir, layers) =
        layers(toml, &environment, &["nonsense", "run.schedule=asink", "engine.client.deadlines.load_ms=0"]);
    let error = load_for_run(&layers).unwrap_err();
    for words in [
        "unknown key sed: did you mean seed?",
        "unknown key run.stepz: did you mean run.steps?",
        "run.steps must be a whole number",
        "rollout.max_turns must be a whole number",
        "--set nonsense must be KEY=VALUE",
        "run.schedule must be one of",
        "weights.mode must be one of",
        "unknown key data.trian: did you mean data.train?",
        "run.samples_per_group: must be at least 2",
        "run.groups_per_batch: must be at least 1",
        "rollout.top_p is 0",
        "engine.embedded.device is \"gpu\"",
        "engine.client.deadlines.load_ms is 0",
    ] {
        assert!(error.problems.iter().any(|problem| problem.contains(words)), "{words} is missing in {error}");
    }
    assert_eq!(error.problems.len(), 13, "each once, and nothing that follows from another: {error}");
    let sourced = |words: &str, source: &str| {
        let found = error.problems.iter().find(|problem| problem.contains(words)).unwrap();
        assert!(found.ends_with(source), "{found}");
    };
    sourced("engine.client.deadlines.load_ms", "at least 1 (from --set engine.client.deadlines.load_ms)");
    sourced("engine.embedded.device", &format!("auto (from {}:13)", layers.files[0].display()));
    sourced("run.groups_per_batch", "(0, from ROLLOUT_BATCH_SIZE)");
    sourced("run.samples_per_group", &format!("(1, from {}:5)", layers.files[0].display()));
}

#[test]
fn a_file_that_is_no_toml_is_named_with_its_line() {
    let (_dir, layers) = layers("seed = 1\n[run\nsteps = 2\n", &[], &[]);
    let error = load(&layers).unwrap_err();
    assert!(error.problems[0].contains("run.toml:2:"), "{error}");
    for (path, words) in [("/nowhere/run.toml", "No such file"), ("/dev/zero", "no regular file"), ("/", "a directory")]
    {
        let other = Layers { files: vec![path.into()], ..Layers::default() };
        let error = load(&other).unwrap_err();
        assert!(error.problems[0].contains(path) && error.problems[0].contains(words), "{error}");
    }
}
