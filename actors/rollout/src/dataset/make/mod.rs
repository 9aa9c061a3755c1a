//! Making tasks: real git repositories with seeded bugs, rows in SWE-smith's shape and in the sample schema.
//!
//! [`quickstart`] turns the content under `config/quickstart` into everything a first run needs: sandbox images, task files,
//! demonstrations for the warm start, tokenizer and model configuration. Everything is a function of content and seed, but
//! for the ids of tests, which are those of the machine's Python. Each task is checked when it is made (the fix earns 1,
//! nothing earns 0, the same tests in several runs); one that fails its check is an error. Blocking: call it off the actors'
//! threads.

mod command_task;
mod content;
mod demonstration;
mod error;
mod instance;
mod package;
mod process;
mod python;
mod quickstart;
mod repository;
mod tokenizer;

pub use error::{MAKE_ERRORS, MakeError};
pub use instance::Instance;
pub use package::{BugsData, BugsRequest, Package, bugs};
pub use quickstart::{QuickstartData, quickstart};

/// How far the making of tasks has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MakeProgress {
    /// Parts done.
    pub done: u32,
    /// Parts in all.
    pub total: u32,
    /// The part that was just done, for people.
    pub what: String,
}
