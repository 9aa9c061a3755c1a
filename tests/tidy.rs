//! The repository keeps to its own rules: which crate may know which, where versions stand, how long a file may be, what lies
//! at the top level, which words do not belong here, and that every error code has its page.
//!
//! Each finding names file, line and remedy. The rules are functions of names and texts, so that each is also shown to find
//! what it is there for.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)] // helpers of tests

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

/// A breach of a rule.
struct Finding {
    file: String,
    line: usize,
    what: String,
    remedy: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}: {}\n    remedy: {}", self.file, self.line, self.what, self.remedy)
    }
}

/// A file by its path from the root, and its text.
struct Source {
    path: String,
    text: String,
}

impl Source {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn finding(&self, line: usize, what: impl Into<String>, remedy: &'static str) -> Finding {
        Finding { file: self.path.clone(), line, what: what.into(), remedy }
    }

    /// The first line, counted from one, that begins with `start`.
    fn line_of(&self, start: &str) -> usize {
        self.text.lines().position(|line| line.starts_with(start)).map_or(1, |index| index + 1)
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// All text files that people wrote; recorded data is none of them.
fn sources() -> Vec<Source> {
    const WRITTEN: &[&str] = &["rs", "toml", "md", "py", "sh", "yaml", "yml", "json", "jinja", "txt"];
    const NOT_OURS: &[&str] =
        &["target", "runs", "fixtures", "node_modules", "__pycache__", ".git", ".venv", ".libtorch", "results"];
    let mut found = Vec::new();
    let mut folders = vec![root()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !path.is_symlink() {
                if !NOT_OURS.contains(&name.as_str()) {
                    folders.push(path);
                }
                continue;
            }
            let extension = path.extension().unwrap_or_default().to_string_lossy().into_owned();
            let relative = path.strip_prefix(root()).unwrap().to_string_lossy().into_owned();
            if WRITTEN.contains(&extension.as_str()) || relative == ".ci/run" {
                // a file that vanishes while we look is somebody's temporary one
                found.extend(std::fs::read_to_string(&path).map(|text| Source { path: relative, text }));
            }
        }
    }
    found.sort_by(|one, other| one.path.cmp(&other.path));
    assert!(found.len() > 100, "only {} files seen: the search is broken", found.len());
    found
}

fn assert_none(findings: &[Finding]) {
    let lines: Vec<String> = findings.iter().map(ToString::to_string).collect();
    assert!(findings.is_empty(), "{} findings\n{}", findings.len(), lines.join("\n"));
}

// Which crate may know which.

/// What each crate may know of the workspace. Families know each other's messages only; `src` introduces them to each other.
const MAY_KNOW: &[(&str, &[&str])] = &[
    ("greenroom-core", &[]),
    ("greenroom-messages", &["greenroom-core"]),
    ("greenroom-cluster", &["greenroom-core", "greenroom-identity", "greenroom-dataplane"]),
    ("greenroom-tokens", &["greenroom-core"]),
    ("greenroom-engine", &["greenroom-core", "greenroom-messages"]),
    ("greenroom-identity", &["greenroom-core"]),
    ("greenroom-dataplane", &["greenroom-core", "greenroom-identity"]),
    ("greenroom-rollout", &["greenroom-core", "greenroom-messages", "greenroom-tokens"]),
    ("greenroom-run", &["greenroom-core", "greenroom-messages"]),
    ("greenroom-sandbox", &["greenroom-core", "greenroom-messages"]),
    ("greenroom-weights", &["greenroom-core", "greenroom-messages"]),
    // the network is a low room, too: the embedded engine in it and the trainer above it are its two uses
    ("greenroom-policy", &["greenroom-core", "greenroom-messages", "greenroom-tokens"]),
    ("greenroom-trainer", &["greenroom-core", "greenroom-messages", "greenroom-policy"]),
    ("greenroom-setup", &[]),
];

/// Wiring and measuring: these may know every family.
const MAY_KNOW_ALL: &[&str] = &["greenroom", "greenroom-sim", "greenroom-benchmark"];

/// These may link libtorch; of `MAY_KNOW_ALL` only behind a feature.
const MAY_LINK_TORCH: &[&str] = &["greenroom-policy", "greenroom-trainer", "greenroom", "greenroom-benchmark"];

const DEPENDENCY_TABLES: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];

