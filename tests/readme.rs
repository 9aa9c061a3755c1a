//! What the README shows works: its commands exist, its configuration loads, its tasks are read.
//! (Its Rust example is compiled as a documentation test.)

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use greenroom::config::{EXAMPLE_VARIABLES, Layers, load};
use greenroom::rollout::Dataset;

const README: &str = include_str!("../README.md");

/// The fenced blocks of one language.
fn blocks(language: &str) -> Vec<&'static str> {
    let fence = format!("```{language}\n");
    README.split(fence.as_str()).skip(1).map(|rest| rest.split("```").next().unwrap()).collect()
}

#[test]
fn every_command_of_the_program_exists_with_the_options_shown() {
    let lines = blocks("sh").into_iter().flat_map(str::lines).filter_map(|line| line.strip_prefix("greenroom "));
    let mut seen = 0;
    for line in lines {
        let words: Vec<&str> = line.split('#').next().unwrap().split_whitespace().collect();
        let plain =
            |word: &&&str| !word.starts_with('-') && word.chars().all(|letter| letter.is_lowercase() || letter == '-');
        let verbs: Vec<&str> = words.iter().take_while(plain).copied().collect();
        let help = Command::new(env!("CARGO_BIN_EXE_greenroom")).args(&verbs).arg("--help").output().unwrap();
        let help_text = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.status.success(), "greenroom {verbs:?} --help: {}", String::from_utf8_lossy(&help.stderr));
        for option in words.iter().filter(|word| word.starts_with("--")) {
            assert!(help_text.contains(option), "greenroom {line}: {option} is no option of it");
        }
        seen += 1;
    }
    assert!(seen >= 5, "the README shows only {seen} commands of the program");
}

/// The TOML blocks that are a node's file, and those that are a run's.
fn tomls() -> (Vec<&'static str>, Vec<&'static str>) {
    blocks("toml").into_iter().partition(|text| text.contains("[cluster]"))
}

/// Every key of a table, by its path.
#[cfg(feature = "cluster")]
fn keys(table: &toml::Table, under: &str, found: &mut BTreeSet<String>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(table) => keys(table, &format!("{under}{key}."), found),
            _ => drop(found.insert(format!("{under}{key}"))),
        }
    }
}

#[test]
#[cfg(feature = "cluster")]
fn the_nodes_file_shown_loads_with_every_key_and_says_the_defaults() {
    use greenroom::node::NodeConfig;
    let (shown, _) = tomls();
    let [text] = shown[..] else { panic!("{} node files", shown.len()) };
    let dir = tempfile::tempdir().unwrap();
    let load = |text: &str| {
        let file = dir.path().join("node.toml");
        std::fs::write(&file, text).unwrap();
        NodeConfig::load(&file).unwrap_or_else(|error| panic!("{error}"))
    };
    let whole = load(text);
    let short = load(
        "run = \"mine\"\nconfig = [\"run.toml\"]\nstate_dir = \"state\"\n[cluster]\nnode = \"lead\"\n\
         roles = [\"controller\"]\n",
    );
    let (mut known, mut written) = Default::default();
    keys(&toml::Table::try_from(&whole).unwrap(), "", &mut known);
    keys(&text.parse().unwrap(), "", &mut written);
    // the run gives the cluster its name; links to single addresses are for few
    known.retain(|key| !["cluster.cluster", "dataplane.destinations"].contains(&key.as_str()));
    assert_eq!(written, known, "the README shows every key of a node's file, and no other");
    assert_eq!(
        (whole.gang_wait_s, whole.drain_s, whole.actor_threads, whole.run_directory()),
        (short.gang_wait_s, short.drain_s, short.actor_threads, short.run_directory())
    );
    assert_eq!((&whole.primary_roles, whole.termination_delay_s), (&short.primary_roles, short.termination_delay_s));
    assert_eq!(whole.dataplane.transfer, short.dataplane.transfer);
    let mut usual = short.cluster.clone();
    let cluster = whole.cluster;
    (usual.roles, usual.bind, usual.advertise) =
        (cluster.roles.clone(), cluster.bind.clone(), cluster.advertise.clone());
    (usual.seeds, usual.cookie_file, usual.tls) =
        (cluster.seeds.clone(), cluster.cookie_file.clone(), cluster.tls.clone());
    assert_eq!(cluster, usual);
    assert!(cluster.check().is_ok());
    let help = Command::new(env!("CARGO_BIN_EXE_greenroom")).args(["node", "--help"]).output().unwrap();
    let help = String::from_utf8_lossy(&help.stdout).into_owned();
    for row in table("| exit status | of `greenroom node` |") {
        assert!(
            help.contains(&format!(" {} when", row[0])) || help.contains(&format!(" {} after", row[0])),
            "{row:?} {help}"
        );
    }
}

