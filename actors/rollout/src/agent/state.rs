//! The episode: which call or command comes next, and what a reply or a result adds to the messages.
//!
//! [`Agent::next`] may be asked again and again and gives the same answer until it is fed, so a caller that lost a
//! request can repeat it. Limits are looked at only when a new call would begin: steps and cost first, then time. A
//! reply without exactly one action leaves a correction in the list and itself in [`Agent::failed_replies`]: a dead
//! branch of the token tree. Costs follow 2.4.6: such a reply is paid for.

use std::sync::Arc;
use std::time::Duration;

use minijinja::Value;

use super::config::ActionProtocol;
use super::definition::{AgentDefinition, AgentTask, HostFacts};
use super::error::AgentError;
use super::exec::ExecResult;
use super::exit::{Exit, ExitStatus};
use super::message::{Message, MessageExtra, Origin, Role};
use super::submission::submission;
use super::template::{self, RenderFailure, Variables};
use super::tool_call::{self, ToolCall};

/// One episode of one task.
#[derive(Debug, Clone)]
pub struct Agent {
    definition: Arc<AgentDefinition>,
    task: AgentTask,
    variables: Variables,
    started_at: Duration,
    messages: Vec<Message>,
    failed_replies: Vec<FailedReply>,
    calls: u64,
    cost: f64,
    format_errors_in_a_row: u64,
    phase: Phase,
}

/// What the agent waits for.
#[derive(Debug, Clone)]
enum Phase {
    BetweenSteps,
    AwaitingReply,
    Executing { actions: Vec<(String, Option<String>)>, results: Vec<ExecResult> },
    Ended(Exit),
}

/// What the caller does next.
#[derive(Debug, PartialEq)]
pub enum NextStep<'a> {
    /// Send `messages` to the model, then call [`Agent::on_reply`] or [`Agent::on_error`].
    Query {
        /// Index of this call, from 0.
        call_index: u64,
        /// Everything the model is sent; none of them is a closing note.
        messages: &'a [Message],
    },
    /// Run `command`, then call [`Agent::on_output`].
    Execute {
        /// The call whose reply holds the action.
        call_index: u64,
        /// Which action of that reply, from 0.
        action_index: usize,
        /// The command's text, for `/bin/sh -c`.
        command: &'a str,
        /// Where it runs; empty is the sandbox's own directory.
        cwd: &'a str,
        /// When it is killed.
        timeout: Duration,
    },
    /// The episode is over.
    Exit(&'a Exit),
}

/// A model's reply.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Reply {
    /// The text; no content is the empty text.
    pub content: String,
    /// Why it ended, such as `stop` or `length`.
    pub finish_reason: Option<String>,
    /// Its price, in the unit of the cost limit; 0 for the policy in training.
    pub cost: f64,
    /// Its calls, in tool-call mode.
    pub tool_calls: Vec<ToolCall>,
}

/// A reply that never entered the messages.
#[derive(Debug, Clone, PartialEq)]
pub struct FailedReply {
    /// The call it answered.
    pub call_index: u64,
    /// How many messages that call was sent: the reply is a branch after these.
    pub messages_before: usize,
    /// The reply.
    pub reply: Reply,
}

impl Agent {
    /// Begin an episode: render the two prompts. `now` is measured from any fixed origin, the same for every call of
    /// this agent. A prompt that cannot be rendered is an error; there is no episode then.
    pub fn new(
        definition: Arc<AgentDefinition>,
        task: AgentTask,
        host: &HostFacts,
        now: Duration,
    ) -> Result<Self, AgentError> {
        let variables = definition.variables(&task, host);
        let mut messages = Vec::new();
        for (role, name) in [(Role::System, template::SYSTEM), (Role::User, template::INSTANCE)] {
            let content = definition.templates.render(name, &variables).map_err(|failure| {
                AgentError::TemplateRender { template: name, kind: failure.kind, detail: failure.detail }
            })?;
            messages.push(Message::text(role, content, Origin::Prompt, MessageExtra::None));
        }
        Ok(Self {
            definition,
            task,
            variables,
            started_at: now,
            messages,
            failed_replies: Vec::new(),
            calls: 0,
            cost: 0.0,
            format_errors_in_a_row: 0,
            phase: Phase::BetweenSteps,
        })
    }

