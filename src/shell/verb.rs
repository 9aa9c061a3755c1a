//! The verbs: one table, from which words are parsed, help is written and names are completed.
//!
//! Invariant: a verb is in the table exactly when [`parse`] knows it.

use std::path::PathBuf;
use std::time::Duration;

use greenroom_engine::EngineConfig;
use greenroom_messages::engine::EngineSpec;
use greenroom_messages::run::StopMode;
use greenroom_messages::steer::{Held, Look, Steer};
use greenroom_messages::{EngineId, RolloutId};

use super::words::duration_ms;
use super::{Output, ShellError};

/// How many turns an engine that is added may have in flight, unless told.
const ADDED_IN_FLIGHT: u32 = 256;
/// The least time between two looks of `watch`: each asks every part of the run.
const LEAST_INTERVAL_MS: u64 = 100;
/// How many events are shown at first.
const EVENTS: u32 = 30;

/// Where a rollout is in its life, or how it ended; of all that are under way and wait no more, as `status` counts them.
pub const ROLLOUT_STATES: [&str; 13] = [
    "queued",
    "running",
    "claiming",
    "setting_up",
    "generating",
    "executing",
    "grading",
    "ended",
    "completed",
    "truncated",
    "stale",
    "cancelled",
    "infra_failed",
];

/// A verb with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Show something.
    Look(Look),
    /// The nodes and every actor on them, as a tree.
    Tree,
    /// Events from now on, as they come.
    Follow(u32),
    /// Steer the run.
    Steer(Steer),
    /// Look at everything and judge it.
    Doctor,
    /// Write a file for whoever is to find out what went wrong.
    Bundle(PathBuf),
    /// An error code's page; all codes without one.
    Explain(Option<String>),
    /// Do another verb again and again.
    Watch(Duration, Box<Request>),
    /// Help, for one verb or all.
    Help(Option<String>),
}

/// What a person asked for: a verb, and how its answer is to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The verb.
    pub verb: Verb,
    /// How to show it, where that was said.
    pub output: Option<Output>,
}

/// A verb's line in the table.
#[derive(Clone, Copy, Debug)]
pub struct VerbPage {
    /// Its name.
    pub name: &'static str,
    /// Its arguments.
    pub arguments: &'static str,
    /// `See`, `Steer` or `Diagnose`.
    pub group: &'static str,
    /// What it does.
    pub help: &'static str,
}

const fn page(group: &'static str, name: &'static str, arguments: &'static str, help: &'static str) -> VerbPage {
    VerbPage { name, arguments, group, help }
}

/// All verbs.
pub const VERBS: &[VerbPage] = &[
    page("See", "status", "", "the run on one screen, with what holds it up at present"),
    page("See", "nodes", "", "the nodes: state, roles, when last heard of, clock, version, certificate, disk"),
    page("See", "tree", "", "nodes and every actor on them, as a tree"),
    page("See", "ps", "", "every actor by node: state, restarts, what an agent's loop waits for"),
    page("See", "engines", "", "the fleet: state, weights, load"),
    page("See", "pools", "", "the pools of sandboxes, by node"),
    page("See", "rollouts", "[--state S] [--older-than T]", "rollouts under way, or those of a state or outcome"),
    page("See", "leases", "", "claimed sandboxes"),
    page("See", "weights", "", "who has which weights, and how far behind"),
    page("See", "events", "[-f] [-n N]", "the last events; -f goes on with those that come"),
    page("See", "inspect", "SERVICE", "all that a service or an engine says of itself"),
    page("See", "why", "ROLLOUT", "the whole history of one rollout in words"),
    page("See", "sql", "QUERY", "a query to the run's database that only reads"),
    page("See", "watch", "[-n SECONDS] VERB…", "does a verb again and again, until Ctrl-C"),
    page("Steer", "pause", "rollouts|training", "begin no more of these"),
    page("Steer", "resume", "rollouts|training", "let them go on"),
    page("Steer", "drain", "NODE|ENGINE", "give it no new work; what is under way ends by itself"),
    page("Steer", "undrain", "NODE|ENGINE", "give it work again"),
    page("Steer", "add-engine", "NAME URL [--max-in-flight N]", "one more engine"),
    page("Steer", "rm-engine", "ENGINE", "drain an engine and forget it"),
    page("Steer", "set", "[KEY VALUE]", "change a setting that may change; without arguments, those that may"),
    page("Steer", "cancel", "ROLLOUT", "end one rollout as cancelled"),
    page("Steer", "publish", "", "bring the present weights to the engines again"),
    page("Steer", "checkpoint", "", "where the newest checkpoint is; every step ends with one"),
    page("Steer", "stop", "--after-step|--now", "end the run; it can be resumed"),
    page("Diagnose", "doctor", "", "looks at everything; exit status 0 well, 1 doubtful, 2 ill"),
    page("Diagnose", "bundle", "FILE", "a tar file with settings, events, looks and logs, without secrets"),
    page("Diagnose", "explain", "[CODE]", "cause and remedy of an error code"),
    page("Diagnose", "help", "[VERB]", "this"),
];

