//! Whether an engine that serves holds the weights that it confirmed: looked at from outside, without a change of state.
//!
//! Weights may be replaced while the look is under way, so its verdict counts only where the engine is settled on the same
//! version before and after.

use greenroom_messages::WeightVersion;
use greenroom_messages::engine::{EngineState, EngineVerdict, UpdateWeights, WeightsFound};

use super::effect::SpotVerdict;
use super::state::EngineMachine;

impl EngineMachine {
    /// The load that the engine is settled on; or why there is none.
    pub(super) fn settled_on(&self) -> Result<UpdateWeights, String> {
        let is_settled = matches!(self.state, EngineState::Serving | EngineState::Draining) && self.update.is_none();
        if !is_settled {
            return Err(format!("it is {:?}", self.state).to_lowercase());
        }
        let loaded = self.wanted.clone().filter(|wanted| self.confirmed.as_ref() == Some(&wanted.version));
        loaded.ok_or_else(|| "it is not known which files its weights came from".to_owned())
    }

    /// What a comparison with these weights says.
    pub(super) fn judge(&self, compared: &WeightVersion, verdict: SpotVerdict) -> WeightsFound {
        match (self.settled_on(), verdict) {
            (Err(reason), _) => WeightsFound::NotCompared(reason),
            (Ok(loaded), _) if loaded.version != *compared => {
                WeightsFound::NotCompared("it took other weights meanwhile".to_owned())
            }
            (_, SpotVerdict::Same) => WeightsFound::Same,
            (_, SpotVerdict::Different(what)) => WeightsFound::Different(what),
            (_, SpotVerdict::Unable(reason)) => WeightsFound::NotCompared(reason),
        }
    }

    /// What was found, with this engine's name.
    pub(super) fn verdict(&self, found: WeightsFound) -> EngineVerdict {
        EngineVerdict { engine: self.settings.spec.engine.clone(), version: self.confirmed.clone(), found }
    }
}
