//! Simulated sandboxes: boxes that know the few commands of the scripted policy and of grading, and their misfortunes.
//!
//! What an agent solved in one box is taken out of it and judged in another. Every third agent that solves wrong spoils its
//! box: nothing can be taken from it any more.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use greenroom_messages::sandbox::{ExecException, ExecOutcome, ExecRequest, SandboxFile};
use greenroom_rollout::grading::{CHANGE_PATH, RESTORED, TAKEN};
use greenroom_sandbox::{BoxSummary, ImageSpec, Labels, Provider, SandboxBox, SandboxError, SweepReport};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::agent::{GRADE, SET_UP};
use crate::chance::Chance;
use crate::ledger::Ledger;

/// Where a taking leaves what it took, and how it says so.
const TAKEN_PATH: &str = "/tmp/greenroom.0/change";
const TAKEN_FILE: &str = "greenroom-taken: file /tmp/greenroom.0/change\n";
const RESTORED_WHOLE: &str = "greenroom-restored: whole\n";
/// The work of an agent that solved its task.
const SOLVED: &[u8] = b"solved";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    CreateFails,
    CreateHangs,
    CreateIsSlow,
    DestroyFails,
    BoxLost,
    ExecHangs,
    ExecIsSlow,
    SetUpFails,
}

/// A provider of simulated boxes.
#[derive(Debug)]
pub struct SimulatedProvider {
    shared: Arc<Shared>,
    /// Sabotage: hands out a box that is held already.
    hands_out_twice: bool,
    last: Mutex<Option<Arc<BoxInside>>>,
}

#[derive(Debug)]
struct Shared {
    chance: Mutex<Chance>,
    ledger: Ledger,
    /// Sabotage: destroying does nothing.
    leaks: bool,
}

impl Shared {
    fn chance(&self) -> MutexGuard<'_, Chance> {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SimulatedProvider {
    pub(crate) fn new(ledger: Ledger, chance: Chance, hands_out_twice: bool, leaks: bool) -> Self {
        let shared = Shared { chance: Mutex::new(chance), ledger, leaks };
        Self { shared: Arc::new(shared), hands_out_twice, last: Mutex::default() }
    }

    pub(crate) fn misfortunes_met(&self) -> BTreeMap<String, u32> {
        self.shared.chance().met()
    }
}

/// One simulated box.
#[derive(Debug)]
pub struct SimulatedBox {
    inside: Arc<BoxInside>,
}

#[derive(Debug)]
struct BoxInside {
    id: String,
    number: u64,
    shared: Arc<Shared>,
    state: Mutex<BoxState>,
    /// Tells that the box ended or its lifetime changed; wakes those who wait in their order.
    changed: Notify,
}

#[derive(Debug)]
struct BoxState {
    is_solved: bool,
    /// Whether every further command of its grading fails in it.
    is_spoiled: bool,
    /// Whether destroying it failed once.
    has_resisted: bool,
    ends_at: Instant,
    end: Option<SandboxError>,
}

impl BoxInside {
    fn state(&self) -> MutexGuard<'_, BoxState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, error: SandboxError) {
        self.state().end.get_or_insert(error);
        self.changed.notify_waiters();
    }

    fn check(&self) -> Result<(), SandboxError> {
        self.state().end.clone().map_or(Ok(()), Err)
    }

    /// Resolves when the box has ended.
    async fn ended(&self) -> SandboxError {
        loop {
            // from here on no change is missed
            let changed = self.changed.notified();
            let ends_at = {
                let state = self.state();
                if let Some(end) = &state.end {
                    return end.clone();
                }
                state.ends_at
            };
            tokio::select! {
                biased;
                () = changed => {}
                () = tokio::time::sleep_until(ends_at) => {
                    if Instant::now() >= self.state().ends_at {
                        self.end(SandboxError::Expired { box_id: self.id.clone() });
                    }
                }
            }
        }
    }

    /// Waits, unless the box ends meanwhile.
    async fn pass(&self, wait: Duration) -> Result<(), SandboxError> {
        tokio::select! {
            biased;
            error = self.ended() => Err(error),
            () = tokio::time::sleep(wait) => Ok(()),
        }
    }
}

#[async_trait]
impl Provider for SimulatedProvider {
    async fn create(
        &self,
        image: &ImageSpec,
        _: &Labels,
        lifetime_ms: u64,
    ) -> Result<Box<dyn SandboxBox>, SandboxError> {
        let _open = self.shared.ledger.open_call("create");
        let trouble =
            self.shared.chance().strikes(&[Trouble::CreateFails, Trouble::CreateHangs, Trouble::CreateIsSlow]);
        match trouble {
            Some(Trouble::CreateFails) => {
                let (stage, detail) = ("start".to_owned(), "no room".to_owned());
                return Err(SandboxError::CreateFailed { image: image.name.clone(), stage, detail, lasting: false });
            }
            Some(Trouble::CreateHangs) => std::future::pending().await,
            Some(_) => tokio::time::sleep(Duration::from_secs(40)).await,
            None => tokio::time::sleep(Duration::from_millis(300)).await,
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inside) = last.take_if(|inside| self.hands_out_twice && inside.check().is_ok()) {
            return Ok(Box::new(SimulatedBox { inside }));
        }
        let (id, number) = {
            let mut seen = self.shared.ledger.seen();
            seen.boxes_made += 1;
            let id = format!("box-{}", seen.boxes_made);
            seen.open_boxes.insert(id.clone());
            (id, seen.boxes_made)
        };
        let ends_at = Instant::now() + Duration::from_millis(lifetime_ms);
        let inside = Arc::new(BoxInside {
            id,
            number,
            shared: self.shared.clone(),
            state: Mutex::new(BoxState {
                is_solved: false,
                is_spoiled: false,
                has_resisted: false,
                ends_at,
                end: None,
            }),
            changed: Notify::new(),
        });
        *last = Some(inside.clone());
        Ok(Box::new(SimulatedBox { inside }))
    }

