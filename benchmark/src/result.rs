//! The result format that all benches share: one JSON file per bench, one row per metric.
//!
//! `ratio` is always ours divided by the peer's, both measured in the same run on the same machine; a goal is a bound on the
//! ratio (or on our own value where there is no peer), and `holds` follows from the two. [`BenchResult::problems`] checks
//! a file that was written elsewhere: a row that contradicts itself is reported, not shown.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};

/// What one run of one bench found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BenchResult {
    /// The bench; also the file's name.
    pub bench: String,
    /// The command that made this file, ours and the peer in one go.
    pub command: String,
    /// Where: processor, cores, load and build, in words.
    pub machine: String,
    /// What was found.
    pub rows: Vec<Row>,
}

/// One metric.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// What was measured.
    pub metric: String,
    /// The unit of `ours`, `peer` and `limit`.
    pub unit: String,
    /// Our value.
    pub ours: f64,
    /// The peer's value of the same metric in the same run.
    pub peer: Option<f64>,
    /// Who that is, with version.
    pub peer_name: Option<String>,
    /// What this machine could reach at best, measured in the same run.
    pub limit: Option<f64>,
    /// Ours divided by the peer's.
    pub ratio: Option<f64>,
    /// What is aimed at.
    pub goal: Goal,
    /// Whether it was reached.
    pub holds: bool,
}

/// A bound.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Goal {
    /// The ratio is at least this: more is better.
    RatioAtLeast(f64),
    /// The ratio is at most this: less is better.
    RatioAtMost(f64),
    /// Our value is at least this.
    OursAtLeast(f64),
    /// Our value is at most this.
    OursAtMost(f64),
}

impl fmt::Display for Goal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::RatioAtLeast(bound) => write!(formatter, "ratio >= {bound}"),
            Self::RatioAtMost(bound) => write!(formatter, "ratio <= {bound}"),
            Self::OursAtLeast(bound) => write!(formatter, "ours >= {bound}"),
            Self::OursAtMost(bound) => write!(formatter, "ours <= {bound}"),
        }
    }
}

impl From<Goal> for String {
    fn from(goal: Goal) -> Self {
        goal.to_string()
    }
}

impl TryFrom<String> for Goal {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let wrong = || format!("goal {text:?} is none of: ratio >= N, ratio <= N, ours >= N, ours <= N");
        let (relation, bound) = text.rsplit_once(' ').ok_or_else(wrong)?;
        let bound: f64 = bound.parse().map_err(|_| wrong())?;
        match relation {
            "ratio >=" => Ok(Self::RatioAtLeast(bound)),
            "ratio <=" => Ok(Self::RatioAtMost(bound)),
            "ours >=" => Ok(Self::OursAtLeast(bound)),
            "ours <=" => Ok(Self::OursAtMost(bound)),
            _ => Err(wrong()),
        }
    }
}

impl Goal {
    /// Whether these values reach it. Without a ratio, a goal on the ratio is missed.
    fn is_reached(self, ours: f64, ratio: Option<f64>) -> bool {
        match self {
            Self::RatioAtLeast(bound) => ratio.is_some_and(|ratio| ratio >= bound),
            Self::RatioAtMost(bound) => ratio.is_some_and(|ratio| ratio <= bound),
            Self::OursAtLeast(bound) => ours >= bound,
            Self::OursAtMost(bound) => ours <= bound,
        }
    }
}

/// The peer's side of a row.
#[derive(Clone, Copy, Debug)]
pub struct PeerValue<'a> {
    /// Its value.
    pub value: f64,
    /// Its name and version.
    pub name: &'a str,
}

impl Row {
    /// A row; ratio and verdict follow from the values.
    pub fn new(metric: impl Into<String>, unit: &str, ours: f64, peer: Option<PeerValue<'_>>, goal: Goal) -> Self {
        let ours = significant(ours);
        let peer_value = peer.map(|peer| significant(peer.value));
        let ratio = peer_value.map(|peer| significant(ours / peer));
        Self {
            metric: metric.into(),
            unit: unit.to_owned(),
            ours,
            peer: peer_value,
            peer_name: peer.map(|peer| peer.name.to_owned()),
            limit: None,
            ratio,
            goal,
            holds: goal.is_reached(ours, ratio),
        }
    }

    /// The same with a limit.
    pub fn with_limit(self, limit: f64) -> Self {
        Self { limit: Some(significant(limit)), ..self }
    }

