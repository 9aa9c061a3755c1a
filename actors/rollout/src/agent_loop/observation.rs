//! What a command did, in the words of the agent and of the grader.

use greenroom_messages::sandbox::ExecOutcome;

use crate::agent::{ExecFailure, ExecResult};
use crate::grading::CommandOutcome;

/// Bytes as mini-swe-agent reads them: UTF-8 with replacement, CRLF and then lone CR turned into LF.
fn decode(output: &[u8]) -> String {
    let text = String::from_utf8_lossy(output);
    if text.contains('\r') { text.replace("\r\n", "\n").replace('\r', "\n") } else { text.into_owned() }
}

/// For the agent.
pub(super) fn exec_result(outcome: ExecOutcome) -> ExecResult {
    let failure =
        outcome.exception.map(|exception| ExecFailure { exception_type: exception.kind, exception: exception.text });
    ExecResult { output: decode(&outcome.output), returncode: outcome.returncode.into(), failure }
}

/// For the grader. A command that was killed for its use of memory or disk did start: that is the policy's doing.
pub(super) fn command_outcome(outcome: ExecOutcome) -> CommandOutcome {
    let output = decode(&outcome.output);
    match outcome.exception {
        Some(exception) if exception.kind == "TimeoutExpired" => CommandOutcome::timed_out(output),
        Some(exception) if matches!(exception.kind.as_str(), "FileNotFoundError" | "OSError" | "ValueError") => {
            CommandOutcome { not_started: Some(exception.text), ..CommandOutcome::finished(-1, output) }
        }
        _ => CommandOutcome::finished(outcome.returncode.into(), output),
    }
}

#[cfg(test)]
mod tests {
    use greenroom_messages::sandbox::ExecException;

    use super::*;

    #[test]
    fn the_kinds_of_ends_keep_their_meaning() {
        let outcome = |kind: &str| ExecOutcome {
            output: b"a\r\nb\rc\xff".to_vec(),
            dropped_bytes: 0,
            returncode: -1,
            exception: (!kind.is_empty()).then(|| ExecException { kind: kind.to_owned(), text: "why".to_owned() }),
            elapsed_ms: 0,
        };
        let result = exec_result(outcome("TimeoutExpired"));
        assert_eq!((result.output.as_str(), result.returncode), ("a\nb\nc\u{fffd}", -1));
        assert!(result.exception_info().ends_with("why"));
        let graded = |kind| command_outcome(outcome(kind));
        assert!(graded("TimeoutExpired").timed_out);
        assert_eq!(graded("FileNotFoundError").not_started.as_deref(), Some("why"));
        assert_eq!(graded("MemoryLimitExceeded"), CommandOutcome::finished(-1, "a\nb\nc\u{fffd}"));
    }
}
