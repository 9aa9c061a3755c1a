//! Settings that change while the run goes on: deadlines, and how often something is tried. Each is read anew where it counts.

use greenroom_messages::setting;

use super::ConductorState;
use crate::RunConfig;

impl ConductorState {
    /// Changes a setting, for what begins from now on.
    pub(crate) fn set(&mut self, key: &str, value: u64) -> Result<(), String> {
        let config: RunConfig = setting::changed(&self.arguments.config, "run", key, value)?;
        let problems: Vec<String> = config.problems().iter().map(ToString::to_string).collect();
        if !problems.is_empty() {
            return Err(problems.join("; "));
        }
        self.arguments.config = config;
        Ok(())
    }

    /// The present values of what may change.
    pub(crate) fn settings(&self) -> Vec<(String, u64)> {
        setting::values(&self.arguments.config, "run")
    }
}
