//! `greenroom explain CODE`: cause and remedy of every stable error code.

use greenroom_core::ErrorPage;

/// The pages of the configuration's and the command line's own codes.
pub const ERRORS: &[ErrorPage] = &[
    ErrorPage {
        code: "GR0901",
        cause: "the configuration has unknown keys, values of the wrong kind, or contradictions",
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
        greenroom_identity::ERRORS,
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
}