/// The help for one verb, or for all.
///
/// # Errors
/// [`ShellError::Words`] for a verb that there is not.
pub fn help(verb: Option<&str>) -> Result<String, ShellError> {
    if let Some(name) = verb {
        let page = VERBS.iter().find(|page| page.name == name).ok_or_else(|| unknown(name))?;
        return Ok(format!("{} {}\n    {}", page.name, page.arguments, page.help));
    }
    let mut text = String::new();
    for group in ["See", "Steer", "Diagnose"] {
        text.push_str(&format!("{group}\n"));
        for page in VERBS.iter().filter(|page| page.group == group) {
            let usage = format!("{} {}", page.name, page.arguments);
            text.push_str(&format!("  {usage:<40} {}\n", page.help));
        }
    }
    text.push_str("\nEach verb takes -o table|json|yaml. Steering needs a certificate of the role operator.");
    Ok(text)
}

/// Words into a request.
///
/// # Errors
/// [`ShellError::Words`] says what is wrong and what would be right.
pub fn parse(words: &[String]) -> Result<Request, ShellError> {
    let mut words = Words { rest: words.to_vec() };
    let name = words.positional("a verb: `help` lists them")?;
    if name == "watch" {
        return watch(words);
    }
    let output = match words.option(&["-o", "--output"])? {
        Some(text) => Some(text.parse().map_err(wrong)?),
        None => None,
    };
    let verb = words.verb(&name)?;
    words.end(&name)?;
    Ok(Request { verb, output })
}

fn watch(mut words: Words) -> Result<Request, ShellError> {
    let every = match words.leading_option(&["-n", "--interval"])? {
        Some(text) => interval_ms(&text).ok_or_else(|| {
            wrong(format!("watch -n takes seconds, at least 0.1, such as 0.5 or 500ms, not {text:?}"))
        })?,
        None => 2_000,
    };
    let watched = parse(&words.rest)?;
    if matches!(watched.verb, Verb::Steer(_) | Verb::Follow(_) | Verb::Watch(..) | Verb::Bundle(_)) {
        return Err(wrong("watch takes a verb that looks and ends by itself, such as `watch status`"));
    }
    Ok(Request { output: watched.output, verb: Verb::Watch(Duration::from_millis(every), Box::new(watched)) })
}

/// How long to wait between two looks: seconds, also parts of one, or a duration with its unit.
fn interval_ms(text: &str) -> Option<u64> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| seconds.is_finite());
    let ms = seconds.map(|seconds| (seconds * 1_000.0).round() as u64).or_else(|| duration_ms(text));
    ms.filter(|ms| *ms >= LEAST_INTERVAL_MS)
}

fn wrong(reason: impl Into<String>) -> ShellError {
    ShellError::Words { reason: reason.into() }
}

fn unknown(name: &str) -> ShellError {
    let near = VERBS.iter().map(|page| (strsim::damerau_levenshtein(page.name, name), page.name)).min();
    // a word of which more is different is hardly a slip
    let most = (name.chars().count() / 3).max(1);
    match near {
        Some((distance, near)) if distance <= most => wrong(format!("there is no verb {name:?}: did you mean {near}?")),
        _ => wrong(format!("there is no verb {name:?}: `help` lists them")),
    }
}

/// Whether a query is more than blanks, semicolons and comments.
fn has_statement(query: &str) -> bool {
    let mut rest = query;
    loop {
        rest = rest.trim_start_matches(|character: char| character.is_whitespace() || character == ';');
        let after = match (rest.strip_prefix("--"), rest.strip_prefix("/*")) {
            (Some(comment), _) => comment.split_once('\n'),
            (None, Some(comment)) => comment.split_once("*/"),
            (None, None) => return !rest.is_empty(),
        };
        // a comment that does not end holds all the rest
        let Some((_, after)) = after else { return false };
        rest = after;
    }
}