fn dependency_findings(manifest: &Source) -> Vec<Finding> {
    let parsed: toml::Table = manifest.text.parse().unwrap();
    let name = parsed["package"]["name"].as_str().unwrap();
    let mut findings = Vec::new();
    let known = MAY_KNOW.iter().find(|(known, _)| *known == name).map(|(_, may)| *may);
    let all = MAY_KNOW_ALL.contains(&name);
    if known.is_none() && !all {
        findings.push(manifest.finding(
            1,
            format!("{name} is a new crate"),
            "give it a row in MAY_KNOW of tests/tidy.rs",
        ));
    }
    let tables = DEPENDENCY_TABLES.iter().filter_map(|table| parsed.get(*table)?.as_table());
    for (dependency, form) in tables.flatten() {
        let line = manifest.line_of(dependency);
        let ours = dependency.starts_with("greenroom");
        if ours && !all && !known.unwrap_or_default().contains(&dependency.as_str()) {
            let what = format!("{name} depends on {dependency}");
            findings.push(manifest.finding(
                line,
                what,
                "speak through greenroom-messages; src/ introduces families to each other",
            ));
        }
        let torch = dependency == "tch" || dependency == "torch-sys";
        if torch && (!MAY_LINK_TORCH.contains(&name) || all && form.get("optional").is_none()) {
            let what = format!("{name} links libtorch");
            findings.push(manifest.finding(
                line,
                what,
                "only policy and trainer do, and others behind their feature `torch`",
            ));
        }
        let keys: Vec<&str> = form.as_table().map(|form| form.keys().map(String::as_str).collect()).unwrap_or_default();
        if !keys.contains(&"workspace") || keys.iter().any(|key| *key != "workspace" && *key != "optional") {
            let what = format!("{dependency} has a version or features of its own");
            findings.push(manifest.finding(
                line,
                what,
                "name them in [workspace.dependencies] and write `workspace = true` here",
            ));
        }
    }
    findings
}

fn package_findings(manifest: &Source) -> Vec<Finding> {
    let parsed: toml::Table = manifest.text.parse().unwrap();
    let from_workspace =
        |value: Option<&toml::Value>| value.and_then(|value| value.get("workspace")?.as_bool()) == Some(true);
    let mut findings = Vec::new();
    if !from_workspace(parsed.get("lints")) {
        findings.push(manifest.finding(
            1,
            "the workspace's lints do not hold here",
            "add `[lints]` with `workspace = true`",
        ));
    }
    for field in ["version", "edition", "rust-version", "license"] {
        if !from_workspace(parsed["package"].get(field)) {
            let what = format!("`{field}` is not the workspace's");
            findings.push(manifest.finding(manifest.line_of(field), what, "write `FIELD.workspace = true`"));
        }
    }
    findings
}

fn manifests() -> Vec<Source> {
    let manifest = |source: &Source| source.path.rsplit('/').next() == Some("Cargo.toml");
    let found: Vec<Source> = sources().into_iter().filter(manifest).collect();
    assert!(found.len() > MAY_KNOW.len(), "only {} manifests seen", found.len());
    found
}

#[test]
fn crates_know_only_the_rooms_below_them_and_versions_stand_in_one_place() {
    assert_none(&manifests().iter().flat_map(dependency_findings).collect::<Vec<_>>());
}

#[test]
fn every_crate_takes_lints_and_fields_from_the_workspace() {
    assert_none(&manifests().iter().flat_map(package_findings).collect::<Vec<_>>());
}

// What a source file looks like.

const MAX_LINES: usize = 600;
const LONG_LINES: usize = 400;
const MAX_FACE_LINES: usize = 80;

fn size_findings(source: &Source) -> Vec<Finding> {
    let lines = source.text.lines().count();
    // the root's face is re-exports for those who embed; crates' faces say what they are
    let face = source.path.starts_with("actors/") && source.path.ends_with("src/lib.rs");
    let limit = if face { MAX_FACE_LINES } else { MAX_LINES };
    let what = format!("{lines} lines; at most {limit}");
    if lines > limit { vec![source.finding(limit + 1, what, "it holds two ideas: find the seam")] } else { Vec::new() }
}

fn opening_findings(source: &Source) -> Vec<Finding> {
    let opening = source.text.lines().find(|line| !line.is_empty() && !line.starts_with("#!"));
    let told = opening.is_some_and(|line| line.starts_with("//!"));
    if told {
        return Vec::new();
    }
    vec![source.finding(
        1,
        "the file does not say what it is",
        "open it with `//!`: role, invariants, what happens on failure",
    )]
}

