//! The course of one episode. Reads from top to bottom: claim, set up, act, grade, release, report.

use std::time::Duration;

use greenroom_messages::engine::FinishReason;
use greenroom_messages::rollout::{FinishedRollout, InfraFailure, InfraKind, RolloutOutcome, RolloutState, Sample};
use greenroom_messages::run::RunEvent;
use greenroom_messages::sandbox::{ClaimLease, Shell};
use serde_json::Value;

use super::engine::{EngineUse, TurnFailure, generate};
use super::life::Life;
use super::observation::{command_outcome, exec_result};
use super::progress::Part;
use super::sandbox::{ExecCall, HeldBox, claim, sandbox_failed};
use super::{EpisodeSetting, Progress, trajectory};
use crate::agent::{Agent, AgentTask, Exit, ExitStatus, Message, NextStep, Reply};
use crate::grading::{GradeError, GradeStep, Grader, InstanceCommits, SweSmithTask, parse_withheld, withhold_command};
use crate::manager::Issue;
use crate::tokens::History;

/// The wait before the set-up command is tried again; grows with each try.
const SETUP_BACKOFF: Duration = Duration::from_secs(2);
/// How much of a failed set-up's output its message holds, in characters.
const SETUP_TAIL: usize = 300;
/// How much of a grading command's output is kept: a lost line of a test log is a lost result.
const GRADING_OUTPUT_BYTES: u64 = 64 << 20;
/// The name mini-swe-agent's users know for a prompt that became too long.
const CONTEXT_EXCEEDED: &str = "ContextWindowExceededError";

/// Plays one episode to its end and says how it ended. Never fails and never panics by itself.
pub(super) async fn play(setting: &EpisodeSetting, issue: &Issue, progress: &Progress) -> FinishedRollout {
    let mut episode = Episode { setting, issue, progress, life: Life::new() };
    let played = episode.play_in_a_box().await;
    let (rollout, task) = (issue.rollout, issue.task.id.clone());
    match played {
        Ok(played) => {
            let outcome = if played.is_submitted { RolloutOutcome::Completed } else { RolloutOutcome::Truncated };
            FinishedRollout {
                reward: Some(played.reward),
                samples: played.samples,
                ..progress.finished(rollout, task, outcome)
            }
        }
        Err(failure) => progress.finished(rollout, task, RolloutOutcome::InfraFailed(failure)),
    }
}

struct Episode<'a> {
    setting: &'a EpisodeSetting,
    issue: &'a Issue,
    progress: &'a Progress,
    life: Life,
}

/// A command that does not end by itself within a millisecond.
const OUTLIVES_ITS_DEADLINE: &str = "sleep 60";

/// An episode that was graded.
struct Played {
    is_submitted: bool,
    reward: f32,
    samples: Vec<Sample>,
}

/// What the agent left.
struct Acted {
    exit: Exit,
    samples: Vec<Sample>,
}

