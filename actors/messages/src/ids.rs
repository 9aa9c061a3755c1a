//! Identifiers. They are deterministic: a resumed or repeated run gives the same thing the same name.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

greenroom_core::string_id! {
    /// The name of a run; also its directory's name.
    pub struct RunId;
}
greenroom_core::string_id! {
    /// The `instance_id` of a task in its data set.
    pub struct TaskId;
}
greenroom_core::string_id! {
    /// The name of an engine; unique in the run.
    pub struct EngineId;
}
greenroom_core::number_id! {
    /// A claimed sandbox; unique in the run, also across resumes.
    pub struct LeaseId("lease-");
}
greenroom_core::number_id! {
    /// An optimizer step, from 1; 0 is the state before the first.
    pub struct Step("step-");
}

/// A text is not an identifier of the expected kind (GR0101).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not {expected}")]
pub struct IdParseError {
    /// The text.
    pub text: String,
    /// What was expected.
    pub expected: &'static str,
}

/// What a batch of rollouts is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Purpose {
    /// Rollouts that are trained on.
    Train,
    /// Fresh rollouts over the training tasks, measured and not trained on.
    Evaluate,
    /// Rollouts over tasks that are never trained on.
    HeldOut,
}

impl Purpose {
    /// All purposes.
    pub const ALL: [Self; 3] = [Self::Train, Self::Evaluate, Self::HeldOut];

    fn letter(self) -> char {
        match self {
            Self::Train => 't',
            Self::Evaluate => 'e',
            Self::HeldOut => 'h',
        }
    }
}

/// A batch of groups, asked for by the Conductor. Training batch n feeds step n; an evaluation's number is the step
/// after which it was made. Shown as `t00012`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct BatchId {
    /// What the rollouts are for.
    pub purpose: Purpose,
    /// The number.
    pub number: u64,
}

/// The rollouts of one task in one batch. Shown as `t00012-g003`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct GroupId {
    /// Its batch.
    pub batch: BatchId,
    /// Its place in the batch, from 0.
    pub index: u32,
}

/// One episode. A re-issue after an infrastructure failure is another rollout: same group and sample, next attempt.
/// Shown as `t00012-g003-s05-a0`, fixed width so that one engine request's id is never a prefix of another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RolloutId {
    /// Its group.
    pub group: GroupId,
    /// Its place among the samples of the group, from 0.
    pub sample: u32,
    /// 0 at first; counts re-issues.
    pub attempt: u32,
}

impl fmt::Display for BatchId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}{:05}", self.purpose.letter(), self.number)
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-g{:03}", self.batch, self.index)
    }
}

impl fmt::Display for RolloutId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}-s{:02}-a{:02}", self.group, self.sample, self.attempt)
    }
}

fn parse_part<T: FromStr>(part: Option<&str>, letter: &str) -> Option<T> {
    part?.strip_prefix(letter)?.parse().ok()
}

fn parse_batch(part: Option<&str>) -> Option<BatchId> {
    let part = part?;
    let purpose = Purpose::ALL.into_iter().find(|purpose| part.starts_with(purpose.letter()))?;
    Some(BatchId { purpose, number: part.get(1..)?.parse().ok()? })
}

impl FromStr for BatchId {
    type Err = IdParseError;
    fn from_str(text: &str) -> Result<Self, IdParseError> {
        parse_batch(Some(text))
            .ok_or_else(|| IdParseError { text: text.to_owned(), expected: "a batch such as t00012" })
    }
}

impl FromStr for GroupId {
    type Err = IdParseError;
    fn from_str(text: &str) -> Result<Self, IdParseError> {
        let mut parts = text.split('-');
        let group = || Some(Self { batch: parse_batch(parts.next())?, index: parse_part(parts.next(), "g")? });
        let parsed = { group }();
        parsed.ok_or_else(|| IdParseError { text: text.to_owned(), expected: "a group such as t00012-g003" })
    }
}

impl FromStr for RolloutId {
    type Err = IdParseError;
    fn from_str(text: &str) -> Result<Self, IdParseError> {
        let parts: Vec<&str> = text.split('-').collect();
        let parse = || {
            let [batch, group, sample, attempt] = parts[..] else { return None };
            let group = GroupId { batch: parse_batch(Some(batch))?, index: parse_part(Some(group), "g")? };
            Some(Self { group, sample: parse_part(Some(sample), "s")?, attempt: parse_part(Some(attempt), "a")? })
        };
        parse().ok_or_else(|| IdParseError { text: text.to_owned(), expected: "a rollout such as t00012-g003-s05-a00" })
    }
}

/// A version of the policy's weights, unique across runs, so that weights of another run are never taken for ours.
/// Shown, and sent to engines as `weight_version`, as `{run}:{number}`. Number n is the policy after optimizer step n.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct WeightVersion {
    /// The run that made it.
    pub run: RunId,
    /// The optimizer step after which it was made.
    pub number: u64,
}

impl fmt::Display for WeightVersion {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", self.run, self.number)
    }
}

impl FromStr for WeightVersion {
    type Err = IdParseError;
    fn from_str(text: &str) -> Result<Self, IdParseError> {
        let parsed = text.rsplit_once(':').and_then(|(run, number)| {
            Some(Self { run: RunId::new(run), number: number.parse().ok().filter(|_| !run.is_empty())? })
        });
        parsed.ok_or_else(|| IdParseError { text: text.to_owned(), expected: "a weight version such as run7:12" })
    }
}

/// In files and messages these identifiers are the texts that people see.
macro_rules! as_text {
    ($($name:ident),*) => {$(
        impl From<$name> for String {
            fn from(id: $name) -> Self {
                id.to_string()
            }
        }
        impl TryFrom<String> for $name {
            type Error = IdParseError;
            fn try_from(text: String) -> Result<Self, IdParseError> {
                text.parse()
            }
        }
    )*};
}
as_text!(BatchId, GroupId, RolloutId, WeightVersion);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identifiers_read_back_as_they_are_shown() {
        let batch = BatchId { purpose: Purpose::Train, number: 12 };
        let group = GroupId { batch, index: 3 };
        let rollout = RolloutId { group, sample: 5, attempt: 1 };
        assert_eq!(rollout.to_string(), "t00012-g003-s05-a01");
        assert_eq!(rollout.to_string().parse(), Ok(rollout));
        assert_eq!(group.to_string().parse(), Ok(group));
        assert_eq!(batch.to_string().parse(), Ok(batch));
        let version = WeightVersion { run: RunId::new("a:b"), number: 7 };
        assert_eq!(version.to_string().parse(), Ok(version));
        for bad in ["", "default", "x00001-g000-s00-a00", "t1-g1-s1", "t1-g1-s1-a1-b1", "é"] {
            assert!(bad.parse::<RolloutId>().is_err(), "{bad}");
            assert!(bad.parse::<WeightVersion>().is_err(), "{bad}");
        }
    }
}