#[test]
fn the_configuration_shown_loads_and_lacks_nothing() {
    let (_, shown) = tomls();
    assert!(!shown.is_empty());
    for text in shown {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("run.toml");
        std::fs::write(&file, text).unwrap();
        let loaded = load(&Layers { files: vec![file], ..Layers::default() }).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(loaded.config.problems(), Vec::<String>::new(), "{text}");
    }
}

#[test]
fn the_tasks_shown_are_tasks() {
    for text in blocks("json") {
        Dataset::parse(text, "README.md").unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn the_layout_names_what_is_there_and_every_room() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let folders =
        |text: &'static str| text.lines().filter_map(|line| line.split_whitespace().next()?.strip_suffix('/'));
    let named: BTreeSet<String> = blocks("text").into_iter().flat_map(folders).map(str::to_owned).collect();
    for folder in &named {
        let is_there = root.join(folder).is_dir() || root.join("actors").join(folder).is_dir();
        assert!(is_there, "{folder} is in the README's layout and not in the tree");
    }
    let rooms = std::fs::read_dir(root.join("actors")).unwrap();
    let rooms = rooms.map(|room| room.unwrap().file_name().into_string().unwrap());
    assert_eq!(rooms.filter(|room| !named.contains(room)).collect::<Vec<_>>(), Vec::<String>::new());
}

/// The first cells of the table with this head.
fn table(head: &str) -> Vec<Vec<&'static str>> {
    let rows = README.split(head).nth(1).unwrap_or_else(|| panic!("there is no table {head}"));
    let rows = rows.lines().skip(2).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect()).collect()
}

#[test]
fn the_examples_variables_are_those_that_are_understood() {
    let ticked = |cell: &'static str| cell.split('`').nth(1).unwrap_or_default();
    let shown: BTreeMap<&str, &str> =
        table("| variable | key |").into_iter().map(|row| (ticked(row[0]), ticked(row[1]))).collect();
    let known: BTreeMap<&str, &str> = EXAMPLE_VARIABLES.iter().map(|variable| (variable.name, variable.key)).collect();
    assert_eq!(shown, known);
    for row in table("| variable | key |") {
        let variable = EXAMPLE_VARIABLES.iter().find(|variable| variable.name == ticked(row[0])).unwrap();
        let says_scaled = row[1].contains("seconds") || row[1].contains("likewise");
        assert_eq!(says_scaled, variable.scale != 1, "{row:?}");
    }
    // each key takes what its variable gives
    for variable in EXAMPLE_VARIABLES {
        let text = match variable.name {
            "SLIME_MODE" => "train_async",
            "WEIGHT_MODE" => "full",
            _ => "1",
        };
        let environment = vec![(variable.name.to_owned(), text.to_owned())];
        let loaded = load(&Layers { environment, ..Layers::default() }).unwrap_or_else(|error| panic!("{error}"));
        let origin = format!("# {}", variable.name);
        let origins = loaded.with_origins();
        let line = origins.lines().find(|line| line.starts_with(&format!("{} = ", variable.key)));
        assert!(line.is_some_and(|line| line.ends_with(&origin)), "{}: {line:?}", variable.name);
    }
}

#[test]
fn the_exit_statuses_are_in_the_help_and_as_the_table_says() {
    let shown: Vec<&str> = table("| exit status | of `greenroom` |").into_iter().map(|row| row[0]).collect();
    assert_eq!(shown, ["0", "1", "2", "3", "4"]);
    let run = |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_greenroom")).args(arguments).output().unwrap();
    for arguments in [&["--help"][..], &["up", "--help"]] {
        let help = run(arguments);
        let text = String::from_utf8_lossy(&help.stdout).into_owned();
        assert!(help.status.success() && shown.iter().all(|status| text.contains(status)), "{text}");
    }
    assert_eq!(run(&["explain", "GR0202"]).status.code(), Some(0));
    assert_eq!(run(&["explain", "GR9999"]).status.code(), Some(1));
    assert_eq!(run(&["up"]).status.code(), Some(2));
}
