//! Choosing the parser of a test log, and telling a broken test run from one that never took place.

use std::collections::BTreeMap;

use super::error::GradeError;
use super::grade::TestStatus;
use super::parsers::{browser, compiled, jvm, pytest, unittest};

/// Test name → status; of several lines about one test the last counts.
pub type StatusMap = BTreeMap<String, TestStatus>;

macro_rules! parsers {
    ($($(#[$documentation:meta])* $variant:ident = $name:literal => $function:path,)*) => {
        /// The parsers, by the rules of SWE-smith 0.0.9's of the same name.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        pub enum LogParser {
            $($(#[$documentation])* $variant,)*
        }

        impl LogParser {
            /// Every parser.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// The name rows use.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }

            /// Read a log.
            pub fn parse(self, log: &str) -> StatusMap {
                match self {
                    $(Self::$variant => $function(log),)*
                }
            }
        }
    };
}

parsers! {
    /// pytest's verbose output, `id STATUS` (128 of SWE-smith's 133 Python profiles).
    #[default]
    PytestVerbose = "pytest_verbose" => pytest::verbose,
    /// pytest's `-rA` summary, `STATUS id`.
    PytestStatusFirst = "pytest_rA" => pytest::status_first,
    /// pytest-xdist's workers, `[gw0] STATUS id`.
    PytestXdist = "pytest_xdist" => pytest::xdist,
    /// mypy's own suite: the last word of a line with a status.
    MypyStyle = "mypy_style" => pytest::last_word,
    /// unittest's verbose output, where a docstring takes the name's place.
    UnittestSlugify = "unittest_slugify" => unittest::slugify,
    /// unittest's verbose output and its list of failures.
    UnittestTornado = "unittest_tornado" => unittest::tornado,
    /// `go test -v`.
    GoTest = "go_test" => compiled::go_test,
    /// `cargo test`.
    CargoTest = "cargo_test" => compiled::cargo_test,
    /// ctest.
    Ctest = "ctest" => compiled::ctest,
    /// googletest.
    Gtest = "gtest" => compiled::gtest,
    /// jest's verbose output.
    Jest = "jest" => browser::jest,
    /// mocha's spec reporter.
    Mocha = "mocha" => browser::mocha,
    /// vitest's verbose reporter.
    Vitest = "vitest" => browser::vitest,
    /// node's own runner as the project marked uses it.
    MarkedNode = "marked_node" => browser::marked_node,
    /// Maven surefire's plain reports.
    MavenSurefire = "maven_surefire" => jvm::maven_surefire,
    /// JUnit XML reports printed after a Gradle run.
    GradleJunitXml = "gradle_junit_xml" => jvm::gradle_junit_xml,
}

impl LogParser {
    /// The parser a row names.
    pub fn from_name(name: &str) -> Result<Self, GradeError> {
        if let Some(parser) = Self::ALL.iter().find(|parser| parser.name() == name) {
            return Ok(*parser);
        }
        let distances =
            Self::ALL.iter().map(|parser| (strsim::damerau_levenshtein(name, parser.name()), parser.name()));
        let nearest = distances.min().filter(|(distance, _)| *distance <= 4).map(|(_, name)| name);
        Err(GradeError::UnknownParser { name: name.to_owned(), nearest })
    }

    /// The parser SWE-smith's profile of a repository uses, for rows that name none. Only Python repositories are told
    /// apart; `repo` is the row's `repo` or `instance_id`.
    pub fn for_repository(repo: &str) -> Self {
        let exceptions = [
            ("paramiko__paramiko.", Self::PytestStatusFirst),
            ("HIPS__autograd.", Self::PytestXdist),
            ("python__mypy.", Self::MypyStyle),
            ("un33k__python-slugify.", Self::UnittestSlugify),
            ("tornadoweb__tornado.", Self::UnittestTornado),
        ];
        let exception = exceptions.iter().find(|(name, _)| repo.contains(name));
        exception.map_or(Self::PytestVerbose, |(_, parser)| *parser)
    }

    /// Whether a log without one result still shows that the runner ran and ended by itself: the change broke the run.
    /// `false` means the run never took place, which is nobody's reward.
    pub fn run_took_place(self, log: &str) -> bool {
        match self {
            Self::PytestVerbose | Self::PytestStatusFirst | Self::PytestXdist | Self::MypyStyle => {
                pytest::run_took_place(log)
            }
            Self::UnittestSlugify | Self::UnittestTornado => unittest::run_took_place(log),
            _ => false,
        }
    }
}