    fn problem(&self) -> Option<String> {
        let problem = |what: &str| Some(format!("row {:?}: {what}", self.metric));
        if !self.ours.is_finite() || self.peer.is_some_and(|peer| peer.is_nan() || peer <= 0.0) {
            return problem("a value is no number, or the peer's is not above 0");
        }
        if self.peer.is_some() != self.peer_name.is_some() || self.peer.is_some() != self.ratio.is_some() {
            return problem("peer, peer_name and ratio are given together or not at all");
        }
        let expected = self.peer.map(|peer| self.ours / peer).unwrap_or_default();
        if self.ratio.is_some_and(|ratio| (ratio - expected).abs() > expected.abs() * 0.01) {
            return problem("the ratio is not ours divided by the peer's");
        }
        if self.holds != self.goal.is_reached(self.ours, self.ratio) {
            return problem("holds contradicts the goal");
        }
        None
    }
}

/// Four significant digits: more would only repeat the noise.
fn significant(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    // through text, so that the shortest form is what is written
    if digits >= 0 { format!("{value:.*}", digits as usize).parse().unwrap_or(value) } else { value.round() }
}

impl BenchResult {
    /// Everything that is wrong with it.
    pub fn problems(&self) -> Vec<String> {
        let mut problems: Vec<String> = self.rows.iter().filter_map(Row::problem).collect();
        if self.rows.is_empty() {
            problems.push("it has no rows".to_owned());
        }
        problems
    }

    /// Writes `results/BENCH.json` and tells of it on stderr.
    pub fn write(&self) -> anyhow::Result<()> {
        let path = results_dir().join(format!("{}.json", self.bench));
        let text = serde_json::to_string_pretty(self)? + "\n";
        std::fs::write(&path, text).with_context(|| format!("{} cannot be written", path.display()))?;
        eprintln!("{}", crate::table::section(self));
        eprintln!("written: {}; `cargo bench-table` brings README.md up to date", path.display());
        Ok(())
    }

    /// All results, by name.
    pub fn load_all() -> anyhow::Result<Vec<Self>> {
        let dir = results_dir();
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&dir).with_context(|| format!("{} cannot be read", dir.display()))? {
            paths.push(entry?.path());
        }
        paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
        paths.sort();
        paths.iter().map(|path| Self::load(path)).collect()
    }

    fn load(path: &Path) -> anyhow::Result<Self> {
        let wrong = || format!("{} is not a result: run its bench again", path.display());
        let text = std::fs::read_to_string(path).with_context(wrong)?;
        let result: Self = serde_json::from_str(&text).with_context(wrong)?;
        let problems = result.problems();
        anyhow::ensure!(problems.is_empty(), "{}: {}", wrong(), problems.join("; "));
        let is_named = path.file_stem().is_some_and(|stem| stem.to_str() == Some(&result.bench));
        anyhow::ensure!(is_named, "{} holds the bench {:?}: rename it", path.display(), result.bench);
        Ok(result)
    }
}

/// The crate's folder: `benchmark/`.
pub fn home() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

fn results_dir() -> PathBuf {
    home().join("results")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_says_by_itself_whether_its_goal_was_reached() {
        let peer = |value| Some(PeerValue { value, name: "peer 1.0" });
        let cases = [
            (10.0, peer(5.0), Goal::RatioAtLeast(2.0), true),
            (9.99, peer(5.0), Goal::RatioAtLeast(2.0), false),
            (0.5, peer(5.0), Goal::RatioAtMost(0.1), true),
            (0.6, peer(5.0), Goal::RatioAtMost(0.1), false),
            (1.0, None, Goal::RatioAtMost(0.1), false),
            (1e-5, None, Goal::OursAtMost(1e-4), true),
            (99.0, peer(1.0), Goal::OursAtLeast(100.0), false),
        ];
        for (ours, peer, goal, holds) in cases {
            let row = Row::new("m", "u", ours, peer, goal);
            assert_eq!(row.holds, holds, "{row:?}");
            assert_eq!(row.problem(), None);
            let text = serde_json::to_string(&row).unwrap();
            assert_eq!(serde_json::from_str::<Row>(&text).unwrap(), row);
            assert!(Row { holds: !holds, ..row }.problem().is_some(), "a verdict against the goal is a problem");
        }
        assert!(Goal::try_from("ratio > 2".to_owned()).is_err());
    }

    #[test]
    fn values_have_four_significant_digits() {
        for (value, text) in [(1234.567, 1235.0), (0.000_123_456, 0.000_123_5), (9.999_96, 10.0), (0.0, 0.0)] {
            assert_eq!(significant(value), text);
        }
    }
}