    async fn list(&self, _: &Labels) -> Result<Vec<BoxSummary>, SandboxError> {
        let seen = self.shared.ledger.seen();
        let summary = |id: &String| BoxSummary { box_id: id.clone(), labels: Labels::new(), owner_lives: true };
        Ok(seen.open_boxes.iter().map(summary).collect())
    }

    async fn sweep(&self) -> Result<SweepReport, SandboxError> {
        Ok(SweepReport::default())
    }
}

#[async_trait]
impl SandboxBox for SimulatedBox {
    fn box_id(&self) -> &str {
        &self.inside.id
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecOutcome, SandboxError> {
        let _open = self.inside.shared.ledger.open_call("exec");
        self.inside.check()?;
        let begun = Instant::now();
        let trouble = self.inside.shared.chance().strikes(&[
            Trouble::BoxLost,
            Trouble::ExecHangs,
            Trouble::ExecIsSlow,
            Trouble::SetUpFails,
        ]);
        match trouble {
            Some(Trouble::BoxLost) => {
                self.inside.pass(Duration::from_millis(200)).await?;
                let (box_id, detail) = (self.inside.id.clone(), "its processes died".to_owned());
                self.inside.end(SandboxError::Lost { box_id, detail });
            }
            // beyond every time-out: only the end of the box ends it
            Some(Trouble::ExecHangs) => self.inside.pass(Duration::from_secs(10 * 3_600)).await?,
            Some(Trouble::ExecIsSlow) => self.inside.pass(Duration::from_millis(request.timeout_ms * 3 / 4)).await?,
            _ => {}
        }
        if request.command == "loop" {
            self.inside.pass(Duration::from_millis(request.timeout_ms)).await?;
            let text = format!("Command '{}' timed out after {} ms", request.command, request.timeout_ms);
            let exception = Some(ExecException { kind: "TimeoutExpired".to_owned(), text });
            return Ok(outcome("", -1, exception, begun));
        }
        self.inside.pass(Duration::from_millis(150)).await?;
        let is_set_up = request.command == SET_UP;
        let (output, returncode) = match request.command.as_str() {
            _ if is_set_up && trouble == Some(Trouble::SetUpFails) => ("the lock file is held\n", 1),
            "look" => ("a.py\n", 0),
            "solve right" | "solve wrong" => {
                let mut state = self.inside.state();
                state.is_solved = request.command == "solve right";
                state.is_spoiled |= !state.is_solved && self.inside.number.is_multiple_of(3);
                ("", 0)
            }
            command if command.contains(TAKEN) && self.inside.state().is_spoiled => ("No space left on device\n", 1),
            command if command.contains(TAKEN) => (TAKEN_FILE, 0),
            command if command.contains(RESTORED) => (RESTORED_WHOLE, 0),
            "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT" => ("COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n", 0),
            command if command.contains(GRADE) => ("", i32::from(!self.inside.state().is_solved)),
            _ => ("", 0),
        };
        Ok(outcome(output, returncode, None, begun))
    }

    async fn put_files(&self, files: Vec<SandboxFile>) -> Result<(), SandboxError> {
        let _open = self.inside.shared.ledger.open_call("put_files");
        self.inside.pass(Duration::from_millis(5)).await?;
        if let Some(change) = files.iter().find(|file| file.path == CHANGE_PATH) {
            self.inside.state().is_solved = change.content == SOLVED;
        }
        Ok(())
    }

    async fn read_file(&self, path: &str, _: u64) -> Result<Vec<u8>, SandboxError> {
        let _open = self.inside.shared.ledger.open_call("read_file");
        self.inside.pass(Duration::from_millis(5)).await?;
        if path == TAKEN_PATH {
            return Ok(if self.inside.state().is_solved { SOLVED.to_vec() } else { b"not solved".to_vec() });
        }
        let (box_id, detail) = (self.inside.id.clone(), "there is no such file".to_owned());
        Err(SandboxError::Refused { box_id, action: "read", path: path.to_owned(), detail })
    }

    async fn renew(&self, lifetime_ms: u64) -> Result<(), SandboxError> {
        self.inside.check()?;
        self.inside.state().ends_at = Instant::now() + Duration::from_millis(lifetime_ms);
        self.inside.changed.notify_waiters();
        Ok(())
    }

    async fn ended(&self) -> SandboxError {
        self.inside.ended().await
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        let _open = self.inside.shared.ledger.open_call("destroy");
        tokio::time::sleep(Duration::from_millis(50)).await;
        let shared = &self.inside.shared;
        let may_resist = !std::mem::replace(&mut self.inside.state().has_resisted, true);
        if may_resist && shared.chance().strikes(&[Trouble::DestroyFails]).is_some() {
            let (box_id, detail) = (self.inside.id.clone(), "a process did not die".to_owned());
            return Err(SandboxError::Lost { box_id, detail });
        }
        self.inside.end(SandboxError::Closed { what: format!("sandbox {}", self.inside.id) });
        if !shared.leaks {
            shared.ledger.seen().open_boxes.remove(&self.inside.id);
        }
        Ok(())
    }
}

fn outcome(output: &str, returncode: i32, exception: Option<ExecException>, begun: Instant) -> ExecOutcome {
    ExecOutcome {
        output: output.as_bytes().to_vec(),
        dropped_bytes: 0,
        returncode,
        exception,
        elapsed_ms: begun.elapsed().as_millis() as u64,
    }
}
