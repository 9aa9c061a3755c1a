//! `greenroom explain CODE`: cause and remedy of every stable error code.

use greenroom_core::ErrorPage;

/// The pages of the configuration's and the command line's own codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0901",
        cause: "the configuration cannot be read, or has unknown keys, values of the wrong kind, or contradictions",
        remedy: "each line names the key and what would be right; `greenroom config show --origin` shows where values come from",
    },
    ErrorPage {
        code: "GR0902",
        cause: "a command needs libtorch, and this binary was built without the feature `torch`",
        remedy: "build it with the default features after `cargo quickstart --set-up-only`, or use a running SGLang engine",
    },
    ErrorPage {
        code: "GR0903",
        cause: "a run could not be started: a part of it failed while starting",
        remedy: "the message names the part and why; nothing was trained",
    },
    ErrorPage {
        code: "GR0904",
        cause: "the history of a run breaks an invariant",
        remedy: "each line names the rule and what breaks it: a defect. Keep the run directory and report it",
    },
    ErrorPage {
        code: "GR0905",
        cause: "tasks need images that the configuration does not have",
        remedy: "name each under data.images.NAME.source_dir, or put it into the directory data.images_dir",
    },
    ErrorPage {
        code: "GR0906",
        cause: "a run's name is a directory below --runs and part of each weight version, and the given one cannot be both",
        remedy: "use at most 100 letters, digits, dots, underscores and hyphens, beginning with a letter or digit",
    },
    ErrorPage {
        code: "GR0907",
        cause: "a file or directory that the configuration names is missing, too large, or a pipe or device instead of a file",
        remedy: "the message names the setting, the path and what is wrong: correct the path; relative ones are below data.root",
    },
    ErrorPage {
        code: "GR0908",
        cause: "a model's directory is missing or incomplete; nothing is fetched from a model hub",
        remedy: "give a local Hugging Face directory with config.json, tokenizer and *.safetensors; for random weights set model.init_weights = true",
    },
    ErrorPage {
        code: "GR0909",
        cause: "rollouts may become longer than the positions that the model was made for",
        remedy: "set rollout.max_context_tokens to at most the max_position_embeddings of the model's config.json",
    },
    ErrorPage {
        code: "GR0910",
        cause: "--resume was given with other tasks, demonstrations, images, another agent, model or tokenizer than the run was begun with, or their files have changed",
        remedy: "resume with the inputs that the message names as saved (--resume alone takes them), or begin a new run with another --name",
    },
    ErrorPage {
        code: "GR0911",
        cause: "a text names no device",
        remedy: "write cpu, cuda:N with the number of a GPU, or auto for the first GPU if there is one",
    },
    ErrorPage {
        code: "GR0912",
        cause: "--nodes was given what is no layout of nodes, or one that cannot do a run",
        remedy: "write nodes parted by commas, a node's roles by +, and *N for N such nodes: controller+rollout,trainer,engine*2,sandbox",
    },
    ErrorPage {
        code: "GR0913",
        cause: "a node of a run on this machine failed again and again, or never began to listen; all nodes were stopped",
        remedy: "its last words stand above, with its name before them; all of them are in nodes/NAME/state/greenroom.log. Mend it and go on with --resume",
    },
    ErrorPage {
        code: "GR0914",
        cause: "a run cannot go on over these nodes: it was begun in one process or with other nodes, or another process runs its nodes",
        remedy: "--resume alone takes what the run was begun with",
    },
    ErrorPage {
        code: "GR0915",
        cause: "sandbox.local.isolation is \"none\", and a task names a directory, or is graded in a sandbox that the agent cannot reach",
        remedy: "use isolation = \"namespaces\"; without walls only tasks with an eval_cmd and no workdir can be graded, in the \
                 agent's own sandbox (rollout.grade_in = \"same-box\")",
    },
    ErrorPage {
        code: "GR0916",
        cause: "the history of a run, run.db, is gone, is empty, or is another one's, and what the run has made is still there; or it went while the run worked",
        remedy: "give run.db (and run.db-wal) back from a copy and go on with the run; without one it cannot go on: begin a new run under another name, or in another run_dir",
    },
];

/// All pages of all crates, in order of their codes.
pub fn pages() -> Vec<&'static ErrorPage> {
    let mut pages: Vec<&ErrorPage> = [
        ERRORS,
        greenroom_core::ERRORS,
        greenroom_messages::ERRORS,
        greenroom_run::ERRORS,
        greenroom_rollout::ERRORS,
        greenroom_rollout::AGENT_ERRORS,
        greenroom_rollout::GRADING_ERRORS,
        greenroom_rollout::MAKE_ERRORS,
        greenroom_engine::ERRORS,
        #[cfg(feature = "cluster")]
        crate::node::NODE_ERRORS,
        #[cfg(feature = "cluster")]
        crate::shell::SHELL_ERRORS,
        #[cfg(feature = "cluster")]
        greenroom_cluster::ERRORS,
        greenroom_identity::ERRORS,
        greenroom_dataplane::ERRORS,
        greenroom_sandbox::ERRORS,
        greenroom_tokens::ERRORS,
        greenroom_weights::ERRORS,
    ]
    .into_iter()
    .flatten()
    .collect();
    #[cfg(feature = "torch")]
    pages.extend(
        [greenroom_trainer::ERRORS, greenroom_policy::ERRORS, greenroom_policy::server::ERRORS].into_iter().flatten(),
    );
    pages.sort_by_key(|page| page.code);
    pages
}

