//! An episode as a file that mini-swe-agent's inspector opens.
//!
//! The shape is `mini-swe-agent-1.1` without time stamps and raw responses, which this runtime keeps elsewhere. Settings of
//! the API client are left out: upstream writes its key there in clear text.

use serde_json::{Map, Value, json};

use super::message::Message;
use super::state::Agent;

impl Agent {
    /// The episode so far as the JSON of a `*.traj.json` file.
    pub fn to_trajectory(&self) -> Value {
        let file = self.definition().file();
        let (exit_status, submission) = match self.exit() {
            Some(exit) => (exit.status.as_str(), exit.submission.as_str()),
            None => ("", ""),
        };
        let is_secret = |key: &str| matches!(key, "model_kwargs" | "litellm_model_registry");
        let model: Map<String, Value> = file.model.variables().into_iter().filter(|(key, _)| !is_secret(key)).collect();
        json!({
            "info": {
                "model_stats": {"instance_cost": self.cost(), "api_calls": self.calls()},
                "config": {
                    "agent": file.agent.variables(),
                    "agent_type": "greenroom_rollout::agent::Agent",
                    "model": model,
                    "model_type": "greenroom_rollout::agent",
                    "environment": file.environment.variables(),
                    "environment_type": "greenroom_sandbox",
                },
                "mini_version": "2.4.6",
                "exit_status": exit_status,
                "submission": submission,
            },
            "messages": self.messages().iter().map(Message::to_trajectory).collect::<Vec<_>>(),
            "trajectory_format": "mini-swe-agent-1.1",
        })
    }
}
