//! Checkpoints: every step ends with one, so that what is asked for is there already. The desk says where.

use greenroom_messages::node::NodeMessage;
use greenroom_messages::steer::{Cell, DeskRefusal};

use super::{Desk, cannot};
use crate::node::service;

/// The newest step: its number, its checkpoint's name, when it was committed.
const NEWEST: &str = "SELECT step, checkpoint, committed_ms FROM steps ORDER BY step DESC LIMIT 1";

impl Desk {
    /// Where the newest checkpoint is, of which step, and how old.
    pub(super) async fn checkpoint(&self) -> Result<String, DeskRefusal> {
        let answer = self.read(|db| db.ask(NEWEST)).await?;
        let Some([Cell::Integer(step), Cell::Text(name), Cell::Integer(at_ms)]) =
            answer.rows.first().map(Vec::as_slice)
        else {
            return Err(cannot(
                "no step is committed yet: the first checkpoint is made of the initial policy, and then one by \
                               every step; `status` shows how far that is",
            ));
        };
        let age_s = self.clock.now_ms().saturating_sub(u64::try_from(*at_ms).unwrap_or(0)) / 1_000;
        let place = self.where_checkpoints_are(name).await;
        Ok(format!(
            "the newest checkpoint is that of step {step}, made {age_s} s ago: {place}. Every step ends with one, and what \
             a step has not finished yet is made again: a run that is stopped or killed now goes on from there"
        ))
    }

    async fn where_checkpoints_are(&self, name: &str) -> String {
        let members = self.cluster.members().into_iter();
        let trainer =
            members.filter(|member| member.is_up()).find(|member| member.roles.iter().any(|role| role == "trainer"));
        let Some(trainer) = trainer else {
            return format!("checkpoints/{name} in the trainer's state_dir (it is not up)");
        };
        let node = service::node_at(&self.cluster, &trainer.name);
        let report = self.part(node, |reply| NodeMessage::Report(0, reply)).await;
        let dir = report.map_or_else(|_| "its state_dir".to_owned(), |report| report.state_dir);
        format!("{dir}/checkpoints/{name} on node {}", trainer.name)
    }
}
