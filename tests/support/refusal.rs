//! Wrong input, made of sound input, and how it must be refused.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use super::{finish, text};

/// The sound policy, to be spoilt.
pub fn copy_policy(folder: &Path, data: &Path) {
    fs::create_dir(folder.join("policy")).unwrap();
    for entry in fs::read_dir(data.join("policy")).unwrap().flatten() {
        fs::copy(entry.path(), folder.join("policy").join(entry.file_name())).unwrap();
    }
}

/// The first task, changed.
pub fn change_task(folder: &Path, data: &Path, change: fn(&mut serde_json::Value)) {
    let rows = fs::read_to_string(data.join("rl.jsonl")).unwrap();
    let mut row: serde_json::Value = serde_json::from_str(rows.lines().next().unwrap()).unwrap();
    change(&mut row);
    fs::write(folder.join("rl.jsonl"), format!("{row}\n")).unwrap();
}

/// A model with an absurd size in its configuration.
pub fn change_model(folder: &Path, data: &Path, key: &str) {
    copy_policy(folder, data);
    let file = folder.join("policy/config.json");
    let mut config: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    config[key] = 2_000_000_000.into();
    fs::write(file, config.to_string()).unwrap();
}

/// A link to a device that never ends, under a name that should be a file's.
pub fn endless(folder: &Path, name: &str) {
    std::os::unix::fs::symlink("/dev/zero", folder.join(name)).unwrap();
}

fn has_code(line: &str) -> bool {
    line.match_indices("GR").any(|(at, _)| {
        let code = line.get(at..at + 6).unwrap_or_default();
        greenroom::explain::page(code).is_some()
    })
}

/// Runs a command that must fail, and checks how it does so. The error is one line, or one and a line for each problem.
pub fn assert_refused(name: &str, command: &mut Command, words: &[String]) -> String {
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
    assert!(has_code(from_error[0]), "{name} has no code to be explained:\n{said}");
    for word in words {
        assert!(from_error.iter().any(|line| line.contains(word.as_str())), "{name}: {word:?} is missing in\n{said}");
    }
    for noise in
        ["hush", "figment", "invalid type", "panicked", "backtrace", "Actor panicked", "thread '", "Some(", "Error {"]
    {
        assert!(!said.contains(noise), "{name}: {noise:?} is noise in\n{said}");
    }
    said
}
