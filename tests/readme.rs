//! What the README shows works: its commands exist, its configuration loads, its tasks are read.
//! (Its Rust example is compiled as a documentation test.)

#![allow(clippy::unwrap_used, clippy::panic)] // helpers of tests

use std::process::Command;

use greenroom::config::{Layers, load};
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

#[test]
fn the_configuration_shown_loads_and_lacks_nothing() {
    let shown = blocks("toml");
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
fn every_file_that_the_layout_names_is_there() {
    let layout = blocks("text");
    assert!(!layout.is_empty());
    for block in layout {
        for line in block.lines() {
            let folder = line.split_whitespace().next().unwrap_or_default();
            if folder.ends_with('/') {
                let at_root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
                let in_actors = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("actors").join(folder);
                assert!(
                    at_root.is_dir() || in_actors.is_dir(),
                    "{folder} is in the README's layout and not in the tree"
                );
            }
        }
    }
}