/// The code of an error, whichever crate it comes from; none for one that has none.
pub fn code_of(error: &anyhow::Error) -> Option<&'static str> {
    macro_rules! first_code {
        ($cause:expr, $($kind:ty),+ $(,)?) => { None$(.or_else(|| $cause.downcast_ref::<$kind>().map(<$kind>::code)))+ };
    }
    error.chain().find_map(|cause| {
        let found: Option<&'static str> = first_code!(
            cause,
            crate::StartError,
            greenroom_run::RunError,
            greenroom_rollout::RolloutError,
            greenroom_rollout::dataset::make::MakeError,
            greenroom_engine::EngineConfigError,
            greenroom_sandbox::SandboxError,
            greenroom_tokens::TokensError,
            greenroom_weights::WeightsError,
            greenroom_identity::IdentityError,
        );
        #[cfg(feature = "cluster")]
        let found = found.or_else(|| first_code!(cause, greenroom_cluster::ClusterError));
        #[cfg(feature = "torch")]
        let found = found.or_else(|| {
            first_code!(
                cause,
                greenroom_trainer::TrainerError,
                greenroom_policy::PolicyError,
                greenroom_policy::server::ServerError
            )
        });
        found.or_else(|| {
            // these say their codes themselves, or have only one
            let is_faults = cause.is::<greenroom_core::FaultPlanError>();
            is_faults.then_some("GR0006").or_else(|| cause.is::<crate::config::ConfigError>().then_some("GR0901"))
        })
    })
}

/// An error in words: its code, what happened, and a line for each further problem.
pub fn in_words(error: &anyhow::Error) -> String {
    let text = format!("{error:#}");
    let coded = match code_of(error).or_else(|| code_in(&text)) {
        // some errors say their code themselves, behind what was put before them
        Some(code) if !text.starts_with(code) => format!("{code}: {}", text.replacen(&format!("{code}: "), "", 1)),
        _ => text,
    };
    // a line that begins at the margin would be taken for the next error
    let lines = coded.lines().enumerate();
    let indented =
        lines.map(|(number, line)| if number == 0 { line.to_owned() } else { format!("  {}", line.trim_start()) });
    indented.collect::<Vec<_>>().join("\n")
}

/// The first code of a text that has a page.
fn code_in(text: &str) -> Option<&'static str> {
    text.match_indices("GR").find_map(|(at, _)| page(text.get(at..at + 6)?)).map(|page| page.code)
}

/// The page of one code.
pub fn page(code: &str) -> Option<&'static ErrorPage> {
    pages().into_iter().find(|page| page.code.eq_ignore_ascii_case(code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_page_with_cause_and_remedy() {
        let pages = pages();
        for pair in pages.windows(2) {
            assert_ne!(pair[0].code, pair[1].code);
        }
        for page in pages {
            let number = page.code.strip_prefix("GR").unwrap();
            assert!(number.len() == 4 && number.bytes().all(|digit| digit.is_ascii_digit()), "{}", page.code);
            assert!(!page.cause.is_empty() && !page.remedy.is_empty(), "{}", page.code);
        }
        assert_eq!(page("gr0901").map(|page| page.code), Some("GR0901"));
    }

    #[test]
    fn an_error_of_any_crate_is_told_with_its_code_and_once() {
        let told = |error: anyhow::Error| in_words(&error);
        let path = std::path::PathBuf::from("/x");
        let no_run = greenroom_run::RunError::NoRun { path: path.clone() };
        assert_eq!(told(no_run.into()), "GR0203: /x holds no run to resume");
        let data = greenroom_rollout::RolloutError::DatasetInvalid { problems: vec!["a:1: b".into(), "a:2: c".into()] };
        assert_eq!(told(anyhow::Error::from(data).context("data.train")), "GR0302: data.train: a:1: b\n  a:2: c");
        let config = crate::config::ConfigError { problems: vec!["x".into()] };
        assert_eq!(told(config.into()), "GR0901: the configuration is wrong\n  x");
        assert_eq!(told(anyhow::anyhow!("GR0207: y")), "GR0207: y");
        assert_eq!(told(anyhow::anyhow!("GR0312: y").context("x")), "GR0312: x: y");
        assert_eq!(
            told(anyhow::anyhow!("GR and GR12\u{e4}\u{e4} are no codes")),
            "GR and GR12\u{e4}\u{e4} are no codes"
        );
        let start = crate::StartError::Device { setting: "--device".into(), text: "gpu".into() };
        assert_eq!(told(start.into()), "GR0911: --device is \"gpu\": write cpu, cuda:N (such as cuda:0) or auto");
    }
}