    /// What to do next. A new call is counted here, before it is made.
    pub fn next(&mut self, now: Duration) -> NextStep<'_> {
        if matches!(self.phase, Phase::BetweenSteps) {
            match self.limit_reached(now) {
                Some(status) => self.end(status, String::new()),
                None => {
                    self.calls += 1;
                    self.phase = Phase::AwaitingReply;
                }
            }
        }
        let call_index = self.calls.saturating_sub(1);
        match &self.phase {
            Phase::BetweenSteps | Phase::AwaitingReply => NextStep::Query { call_index, messages: &self.messages },
            Phase::Executing { actions, results } => NextStep::Execute {
                call_index,
                action_index: results.len(),
                command: actions.get(results.len()).map_or("", |(command, _)| command),
                cwd: self.task.cwd.as_deref().unwrap_or(&self.definition.file.environment.cwd),
                timeout: Duration::from_secs(self.definition.file.environment.timeout_seconds),
            },
            Phase::Ended(exit) => NextStep::Exit(exit),
        }
    }

    /// Take the reply to the call that [`NextStep::Query`] asked for.
    pub fn on_reply(&mut self, reply: Reply) -> Result<(), AgentError> {
        self.expect("a reply", matches!(self.phase, Phase::AwaitingReply))?;
        match self.actions(&reply) {
            Ok(actions) => {
                self.cost += reply.cost;
                let extra = MessageExtra::Reply { actions: actions.clone(), cost: reply.cost };
                let origin = Origin::Reply { call_index: self.calls - 1 };
                let mut message = Message::text(Role::Assistant, reply.content, origin, extra);
                message.tool_calls = reply.tool_calls;
                self.messages.push(message);
                self.phase = Phase::Executing { actions, results: Vec::new() };
            }
            Err(correction) => self.correct(reply, correction),
        }
        Ok(())
    }

    /// Take the result of the command that [`NextStep::Execute`] asked for; `now` dates the observation's variables.
    pub fn on_output(&mut self, result: ExecResult, now: Duration) -> Result<(), AgentError> {
        let executing = matches!(self.phase, Phase::Executing { .. });
        self.expect("a command's result", executing)?;
        if let Some(text) = submission(&result) {
            let text = text.to_owned();
            self.end(ExitStatus::Submitted, text);
            return Ok(());
        }
        if let Phase::Executing { actions, results } = &mut self.phase {
            results.push(result);
            if results.len() < actions.len() {
                return Ok(());
            }
        }
        self.observe(now);
        Ok(())
    }

    /// End the episode because the model call (or a command's environment) failed in a way upstream would raise.
    /// `exception_type` becomes the exit status.
    pub fn on_error(&mut self, exception_type: &str, exception: &str) -> Result<(), AgentError> {
        let waiting = matches!(self.phase, Phase::AwaitingReply | Phase::Executing { .. });
        self.expect("an error", waiting)?;
        self.fail(exception_type, exception);
        Ok(())
    }

    /// Every message so far, the closing note included.
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Replies that were corrected instead of entering the messages, in order.
    pub fn failed_replies(&self) -> &[FailedReply] {
        &self.failed_replies
    }

    /// Model calls made.
    pub fn calls(&self) -> u64 {
        self.calls
    }

    /// What the replies cost together.
    pub fn cost(&self) -> f64 {
        self.cost
    }

    /// The end, once there is one.
    pub fn exit(&self) -> Option<&Exit> {
        match &self.phase {
            Phase::Ended(exit) => Some(exit),
            _ => None,
        }
    }

    /// What this agent was made of.
    pub fn definition(&self) -> &Arc<AgentDefinition> {
        &self.definition
    }

    fn expect(&self, given: &'static str, in_turn: bool) -> Result<(), AgentError> {
        if in_turn {
            return Ok(());
        }
        let expected = match self.phase {
            Phase::BetweenSteps => "the next step to be asked for",
            Phase::AwaitingReply => "a reply",
            Phase::Executing { .. } => "a command's result",
            Phase::Ended(_) => "nothing: the episode is over",
        };
        Err(AgentError::OutOfTurn { given, expected })
    }

    fn limit_reached(&self, now: Duration) -> Option<ExitStatus> {
        let limits = &self.definition.file.agent;
        let steps_used_up = limits.step_limit > 0 && self.calls >= limits.step_limit;
        let cost_used_up = limits.cost_limit > 0.0 && self.cost >= limits.cost_limit;
        let time_used_up =
            limits.wall_time_limit_seconds > 0 && self.elapsed_seconds(now) >= limits.wall_time_limit_seconds;
        if steps_used_up || cost_used_up {
            Some(ExitStatus::LimitsExceeded)
        } else if time_used_up {
            Some(ExitStatus::TimeExceeded)
        } else {
            None
        }
    }

    fn elapsed_seconds(&self, now: Duration) -> u64 {
        now.saturating_sub(self.started_at).as_secs()
    }

    fn end(&mut self, status: ExitStatus, submission: String) {
        let (content, exception) = match &status {
            ExitStatus::Submitted => (submission.clone(), None),
            ExitStatus::Failed { exception, .. } => (exception.clone(), Some(exception.clone())),
            other => (other.as_str().to_owned(), None),
        };
        let extra =
            MessageExtra::Exit { exit_status: status.as_str().to_owned(), submission: submission.clone(), exception };
        self.messages.push(Message::text(Role::Exit, content, Origin::Exit, extra));
        self.phase = Phase::Ended(Exit { status, submission });
    }

    fn fail(&mut self, exception_type: &str, exception: &str) {
        let status = ExitStatus::Failed { exception_type: exception_type.to_owned(), exception: exception.to_owned() };
        self.end(status, String::new());
    }

    /// The actions of a reply, or the variables of the correction it earns and the number of actions found.
    fn actions(&self, reply: &Reply) -> Result<Vec<(String, Option<String>)>, Correction> {
        let mut variables = Variables::default();
        variables.set("finish_reason", reply.finish_reason.as_deref());
        match self.definition.file.model.protocol {
            ActionProtocol::Text => {
                let actions = self.definition.action_regex.actions(&reply.content);
                if actions.len() == 1 {
                    return Ok(actions.into_iter().map(|command| (command, None)).collect());
                }
                variables.set("error", format!("Expected exactly 1 action, found {}.", actions.len()));
                let action_count = Some(actions.len());
                variables.set("actions", actions);
                Err(Correction { variables, action_count })
            }
            ActionProtocol::ToolCall => tool_call::commands(&reply.tool_calls).map_err(|sentence| {
                variables.set("error", sentence);
                variables.set("actions", Vec::<String>::new());
                variables.set("has_tool_calls", !reply.tool_calls.is_empty());
                Correction { variables, action_count: None }
            }),
        }
    }

    fn correct(&mut self, reply: Reply, correction: Correction) {
        let call_index = self.calls - 1;
        let rendered = self.definition.templates.render(template::FORMAT_ERROR, &correction.variables);
        let (messages_before, cost) = (self.messages.len(), reply.cost);
        let model_response = correction.action_count.map(|_| reply.content.clone());
        self.failed_replies.push(FailedReply { call_index, messages_before, reply });
        let content = match rendered {
            Ok(content) => content,
            Err(failure) => return self.fail(failure.kind, &failure.detail),
        };
        self.cost += cost;
        let extra = MessageExtra::FormatError { action_count: correction.action_count, model_response, cost };
        self.messages.push(Message::text(Role::User, content, Origin::FormatError { call_index }, extra));
        self.format_errors_in_a_row += 1;
        let limit = self.definition.file.agent.max_consecutive_format_errors;
        if limit > 0 && self.format_errors_in_a_row >= limit {
            self.end(ExitStatus::RepeatedFormatError, String::new());
        } else {
            self.phase = Phase::BetweenSteps;
        }
    }

    /// Append the observations of a step whose commands have all run.
    fn observe(&mut self, now: Duration) {
        let Phase::Executing { actions, results } = std::mem::replace(&mut self.phase, Phase::BetweenSteps) else {
            return;
        };
        let mut observations = Vec::with_capacity(results.len());
        for (action_index, ((_, tool_call_id), result)) in actions.into_iter().zip(results).enumerate() {
            match self.observation(action_index, tool_call_id, result, now) {
                Ok(message) => observations.push(message),
                // All or none: upstream renders the whole list before it appends.
                Err(failure) => return self.fail(failure.kind, &failure.detail),
            }
        }
        self.messages.append(&mut observations);
        self.format_errors_in_a_row = 0;
    }

    fn observation(
        &self,
        action_index: usize,
        tool_call_id: Option<String>,
        result: ExecResult,
        now: Duration,
    ) -> Result<Message, RenderFailure> {
        let mut variables = self.variables.clone();
        if variables.contains("output") {
            let detail = "jinja2.environment.Template.render() got multiple values for keyword argument 'output'";
            return Err(template::duplicate_argument(detail));
        }
        let counters = [
            ("n_model_calls", Value::from(self.calls)),
            ("model_cost", Value::from(self.cost)),
            ("elapsed_seconds", Value::from(self.elapsed_seconds(now))),
        ];
        for (name, value) in counters.into_iter().filter(|(name, _)| !self.task.defines(name)) {
            variables.set(name, value);
        }
        let exception_info = result.exception_info();
        variables.set("output", output_variable(&result, &exception_info));
        let content = self.definition.templates.render(template::OBSERVATION, &variables)?;
        let extra = MessageExtra::Observation {
            raw_output: result.output,
            returncode: result.returncode,
            exception_info,
            exception: result.failure.map(|failure| (failure.exception_type, failure.exception)),
        };
        let role = if tool_call_id.is_some() { Role::Tool } else { Role::User };
        let origin = Origin::Observation { call_index: self.calls - 1, action_index };
        let mut message = Message::text(role, content, origin, extra);
        message.tool_call_id = tool_call_id;
        Ok(message)
    }
}

/// What a reply that failed to parse is answered with.
struct Correction {
    variables: Variables,
    action_count: Option<usize>,
}

/// A result as templates see it.
fn output_variable(result: &ExecResult, exception_info: &str) -> Value {
    let mut members = vec![
        ("output", Value::from(result.output.as_str())),
        ("returncode", Value::from(result.returncode)),
        ("exception_info", Value::from(exception_info)),
    ];
    if let Some(failure) = &result.failure {
        let extra = [
            ("exception_type", Value::from(failure.exception_type.as_str())),
            ("exception", Value::from(failure.exception.as_str())),
        ];
        members.push(("extra", extra.into_iter().collect()));
    }
    members.into_iter().collect()
}
