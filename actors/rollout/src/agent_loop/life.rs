//! The life of a rollout: Queued → Claiming → SettingUp → (Generating ⇄ Executing) → Grading → Ended.

use greenroom_messages::rollout::RolloutState;

/// Whether a rollout may go from one state to another. It may end from any state but the last.
pub fn may_follow(from: RolloutState, to: RolloutState) -> bool {
    use RolloutState::{Claiming, Ended, Executing, Generating, Grading, Queued, SettingUp};
    match (from, to) {
        (Ended, _) => false,
        (_, Ended)
        | (Queued, Claiming)
        | (Claiming, SettingUp)
        | (SettingUp, Generating | Grading)
        // A reply without an action is answered by the next reply.
        | (Generating, Generating | Executing | Grading)
        | (Executing, Generating | Grading) => true,
        _ => false,
    }
}

/// Where one rollout is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    state: RolloutState,
}

impl Life {
    pub(super) fn new() -> Self {
        Self { state: RolloutState::Queued }
    }

    /// Goes on; says whether this is a change to be recorded.
    pub(super) fn go(&mut self, to: RolloutState) -> bool {
        debug_assert!(may_follow(self.state, to), "{:?} does not follow {:?}", to, self.state);
        std::mem::replace(&mut self.state, to) != to
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rollout_never_goes_back_before_its_turns_and_ends_once() {
        use RolloutState::{Claiming, Ended, Executing, Generating, Grading, Queued, SettingUp};
        let order = [Queued, Claiming, SettingUp, Generating, Executing, Grading, Ended];
        for (from_place, from) in order.into_iter().enumerate() {
            for (to_place, to) in order.into_iter().enumerate() {
                let is_turn = |state| matches!(state, Generating | Executing);
                if to_place <= from_place && !(is_turn(from) && is_turn(to)) {
                    assert!(!may_follow(from, to), "{from:?} → {to:?}");
                }
            }
            assert_eq!(may_follow(from, Ended), from != Ended);
        }
    }
}
