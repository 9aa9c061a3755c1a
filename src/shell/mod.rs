//! The shell: how people look at a run over several machines and steer it.
//!
//! [`verb`] is the one table of verbs, shared by `greenroom shell` and `greenroom ctl`: words become a [`Verb`] once, and
//! [`Session::perform`] carries it out once. A session joins the cluster as an actor that only dials, and asks one service,
//! the controller's desk. What it gets are typed sights; [`output`] shows them as tables, JSON or YAML.
//!
//! On failure: a verb that is wrong is refused before anything is asked, with the nearest one; a cluster that cannot be
//! joined is told with what the cluster said; each question has a deadline.

mod bundle;
mod doctor;
mod error;
mod output;
mod reach;
pub(crate) mod redact;
mod screen;
mod session;
mod verb;
mod words;

pub use error::{SHELL_ERRORS, ShellError};
pub use output::{Output, printable};
pub use session::{Done, Session, Show, Shown, Way, at_once};
pub use verb::{ROLLOUT_STATES, Request, VERBS, Verb, VerbPage, help, parse};
pub(crate) use words::duration_ms;
pub use words::split;