/// Words that do not belong here, each in pieces so that this file does not hold it; only in Rust, and why not.
const WORDS: &[(&str, bool, &str)] = &[
    (concat!("to", "do!"), true, "do it, or leave it out"),
    (concat!("unimpl", "emented!"), true, "do it, or leave it out"),
    (concat!("db", "g!("), true, "use tracing"),
    (concat!("/wo", "rk/main"), false, "paths of one machine mean nothing elsewhere"),
    (concat!("/wo", "rk/shared"), false, "paths of one machine mean nothing elsewhere"),
    (concat!("/opt", "/gr/"), false, "paths of one machine mean nothing elsewhere"),
    (concat!("py", "pi.org"), false, "ask pip: the index is the user's choice"),
    (concat!("python", "hosted.org"), false, "ask pip: the index is the user's choice"),
    (concat!("registry.", "npmjs"), false, "ask npm: the registry is the user's choice"),
    (concat!("index.", "crates.io"), false, "ask cargo: the registry is the user's choice"),
    (concat!("deb.", "debian.org"), false, "ask apt: the mirror is the user's choice"),
];

fn word_findings(source: &Source) -> Vec<Finding> {
    let words = WORDS.iter().filter(|(_, rust_only, _)| source.is_rust() || !rust_only);
    let each = words.flat_map(|(word, _, remedy)| {
        let lines = source.text.lines().enumerate().filter(move |(_, line)| line.contains(word));
        lines.map(move |(index, _)| source.finding(index + 1, format!("{word:?} does not belong here"), remedy))
    });
    each.collect()
}

#[test]
fn files_are_of_a_size_to_be_read() {
    let rust: Vec<Source> = sources().into_iter().filter(Source::is_rust).collect();
    for source in &rust {
        let lines = source.text.lines().count();
        if lines > LONG_LINES && lines <= MAX_LINES {
            println!("long, but allowed: {} ({lines} lines)", source.path);
        }
    }
    assert_none(&rust.iter().flat_map(size_findings).collect::<Vec<_>>());
}

#[test]
fn files_say_what_they_are() {
    assert_none(&sources().iter().filter(|source| source.is_rust()).flat_map(opening_findings).collect::<Vec<_>>());
}

#[test]
fn words_that_do_not_belong_here_do_not_occur() {
    assert_none(&sources().iter().flat_map(word_findings).collect::<Vec<_>>());
}

// What lies at the top level.

const TOP_LEVEL: &[&str] =
    &["Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "actors", "benchmark", "config", "src", "tests"];

/// Made by builds and runs, and ignored by git.
const MADE: &[&str] = &["runs", "target"];

fn top_level_findings(names: &BTreeSet<String>) -> Vec<Finding> {
    let agreed: BTreeSet<String> = TOP_LEVEL.iter().map(ToString::to_string).collect();
    let finding =
        |name: &String, what: &str, remedy| Finding { file: name.clone(), line: 1, what: what.to_owned(), remedy };
    let more = names.difference(&agreed).filter(|name| !name.starts_with('.') && !MADE.contains(&name.as_str()));
    let more = more.map(|name| finding(name, "does not belong at the top level", "find the room it belongs to"));
    more.chain(agreed.difference(names).map(|name| finding(name, "is missing at the top level", "bring it back")))
        .collect()
}

#[test]
fn the_top_level_holds_what_was_agreed() {
    let names =
        std::fs::read_dir(root()).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    assert_none(&top_level_findings(&names.collect()));
}

// Error codes.

/// The codes in a text, `GR` and four digits, with their lines.
fn codes(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("GR") {
            let digits = line[at + 2..].chars().take_while(char::is_ascii_digit).count();
            let begins = !line[..at].ends_with(|before: char| before.is_ascii_alphanumeric() || before == '_');
            if digits == 4 && begins {
                found.push((index + 1, line[at..at + 6].to_owned()));
            }
        }
    }
    found
}

fn code_findings(sources: &[Source], pages: &[&str]) -> Vec<Finding> {
    let mut count = BTreeMap::<&str, usize>::new();
    for page in pages {
        *count.entry(page).or_default() += 1;
    }
    let mut findings = Vec::new();
    let mut told = BTreeSet::new();
    for source in sources {
        for (line, code) in codes(&source.text) {
            let pages = count.get(code.as_str()).copied().unwrap_or(0);
            if pages != 1 && told.insert(code.clone()) {
                let what = format!("{code} has {pages} pages");
                findings.push(source.finding(
                    line,
                    what,
                    "give it one page in an ERRORS table that `greenroom explain` knows",
                ));
            }
        }
    }
    findings
}

