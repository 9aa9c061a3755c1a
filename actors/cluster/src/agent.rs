//! The NodeAgent: the one actor of a node that other nodes see. All that crosses arrives here, as batches of frames.
//!
//! ractor glue only: a batch is handed to the hub. The actor knows nobody by itself, so that it cannot fail.

use std::sync::{Arc, Weak};

use ractor::message::{BoxedDowncastErr, SerializedMessage};
use ractor::{Actor, ActorProcessingErr, ActorRef, Message};

use crate::hub::Hub;

/// What the process group of the agents is called.
pub(crate) const GROUP: &str = "node-agent/v1";

/// The name of a node's agent; unique among all nodes, because upstream lets the end of a remote actor unregister a local
/// one of the same name.
pub(crate) fn agent_name(node: &str, incarnation: u64) -> String {
    format!("node-agent/{node}#{incarnation}")
}

/// A batch of frames.
pub(crate) struct AgentMessage(pub Vec<u8>);

impl Message for AgentMessage {
    fn serializable() -> bool {
        true
    }

    fn serialize(self) -> Result<SerializedMessage, BoxedDowncastErr> {
        Ok(SerializedMessage::Cast { variant: String::new(), args: self.0, metadata: None })
    }

    fn deserialize(message: SerializedMessage) -> Result<Self, BoxedDowncastErr> {
        match message {
            SerializedMessage::Cast { args, .. } => Ok(Self(args)),
            _ => Err(BoxedDowncastErr),
        }
    }
}

/// The agent.
pub(crate) struct NodeAgent;

impl Actor for NodeAgent {
    type Msg = AgentMessage;
    type State = Weak<Hub>;
    type Arguments = Arc<Hub>;

    async fn pre_start(&self, _: ActorRef<AgentMessage>, hub: Arc<Hub>) -> Result<Weak<Hub>, ActorProcessingErr> {
        Ok(Arc::downgrade(&hub))
    }

    async fn handle(
        &self,
        _: ActorRef<AgentMessage>,
        AgentMessage(batch): AgentMessage,
        hub: &mut Weak<Hub>,
    ) -> Result<(), ActorProcessingErr> {
        if let Some(hub) = hub.upgrade() {
            hub.receive(&batch);
        }
        Ok(())
    }
}