/// The words that are left.
struct Words {
    rest: Vec<String>,
}

impl Words {
    fn verb(&mut self, name: &str) -> Result<Verb, ShellError> {
        Ok(match name {
            "status" => Verb::Look(Look::Status),
            "nodes" => Verb::Look(Look::Nodes),
            "tree" => Verb::Tree,
            "ps" => Verb::Look(Look::Actors),
            "engines" => Verb::Look(Look::Engines),
            "pools" => Verb::Look(Look::Pools),
            "rollouts" => self.rollouts()?,
            "leases" => Verb::Look(Look::Leases),
            "weights" => Verb::Look(Look::Weights),
            "events" => self.events()?,
            "inspect" => Verb::Look(Look::Inspect(self.positional("inspect SERVICE: `nodes -o json` lists services")?)),
            "why" => Verb::Look(Look::Why(self.rollout("why ROLLOUT")?)),
            "sql" => {
                // without quotes the words are put together again
                let query = std::mem::take(&mut self.rest).join(" ");
                if query.trim().is_empty() {
                    return Err(wrong(
                        "sql QUERY, such as sql \"SELECT state, count(*) FROM rollouts GROUP BY state\"",
                    ));
                }
                if !has_statement(&query) {
                    return Err(wrong(
                        "there is no statement in that query: sql QUERY, such as sql \"SELECT * FROM steps\"",
                    ));
                }
                Verb::Look(Look::Sql(query))
            }
            "pause" => self.hold(true)?,
            "resume" => self.hold(false)?,
            "drain" | "undrain" => {
                let what =
                    self.positional(&format!("{name} NODE, or {name} ENGINE: `nodes` and `engines` list them"))?;
                Verb::Steer(Steer::Drain { what, drained: name == "drain" })
            }
            "add-engine" => self.add_engine()?,
            "rm-engine" => {
                let engine = self.positional("rm-engine ENGINE: `engines` lists them")?;
                Verb::Steer(Steer::RemoveEngine(EngineId::new(engine)))
            }
            "set" => {
                let Some(key) = self.optional() else { return Ok(Verb::Look(Look::Settings)) };
                Verb::Steer(Steer::Set { key, value: self.value("set KEY VALUE: `set` lists keys")? })
            }
            "cancel" => Verb::Steer(Steer::Cancel(self.rollout("cancel ROLLOUT")?)),
            "publish" => Verb::Steer(Steer::Publish),
            "checkpoint" => Verb::Steer(Steer::Checkpoint),
            "stop" => match (self.flag(&["--after-step"]), self.flag(&["--now"])) {
                (true, false) => Verb::Steer(Steer::Stop(StopMode::AfterStep)),
                (false, true) => Verb::Steer(Steer::Stop(StopMode::Now)),
                _ => return Err(wrong("stop --after-step, or stop --now")),
            },
            "doctor" => Verb::Doctor,
            "bundle" => Verb::Bundle(PathBuf::from(self.positional("bundle FILE, such as bundle run.tar")?)),
            "explain" => Verb::Explain(self.optional()),
            "help" => Verb::Help(self.optional()),
            _ => return Err(unknown(name)),
        })
    }

    fn rollouts(&mut self) -> Result<Verb, ShellError> {
        let state = self.option(&["--state"])?;
        if let Some(state) = state.as_ref().filter(|state| !ROLLOUT_STATES.contains(&state.as_str())) {
            return Err(wrong(format!("--state takes one of {}, not {state:?}", ROLLOUT_STATES.join(", "))));
        }
        let older = self.option(&["--older-than"])?;
        let older_than_ms = match older {
            Some(text) => duration_ms(&text)
                .ok_or_else(|| wrong(format!("--older-than takes a duration such as 90s, 5m or 2h, not {text:?}")))?,
            None => 0,
        };
        Ok(Verb::Look(Look::Rollouts { state, older_than_ms }))
    }

