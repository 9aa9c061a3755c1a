//! The course of one episode. Reads from top to bottom: claim, set up, act, release, grade, report.

use std::time::Duration;

use greenroom_core::in_place;
use greenroom_messages::engine::FinishReason;
use greenroom_messages::rollout::{FinishedRollout, InfraFailure, InfraKind, RolloutOutcome, RolloutState, Sample};
use greenroom_messages::run::RunEvent;
use greenroom_messages::sandbox::{ClaimLease, Shell};
use serde_json::Value;

use super::engine::{EngineUse, TurnFailure, generate};
use super::grading::Left;
use super::life::Life;
use super::observation::{command_outcome, exec_result};
use super::progress::Part;
use super::sandbox::{ExecCall, HeldBox, claim, sandbox_failed};
use super::{EpisodeSetting, Progress, trajectory};
use crate::SETUP_BACKOFF_MS;
use crate::agent::{Agent, AgentTask, Exit, ExitStatus, Message, NextStep, Reply};
use crate::grading::{Grade, InstanceCommits, Keep, parse_withheld, withhold_command};
use crate::manager::Issue;
use crate::tokens::{History, Prompt};

/// The wait before the set-up command is tried again; grows with each try.
const SETUP_BACKOFF: Duration = Duration::from_millis(SETUP_BACKOFF_MS);
/// How much of a failed set-up's output its message holds, in characters.
const SETUP_TAIL: usize = 300;
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
                reward: Some(played.grade.reward as f32),
                graded: played.grade.reason.to_string(),
                samples: played.samples,
                ..progress.finished(rollout, task, outcome)
            }
        }
        Err(failure) => progress.finished(rollout, task, RolloutOutcome::InfraFailed(failure)),
    }
}

pub(super) struct Episode<'a> {
    pub(super) setting: &'a EpisodeSetting,
    pub(super) issue: &'a Issue,
    progress: &'a Progress,
    life: Life,
}

/// An episode that was graded.
struct Played {
    is_submitted: bool,
    grade: Grade,
    samples: Vec<Sample>,
}

/// What the agent did.
struct Acted {
    exit: Exit,
    samples: Vec<Sample>,
    left: Left,
}

