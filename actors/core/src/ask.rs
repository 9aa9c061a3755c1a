//! Questions with a deadline.
//!
//! [`ask`] sends a message that carries a [`Reply`] and waits for the answer until the deadline. Four things can go wrong
//! and each has a name: nobody is there, nobody answered in time, the one asked threw the reply away, or the line to its
//! node broke. Invariant: a question that was delivered ends in exactly one of answer, `TimedOut`, `Dropped`, `Lost`; none
//! waits for ever.

use crate::{Address, Deadline, Reply, Unanswered};

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// The actor asked is not running (GR0001).
    #[error("{name} is not running")]
    Gone {
        /// Who was asked.
        name: String,
    },
    /// The deadline passed without an answer (GR0002).
    #[error("{name} did not answer within {waited_ms} ms")]
    TimedOut {
        /// Who was asked.
        name: String,
        /// How long the question waited, in milliseconds.
        waited_ms: u64,
    },
    /// The one asked ended or dropped the reply port without an answer (GR0003).
    #[error("{name} dropped the question without an answer")]
    Dropped {
        /// Who was asked.
        name: String,
    },
    /// The line to the node of the one asked is lost, or the question or its answer could not cross it: whether the
    /// question had its effect is not known (GR0007).
    #[error("the question to {name} was lost: {reason}")]
    Lost {
        /// Who was asked.
        name: String,
        /// What happened to the line.
        reason: String,
    },
}

impl AskError {
    /// The stable code of this error.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Gone { .. } => "GR0001",
            Self::TimedOut { .. } => "GR0002",
            Self::Dropped { .. } => "GR0003",
            Self::Lost { .. } => "GR0007",
        }
    }
}

/// Asks `target` and waits until `deadline`; `question` builds the message around the reply port.
pub async fn ask<M, T>(
    target: &Address<M>,
    deadline: Deadline,
    question: impl FnOnce(Reply<T>) -> M,
) -> Result<T, AskError>
where
    M: Send + 'static,
{
    let (reply, answer) = Reply::until(deadline);
    let asked_at = tokio::time::Instant::now();
    let name = || target.name().to_owned();
    target.cast(question(reply)).map_err(|gone| AskError::Gone { name: gone.name })?;
    match tokio::time::timeout_at(deadline.instant(), answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(Unanswered::Lost(reason))) => Err(AskError::Lost { name: name(), reason }),
        Ok(Err(Unanswered::Dropped)) => Err(AskError::Dropped { name: name() }),
        Err(_) => Err(AskError::TimedOut { name: name(), waited_ms: asked_at.elapsed().as_millis() as u64 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Question {
        Answer(Reply<u32>),
        Drop(Reply<u32>),
        Hold(Reply<u32>),
    }

    fn target() -> Address<Question> {
        let held = std::sync::Mutex::new(Vec::new());
        Address::of_function("oracle", move |question| {
            match question {
                Question::Answer(reply) => drop(reply.send(42)),
                Question::Drop(reply) => drop(reply),
                Question::Hold(reply) => held.lock().map_err(|_| ())?.push(reply),
            }
            Ok(())
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_question_ends_in_an_answer_a_drop_or_a_time_out() {
        let oracle = target();
        let name = "oracle".to_owned();
        let deadline = || Deadline::after_ms(500);
        assert_eq!(ask(&oracle, deadline(), Question::Answer).await, Ok(42));
        assert_eq!(ask(&oracle, deadline(), Question::Drop).await, Err(AskError::Dropped { name: name.clone() }));
        assert_eq!(
            ask(&oracle, deadline(), Question::Hold).await,
            Err(AskError::TimedOut { name: name.clone(), waited_ms: 500 })
        );
        oracle.unbind();
        assert_eq!(ask(&oracle, deadline(), Question::Answer).await, Err(AskError::Gone { name }));
    }
}