#[test]
#[cfg(feature = "torch")]
fn every_error_code_has_one_page() {
    let code_of = |source: &Source| {
        let test =
            source.path.contains("/tests/") || source.path.ends_with("tests.rs") || source.path.starts_with("tests/");
        source.is_rust() && !test && !source.path.starts_with("benchmark/")
    };
    let sources: Vec<Source> = sources().into_iter().filter(code_of).collect();
    let pages: Vec<&str> = greenroom::explain::pages().iter().map(|page| page.code).collect();
    assert!(pages.len() > 20, "only {} pages", pages.len());
    assert_none(&code_findings(&sources, &pages));
    for page in greenroom::explain::pages() {
        assert!(!page.cause.is_empty() && !page.remedy.is_empty(), "{} explains nothing", page.code);
    }
}

// Each rule finds what it is there for.

fn source(path: &str, text: &str) -> Source {
    Source { path: path.to_owned(), text: text.to_owned() }
}

#[test]
fn the_rules_find_what_they_are_there_for() {
    let found = |findings: Vec<Finding>| findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
    let manifest = |name: &str, lines: &str| {
        source("actors/x/Cargo.toml", &format!("[package]\nname = \"greenroom-{name}\"\n[dependencies]\n{lines}\n"))
    };
    let cases = [
        ("engine", "greenroom-run.workspace = true", "x/Cargo.toml:4: greenroom-engine depends on greenroom-run"),
        ("engine", "greenroom-core.workspace = true", ""),
        ("engine", "tch.workspace = true", "links libtorch"),
        ("benchmark", "tch.workspace = true", "links libtorch"),
        ("benchmark", "tch = { workspace = true, optional = true }", ""),
        ("engine", "serde = \"1\"", "a version or features of its own"),
        ("engine", "serde = { workspace = true, features = [\"rc\"] }", "a version or features of its own"),
        ("setup", "greenroom-core.workspace = true", "greenroom-setup depends on greenroom-core"),
        ("novelty", "serde.workspace = true", "is a new crate"),
    ];
    for (name, lines, expected) in cases {
        let text = found(dependency_findings(&manifest(name, lines)));
        assert!(if expected.is_empty() { text.is_empty() } else { text.contains(expected) }, "{name} {lines}: {text}");
    }
    assert!(found(package_findings(&manifest("engine", ""))).contains("lints do not hold"));
    let long = |count: usize| "//! x\n".repeat(count);
    assert!(found(size_findings(&source("src/a.rs", &long(601)))).contains("src/a.rs:601: 601 lines"));
    assert!(found(size_findings(&source("src/a.rs", &long(600)))).is_empty());
    assert!(found(size_findings(&source("actors/x/src/lib.rs", &long(81)))).contains("at most 80"));
    assert!(found(opening_findings(&source("src/a.rs", "use std::fmt;\n"))).contains("does not say what it is"));
    for (word, rust_only, _) in WORDS {
        assert!(found(word_findings(&source("src/a.rs", &format!("\n{word}")))).contains("src/a.rs:2:"), "{word}");
        assert_eq!(found(word_findings(&source("README.md", word))).is_empty(), *rust_only, "{word}");
    }
    let mut names: BTreeSet<String> = TOP_LEVEL.iter().chain(MADE).map(ToString::to_string).collect();
    assert!(found(top_level_findings(&names)).is_empty());
    names.insert("scripts".to_owned());
    names.remove("README.md");
    let text = found(top_level_findings(&names));
    assert!(text.contains("scripts:1: does not belong") && text.contains("README.md:1: is missing"), "{text}");
    let sources = [source("src/a.rs", "\n\"GR0101: x\"\n\"GR0102\" GR01xx")];
    assert!(found(code_findings(&sources, &["GR0101"])).contains("src/a.rs:3: GR0102 has 0 pages"));
    assert!(found(code_findings(&sources, &["GR0101", "GR0102", "GR0102"])).contains("GR0102 has 2 pages"));
    assert!(found(code_findings(&sources, &["GR0101", "GR0102"])).is_empty());
    assert!(Path::new(&root()).join("tests/tidy.rs").exists(), "the root is another folder");
}
