//! What a person holds: it stays held whoever is started again, until a person lets it go.

use greenroom_core::Reply;
use greenroom_messages::rollout::RolloutManagerMessage;
use greenroom_messages::run::StopMode;
use greenroom_messages::steer::Held;

use super::ConductorState;
use crate::RunError;

impl ConductorState {
    /// Holds something or lets it go: written down first, then done.
    pub(crate) fn on_hold(&mut self, what: Held, held: bool, reply: Reply<Result<(), String>>) -> Result<(), RunError> {
        if let Err(error) = self.arguments.database.hold(what, held) {
            reply.send(Err(format!("{}: {error}", error.code())));
            return Ok(());
        }
        let was_paused = self.rollouts_paused;
        self.apply(what, held);
        if was_paused && !self.rollouts_paused {
            // what was silent on hold has its time again
            self.progress_ms = self.arguments.seam.clock.elapsed_ms();
        }
        self.tell_whether_paused();
        reply.send(Ok(()));
        self.drive()
    }

    /// Takes over what was held before this Conductor began.
    pub(super) fn keep_holding(&mut self) -> Result<(), RunError> {
        for what in self.arguments.database.held()? {
            self.apply(what, true);
            (self.arguments.talk)(&what.notice());
        }
        if self.arguments.database.is_to_stop()? {
            self.facts.stop = Some(StopMode::AfterStep);
            (self.arguments.talk)("an operator has told this run to stop, before it was led anew: it does so now");
        }
        Ok(())
    }

    fn apply(&mut self, what: Held, held: bool) {
        match what {
            Held::Rollouts => self.rollouts_paused = held,
            Held::Training => self.facts.training_paused = held,
        }
    }

    /// Tells the RolloutManager, which forgets it with its process. One that is not there is told when it is, and with each
    /// batch.
    pub(super) fn tell_whether_paused(&self) {
        let _ = self.arguments.parts.rollouts.cast(RolloutManagerMessage::SetPaused(self.rollouts_paused));
    }
}