impl Episode<'_> {
    fn go(&mut self, state: RolloutState) {
        if self.life.go(state) {
            self.setting.record(RunEvent::RolloutMoved { rollout: self.issue.rollout, state });
        }
    }

    async fn play_in_a_box(&mut self) -> Result<Played, InfraFailure> {
        self.go(RolloutState::Claiming);
        let lifetime_ms = self.setting.config.sandbox_lifetime_ms();
        let held = self.progress.timed(Part::Claim, self.claim(lifetime_ms)).await?;
        self.progress.claimed(held.lease, held.is_warm);
        let acted = self.set_up_and_act(&held).await;
        // Before another box is claimed: as many rollouts as there are boxes would else wait for each other.
        self.release(held).await;
        let Acted { exit, samples, left } = acted?;
        let grade = match left {
            Left::Graded(grade) => grade,
            Left::Work(work) => self.progress.timed(Part::Grade, self.grade(work)).await?,
        };
        Ok(Played { is_submitted: exit.status == ExitStatus::Submitted, grade, samples })
    }

    pub(super) async fn claim(&self, lifetime_ms: u64) -> Result<HeldBox, InfraFailure> {
        let task = &self.issue.task;
        let Some(pool) = self.setting.sandboxes.get(&task.image) else {
            return Err(sandbox_failed("claim", format!("there is no pool of image {:?}", task.image)));
        };
        let wait_ms = self.setting.config.claim_timeout_ms;
        let request = ClaimLease { rollout: self.issue.rollout, lifetime_ms, wait_ms };
        Ok(HeldBox::new(&claim(pool, request).await?, task.workdir.as_deref()))
    }

    pub(super) async fn release(&self, held: HeldBox) {
        if let Err(error) = held.release().await {
            let asker = self.issue.rollout.to_string();
            self.setting.record(RunEvent::AskFailed { asker, error: format!("releasing the sandbox: {error}") });
        }
    }

    async fn set_up_and_act(&mut self, held: &HeldBox) -> Result<Acted, InfraFailure> {
        self.go(RolloutState::SettingUp);
        let commits = self.progress.timed(Part::SetUp, self.set_up(held, Keep::Nothing)).await?;
        let (exit, samples) = self.act(held).await?;
        self.go(RolloutState::Grading);
        let left = self.progress.timed(Part::Grade, self.leave(held, commits)).await?;
        Ok(Acted { exit, samples, left })
    }

    /// Writes the task's files, runs its set-up command until it succeeds, finds out the commits of its branch, and takes
    /// out of the repository what must not be found there.
    pub(super) async fn set_up(&self, held: &HeldBox, keep: Keep) -> Result<Option<InstanceCommits>, InfraFailure> {
        let task = &self.issue.task;
        held.put_files(&task.files).await?;
        if let Some(command) = &task.setup_cmd {
            self.run_setup_command(held, command).await?;
        }
        if !task.needs_commits() {
            return Ok(None);
        }
        let (id, workdir) = (task.id.as_str(), held.workdir());
        let is_withheld = self.setting.config.withhold_history;
        let command = match is_withheld {
            true => withhold_command(workdir, id, keep),
            false => InstanceCommits::resolve_command(workdir, id),
        };
        let call = self.call(&command.command, Shell::Sh, command.timeout.as_millis() as u64);
        let outcome = command_outcome(held.exec(call).await?);
        let commits = if is_withheld { parse_withheld(id, &outcome) } else { InstanceCommits::parse(id, &outcome) };
        commits.map(Some).map_err(|error| InfraFailure { kind: InfraKind::SetUp, message: error.to_string() })
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

    pub(super) fn call<'c>(&self, command: &'c str, shell: Shell, timeout_ms: u64) -> ExecCall<'c> {
        let output_limit_bytes = self.setting.config.output_limit_bytes;
        ExecCall { command, shell, cwd: None, env: None, timeout_ms, output_limit_bytes }
    }

    /// The agent's turns, until it ends by itself or at a limit.
    async fn act(&mut self, held: &HeldBox) -> Result<(Exit, Vec<Sample>), InfraFailure> {
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
                    let prompt = in_place(|| {
                        let messages: Vec<Value> = messages.iter().map(Message::to_wire).collect();
                        history.prompt(&messages)
                    });
                    self.go(RolloutState::Generating);
                    let prompt = prompt.map_err(agent_failed)?;
                    self.turn(&mut agent, &mut history, call_index as u32, prompt).await?;
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
                    in_place(|| agent.on_output(exec_result(outcome), self.now())).map_err(agent_failed)?;
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
        prompt: Prompt,
    ) -> Result<(), InfraFailure> {
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
        let content = in_place(|| history.record(prompt, &generated.reply)).map_err(agent_failed)?;
        let finish_reason = if generated.finish == FinishReason::Length { "length" } else { "stop" };
        let finish_reason = Some(finish_reason.to_owned());
        agent.on_reply(Reply { content, finish_reason, ..Reply::default() }).map_err(agent_failed)
    }

    /// Sorts out what is trained on, and keeps the trajectory file if one is wanted.
    async fn end_acting(
        &self,
        agent: Agent,
        mut history: History,
        exit: Exit,
    ) -> Result<(Exit, Vec<Sample>), InfraFailure> {
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
            _ => Ok((exit, history.into_samples())),
        }
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.setting.seam.clock.elapsed_ms())
    }
}

fn agent_failed(error: impl std::fmt::Display) -> InfraFailure {
    InfraFailure { kind: InfraKind::Agent, message: error.to_string() }
}