    fn events(&mut self) -> Result<Verb, ShellError> {
        let limit = match self.option(&["-n", "--last"])? {
            Some(text) => text.parse().map_err(|_| wrong(format!("-n takes a number of events, not {text:?}")))?,
            None => EVENTS,
        };
        Ok(match self.flag(&["-f", "--follow"]) {
            true => Verb::Follow(limit),
            false => Verb::Look(Look::Events { after: None, limit }),
        })
    }

    fn hold(&mut self, held: bool) -> Result<Verb, ShellError> {
        let usage = if held { "pause rollouts, or pause training" } else { "resume rollouts, or resume training" };
        let what = match self.positional(usage)?.as_str() {
            "rollouts" => Held::Rollouts,
            "training" => Held::Training,
            _ => return Err(wrong(usage)),
        };
        Ok(Verb::Steer(Steer::Hold { what, held }))
    }

    fn add_engine(&mut self) -> Result<Verb, ShellError> {
        let usage = "add-engine NAME URL, such as add-engine big http://10.0.0.7:30000";
        let in_flight = self.option(&["--max-in-flight"])?;
        let max_in_flight = match in_flight {
            Some(text) => text
                .parse()
                .ok()
                .filter(|number| *number > 0)
                .ok_or_else(|| wrong(format!("--max-in-flight takes a number of at least 1, not {text:?}")))?,
            None => ADDED_IN_FLIGHT,
        };
        let (name, url) = (self.positional(usage)?, self.positional(usage)?);
        if let Some(problem) = EngineConfig::url_problem(&url) {
            // the URL itself may hold a secret
            return Err(wrong(format!("{usage}: the URL cannot be used: {problem}")));
        }
        Ok(Verb::Steer(Steer::AddEngine(EngineSpec { engine: EngineId::new(name), url, max_in_flight })))
    }

    fn rollout(&mut self, usage: &str) -> Result<RolloutId, ShellError> {
        let text = self.positional(&format!("{usage}, such as t00012-g003-s05-a00: `rollouts` lists them"))?;
        text.parse().map_err(|error| wrong(format!("{usage}: {error}")))
    }

    /// The next word that is no option.
    fn optional(&mut self) -> Option<String> {
        let is_next = self.rest.first().is_some_and(|word| !word.starts_with('-'));
        is_next.then(|| self.rest.remove(0))
    }

    fn positional(&mut self, usage: &str) -> Result<String, ShellError> {
        self.optional().filter(|word| !word.is_empty()).ok_or_else(|| wrong(usage))
    }

    /// The next word, if it is no option: a negative number is none.
    fn value(&mut self, usage: &str) -> Result<String, ShellError> {
        let is_number = |word: &String| {
            word.strip_prefix('-').is_some_and(|rest| rest.starts_with(|one: char| one.is_ascii_digit() || one == '.'))
        };
        match self.rest.first().is_some_and(is_number) {
            true => Ok(self.rest.remove(0)),
            false => self.positional(usage),
        }
    }

    fn flag(&mut self, names: &[&str]) -> bool {
        let at = self.rest.iter().position(|word| names.contains(&word.as_str()));
        at.map(|at| self.rest.remove(at)).is_some()
    }

    /// The value of an option, wherever it stands.
    fn option(&mut self, names: &[&str]) -> Result<Option<String>, ShellError> {
        let Some(at) = self.rest.iter().position(|word| names.contains(&word.as_str())) else { return Ok(None) };
        let name = self.rest.remove(at);
        if at == self.rest.len() {
            return Err(wrong(format!("{name} takes a value")));
        }
        Ok(Some(self.rest.remove(at)))
    }

    /// The value of an option that stands first.
    fn leading_option(&mut self, names: &[&str]) -> Result<Option<String>, ShellError> {
        if self.rest.first().is_some_and(|word| names.contains(&word.as_str())) { self.option(names) } else { Ok(None) }
    }

