//! What may follow the words of a line: verbs, their own words, and the names of what the run has.
//!
//! Names are asked from the cluster only when a word is to be completed that is one, with a short deadline, and are kept for
//! a moment. On failure: fewer candidates, never an error at the prompt.

use std::cell::RefCell;
use std::time::Duration;

use greenroom::messages::setting::HOT_KEYS;
use greenroom::messages::steer::NamesSight;
use greenroom::shell::{ROLLOUT_STATES, VERBS};
use tokio::time::Instant;

/// How long names are taken for those that there are.
const KEPT: Duration = Duration::from_secs(3);
/// The names of what a run has, asked when they are needed.
pub(super) struct Names {
    ask: Box<dyn Fn() -> NamesSight>,
    kept: RefCell<Option<(Instant, NamesSight)>>,
}

impl Names {
    pub(super) fn new(ask: impl Fn() -> NamesSight + 'static) -> Self {
        Self { ask: Box::new(ask), kept: RefCell::new(None) }
    }

    fn of(&self, choose: impl Fn(NamesSight) -> Vec<String>) -> Vec<String> {
        let mut kept = self.kept.borrow_mut();
        let fresh = kept.take().filter(|(asked_at, _)| asked_at.elapsed() < KEPT);
        let (asked_at, names) = fresh.unwrap_or_else(|| (Instant::now(), (self.ask)()));
        *kept = Some((asked_at, names.clone()));
        choose(names)
    }
}

/// The words that may follow others and begin so.
pub(super) fn candidates(before: &str, begun: &str, names: &Names) -> Vec<String> {
    let words: Vec<&str> = before.split_whitespace().collect();
    let owned = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let verbs = || VERBS.iter().map(|page| page.name.to_owned()).collect::<Vec<_>>();
    let mut known = match words.as_slice() {
        [] | ["help" | "watch"] => verbs(),
        [.., "-o" | "--output"] => owned(&["table", "json", "yaml"]),
        [.., "--state"] => owned(&ROLLOUT_STATES),
        ["watch", rest @ ..] => return candidates(&rest.join(" "), begun, names),
        ["pause" | "resume"] => owned(&["rollouts", "training"]),
        ["stop"] => owned(&["--after-step", "--now"]),
        ["rollouts", ..] => owned(&["--state", "--older-than"]),
        ["events", ..] => owned(&["-f", "-n"]),
        ["drain" | "undrain"] => names.of(|names| [names.nodes, names.engines].concat()),
        ["rm-engine"] => names.of(|names| names.engines),
        ["inspect"] => names.of(|names| [names.services, names.engines].concat()),
        ["why" | "cancel"] => names.of(|names| names.rollouts),
        ["set"] => owned(&HOT_KEYS.map(|hot| hot.key)),
        ["explain"] => greenroom::explain::pages().iter().map(|page| page.code.to_owned()).collect(),
        _ => Vec::new(),
    };
    if !words.is_empty() && !known.iter().any(|word| word == "json") {
        known.push("-o".to_owned());
    }
    known.retain(|word| word.starts_with(begun));
    known
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;

    #[test]
    fn verbs_their_words_and_names_are_completed_and_names_are_asked_once() {
        let asked = Rc::new(Cell::new(0));
        let count = asked.clone();
        let names = Names::new(move || {
            count.set(count.get() + 1);
            NamesSight {
                nodes: vec!["box".into(), "engine-0".into()],
                engines: vec!["engine-0/embedded-0".into()],
                services: vec!["conductor".into()],
                rollouts: vec!["t00001-g000-s00-a00".into()],
            }
        });
        let cases: [(&str, &str, &[&str]); 12] = [
            ("", "rol", &["rollouts"]),
            ("watch ", "stat", &["status"]),
            ("watch nodes ", "-", &["-o"]),
            ("pause ", "", &["rollouts", "training", "-o"]),
            ("nodes -o ", "j", &["json"]),
            ("rollouts --state ", "exec", &["executing"]),
            ("drain ", "e", &["engine-0", "engine-0/embedded-0"]),
            ("rm-engine ", "", &["engine-0/embedded-0", "-o"]),
            ("inspect ", "con", &["conductor"]),
            ("why ", "t", &["t00001-g000-s00-a00"]),
            ("set ", "rollout.max_r", &["rollout.max_running"]),
            ("explain ", "GR0932", &["GR0932"]),
        ];
        for (before, begun, expected) in cases {
            assert_eq!(candidates(before, begun, &names), expected, "{before}{begun}");
        }
        assert_eq!(asked.get(), 1);
        assert!(candidates("", "", &names).len() > 20);
    }
}