impl Episode<'_> {
    fn go(&mut self, state: RolloutState) {
        if self.life.go(state) {
            self.setting.record(RunEvent::RolloutMoved { rollout: self.issue.rollout, state });
        }
    }

    async fn play_in_a_box(&mut self) -> Result<Played, InfraFailure> {
        self.go(RolloutState::Claiming);
        let held = self.progress.timed(Part::Claim, self.claim()).await?;
        let played = self.play(&held).await;
        if let Err(error) = held.release().await {
            let asker = self.issue.rollout.to_string();
            self.setting.record(RunEvent::AskFailed { asker, error: format!("releasing the sandbox: {error}") });
        }
        played
    }

    async fn claim(&self) -> Result<HeldBox, InfraFailure> {
        let (task, config) = (&self.issue.task, &self.setting.config);
        let Some(pool) = self.setting.sandboxes.get(&task.image) else {
            return Err(sandbox_failed("claim", format!("there is no pool of image {:?}", task.image)));
        };
        let request = ClaimLease {
            rollout: self.issue.rollout,
            lifetime_ms: config.sandbox_lifetime_ms(),
            wait_ms: config.claim_timeout_ms,
        };
        let claimed = claim(pool, request).await?;
        self.progress.claimed(&claimed);
        Ok(HeldBox::new(&claimed, task.workdir.as_deref()))
    }

    async fn play(&mut self, held: &HeldBox) -> Result<Played, InfraFailure> {
        self.go(RolloutState::SettingUp);
        let commits = self.progress.timed(Part::SetUp, self.set_up(held)).await?;
        let acted = self.act(held).await?;
        self.go(RolloutState::Grading);
        let reward = self.progress.timed(Part::Grade, self.grade(held, commits)).await?;
        let is_submitted = acted.exit.status == ExitStatus::Submitted;
        Ok(Played { is_submitted, reward, samples: acted.samples })
    }

    /// Writes the task's files, runs its set-up command until it succeeds, finds out the commits of its branch, and takes
    /// out of the repository what the agent must not find.
    async fn set_up(&self, held: &HeldBox) -> Result<Option<InstanceCommits>, InfraFailure> {
        let task = &self.issue.task;
        held.put_files(&task.files).await?;
        if let Some(command) = &task.setup_cmd {
            self.run_setup_command(held, command).await?;
        }
        if !task.needs_commits() {
            return Ok(None);
        }
        let (id, withhold) = (task.id.as_str(), self.setting.config.withhold_history);
        let plan = if withhold { withhold_command } else { SweSmithTask::resolve_command };
        let command = plan(held.workdir(), id);
        let call = ExecCall {
            output_limit_bytes: GRADING_OUTPUT_BYTES,
            ..self.call(&command.command, Shell::Sh, command.timeout.as_millis() as u64)
        };
        let failed = |message: String| InfraFailure { kind: InfraKind::SetUp, message };
        let outcome = held.exec(call).await?;
        if outcome.dropped_bytes > 0 {
            let kept = outcome.output.len();
            let text = "the hidden tests are larger than the sandbox's limit of output: raise its output_bytes";
            return Err(failed(format!("{text} ({kept} bytes kept, {} dropped)", outcome.dropped_bytes)));
        }
        let parse = if withhold { parse_withheld } else { InstanceCommits::parse };
        let commits = parse(id, &command_outcome(outcome));
        commits.map(Some).map_err(|error| failed(error.to_string()))
    }

    /// A check-out fails now and then when many boxes start at once, so it is tried again before the rollout fails.
    async fn run_setup_command(&self, held: &HeldBox, command: &str) -> Result<(), InfraFailure> {
        let attempts = self.setting.config.setup_attempts;
        for attempt in 1.. {
            let call = self.call(command, Shell::Bash, self.setting.config.setup_timeout_ms);
            let result = exec_result(held.exec(call).await?);
            if result.returncode == 0 {
                break;
            }
            if attempt >= attempts {
                let text = format!("{}{}", result.output, result.exception_info());
                let skipped = text.chars().count().saturating_sub(SETUP_TAIL);
                let tail: String = text.chars().skip(skipped).collect();
                let message = format!("setup_cmd ended with {} ({attempts} tries): {tail}", result.returncode);
                return Err(InfraFailure { kind: InfraKind::SetUp, message });
            }
            tokio::time::sleep(SETUP_BACKOFF * attempt).await;
        }
        Ok(())
    }

    fn call<'c>(&self, command: &'c str, shell: Shell, timeout_ms: u64) -> ExecCall<'c> {
        let output_limit_bytes = self.setting.config.output_limit_bytes;
        ExecCall { command, shell, cwd: None, env: None, timeout_ms, output_limit_bytes }
    }

    /// The agent's turns, until it ends by itself or at a limit.
    async fn act(&mut self, held: &HeldBox) -> Result<Acted, InfraFailure> {
        let setting = self.setting;
        let task = AgentTask {
            task: self.issue.task.prompt.clone(),
            cwd: Some(held.workdir().to_owned()),
            variables: serde_json::Map::new(),
        };
        let mut agent =
            Agent::new(setting.definition.clone(), task, &setting.host, self.now()).map_err(agent_failed)?;
        let mut history = History::new(
            setting.tokenizer.clone(),
            setting.template.clone(),
            setting.config.template_variables.clone(),
            setting.config.train_failed_replies,
        );
        let _engine_use = EngineUse::new(setting.engines.clone(), self.issue.rollout);
        let exit = loop {
            match agent.next(self.now()) {
                NextStep::Query { call_index, messages } => {
                    let messages: Vec<Value> = messages.iter().map(Message::to_wire).collect();
                    self.go(RolloutState::Generating);
                    self.turn(&mut agent, &mut history, call_index as u32, &messages).await?;
                }
                NextStep::Execute { command, cwd, timeout, .. } => {
                    let timeout_ms = timeout.as_millis() as u64;
                    let environment = &setting.definition.file().environment;
                    let call = ExecCall {
                        cwd: Some(cwd),
                        env: Some(&environment.env),
                        ..self.call(command, Shell::Sh, timeout_ms)
                    };
                    self.go(RolloutState::Executing);
                    let outcome = self.progress.timed(Part::Exec, held.exec(call)).await?;
                    agent.on_output(exec_result(outcome), self.now()).map_err(agent_failed)?;
                }
                NextStep::Exit(exit) => break exit.clone(),
            }
        };
        self.end_acting(agent, history, exit).await
    }

    /// One model call.
    async fn turn(
        &mut self,
        agent: &mut Agent,
        history: &mut History,
        turn: u32,
        messages: &[Value],
    ) -> Result<(), InfraFailure> {
        let prompt = history.prompt(messages).map_err(agent_failed)?;
        let before_ms = self.setting.seam.clock.elapsed_ms();
        let generated = generate(self.setting, self.issue, turn, &prompt.ids);
        let generated = match self.progress.timed(Part::Generate, generated).await {
            Ok(generated) => generated,
            Err(TurnFailure::ContextExceeded(text)) => {
                return agent.on_error(CONTEXT_EXCEEDED, &text).map_err(agent_failed);
            }
            Err(TurnFailure::Infra(failure)) => return Err(failure),
        };
        let generate_ms = self.setting.seam.clock.elapsed_ms() - before_ms;
        self.setting.record(generated.event(self.issue.rollout, turn, prompt.ids.len(), generate_ms));
        self.progress.turn_finished();
        let content = history.record(prompt, &generated.reply).map_err(agent_failed)?;
        let finish_reason = if generated.finish == FinishReason::Length { "length" } else { "stop" };
        let finish_reason = Some(finish_reason.to_owned());
        agent.on_reply(Reply { content, finish_reason, ..Reply::default() }).map_err(agent_failed)
    }

    /// Sorts out what is trained on, and keeps the trajectory file if one is wanted.
    async fn end_acting(&self, agent: Agent, mut history: History, exit: Exit) -> Result<Acted, InfraFailure> {
        let is_last_dropped =
            agent.failed_replies().last().is_some_and(|failed| failed.call_index + 1 == agent.calls());
        if is_last_dropped {
            history.drop_reply();
        }
        self.progress.agent_ended(exit.status.as_str(), history.forks());
        if let Some(dir) = &self.setting.trajectories
            && let Err(error) = trajectory::save(dir, self.issue, &agent).await
        {
            let source = self.issue.rollout.to_string();
            self.setting.record(RunEvent::Note { source, text: format!("its trajectory was not saved: {error}") });
        }
        match &exit.status {
            ExitStatus::Failed { exception_type, exception } if exception_type != CONTEXT_EXCEEDED => {
                Err(agent_failed(format!("{exception_type}: {exception}")))
            }
            _ => Ok(Acted { exit, samples: history.into_samples() }),
        }
    }

    async fn grade(&self, held: &HeldBox, commits: Option<InstanceCommits>) -> Result<f32, InfraFailure> {
        let failed = |error: GradeError| InfraFailure { kind: InfraKind::Grading, message: error.to_string() };
        let timeout = Duration::from_millis(self.setting.config.eval_timeout_ms);
        let task = self.issue.task.grading_task(held.workdir(), timeout, commits);
        let mut grader = Grader::new(task).map_err(failed)?;
        self.end_leftovers(held).await?;
        loop {
            match grader.next() {
                GradeStep::WriteFiles(files) => {
                    held.put_files(&files).await?;
                    grader.on_files_written().map_err(failed)?;
                }
                GradeStep::Run(command) => {
                    let call = ExecCall {
                        output_limit_bytes: GRADING_OUTPUT_BYTES,
                        ..self.call(&command.command, Shell::Sh, command.timeout.as_millis() as u64)
                    };
                    let outcome = command_outcome(held.exec(call).await?);
                    grader.on_outcome(&outcome).map_err(failed)?;
                }
                GradeStep::Done(grade) => return Ok(grade.reward as f32),
            }
        }
    }

    /// Ends what the agent's commands left running, so that nothing of theirs is there while hidden tests are: a box kills
    /// every process in it when a command outlives its deadline.
    async fn end_leftovers(&self, held: &HeldBox) -> Result<(), InfraFailure> {
        held.exec(self.call(OUTLIVES_ITS_DEADLINE, Shell::Sh, 1)).await.map(drop)
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.setting.seam.clock.elapsed_ms())
    }
}

fn agent_failed(error: impl std::fmt::Display) -> InfraFailure {
    InfraFailure { kind: InfraKind::Agent, message: error.to_string() }
}