    fn end(&self, verb: &str) -> Result<(), ShellError> {
        match self.rest.first() {
            Some(word) => Err(wrong(format!("{verb} does not take {word:?}: `help {verb}` shows what it takes"))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shell::split;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(&split(line).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn lines_become_verbs() {
        let look = |look| Verb::Look(look);
        let rollout: RolloutId = "t00001-g002-s03-a00".parse().unwrap();
        let cases = [
            ("status", look(Look::Status)),
            (
                "rollouts --state executing --older-than 5m",
                look(Look::Rollouts { state: Some("executing".into()), older_than_ms: 300_000 }),
            ),
            ("events -n 5", look(Look::Events { after: None, limit: 5 })),
            ("events -f", Verb::Follow(EVENTS)),
            ("why t00001-g002-s03-a00", look(Look::Why(rollout))),
            ("sql \"SELECT 1\"", look(Look::Sql("SELECT 1".into()))),
            ("sql \"-- x\nSELECT 1\"", look(Look::Sql("-- x\nSELECT 1".into()))),
            ("rollouts --state running", look(Look::Rollouts { state: Some("running".into()), older_than_ms: 0 })),
            ("sql SELECT 1", look(Look::Sql("SELECT 1".into()))),
            ("pause rollouts", Verb::Steer(Steer::Hold { what: Held::Rollouts, held: true })),
            ("resume training", Verb::Steer(Steer::Hold { what: Held::Training, held: false })),
            ("undrain eng0/embedded-0", Verb::Steer(Steer::Drain { what: "eng0/embedded-0".into(), drained: false })),
            ("stop --now", Verb::Steer(Steer::Stop(StopMode::Now))),
            ("cancel t00001-g002-s03-a00", Verb::Steer(Steer::Cancel(rollout))),
            (
                "set rollout.max_running -5",
                Verb::Steer(Steer::Set { key: "rollout.max_running".into(), value: "-5".into() }),
            ),
            ("help stop", Verb::Help(Some("stop".into()))),
        ];
        for (line, verb) in cases {
            assert_eq!(parsed(line), Ok(Request { verb, output: None }), "{line}");
        }
        assert_eq!(parsed("nodes -o json").unwrap().output, Some(Output::Json));
        let watched = parsed("watch -n 5 events -n 3 -o yaml").unwrap();
        assert_eq!(watched.output, Some(Output::Yaml));
        assert!(matches!(watched.verb, Verb::Watch(every, _) if every == Duration::from_secs(5)));
        for (every, ms) in [("0.1", 100), ("0.5", 500), ("500ms", 500), ("1.25", 1_250), ("2m", 120_000)] {
            let watched = parsed(&format!("watch -n {every} status")).unwrap().verb;
            assert!(matches!(watched, Verb::Watch(every, _) if every == Duration::from_millis(ms)), "{watched:?}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let cases = [
            ("statsu", "did you mean status?"),
            ("frobnicate", "`help` lists them"),
            ("bogus", "there is no verb \"bogus\": `help` lists them"),
            ("\"#\"", "there is no verb \"#\": `help` lists them"),
            ("set rollout.max_running --fast", "set KEY VALUE"),
            ("watch -n 0.09 status", "at least 0.1"),
            ("watch -n -1 status", "at least 0.1"),
            ("watch -n inf status", "such as 0.5 or 500ms, not \"inf\""),
            ("", "a verb"),
            ("stop", "--after-step"),
            ("stop --after-step --now", "--after-step"),
            ("pause everything", "pause training"),
            ("rollouts --older-than soon", "such as 90s"),
            ("rollouts --state", "takes a value"),
            ("why t1", "a rollout such as"),
            ("add-engine x", "add-engine NAME URL"),
            ("add-engine x ftp://y", "http://"),
            ("nodes -o xml", "json"),
            ("nodes all", "does not take \"all\""),
            ("watch stop --now", "watch takes a verb that looks"),
            ("sql", "sql QUERY"),
            ("sql \";\"", "there is no statement"),
            ("sql \"-- x\"", "there is no statement"),
            ("sql \"/* x */ ; -- y\"", "there is no statement"),
            ("rollouts --state foo", "one of queued, running, claiming"),
            ("add-engine x http://bob:hunter2@h:1", "engine.client.credentials.api_key"),
            ("add-engine x http://h:1/?token=hunter2", "engine.client.credentials.api_key"),
        ];
        for (line, expected) in cases {
            let said = parsed(line).unwrap_err();
            assert!(said.contains(expected) && !said.contains("hunter2"), "{line}: {said}");
        }
    }

    #[test]
    fn the_table_holds_exactly_the_verbs_that_are_known() {
        for page in VERBS {
            let said = parsed(page.name).map_or_else(|error| error, |_| String::new());
            assert!(!said.contains("there is no verb"), "{}: {said}", page.name);
            assert!(help(Some(page.name)).unwrap().contains(page.help));
            assert!(help(None).unwrap().contains(page.name));
        }
    }
}
