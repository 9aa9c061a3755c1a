//! Whether this node is still right: a controller that was started again may have other settings than those with which the
//! node enlisted, and none of the two would notice.
//!
//! Every start of the controller is asked, once a node plays its roles; its gang counts the nodes that it has found right. On
//! failure: asked again, as long as it is there.

use futures::future::{BoxFuture, FutureExt};
use greenroom_core::{Address, AskError, Deadline, ask};
use greenroom_messages::node::{ControllerMessage, Enlist, NotEnlisted};

use super::service;
use super::site::Site;

const WAIT_MS: u64 = 10_000;

type Answer = Result<Result<(), NotEnlisted>, AskError>;

/// What the controller has said, by its starts.
pub(super) struct Confirmation {
    me: Enlist,
    controller: Address<ControllerMessage>,
    /// The incarnation that has confirmed this node.
    by: Option<u64>,
    /// The one that is asked.
    asking: Option<(u64, BoxFuture<'static, Answer>)>,
}

impl Confirmation {
    /// Of a node with these settings, by nobody yet.
    pub(super) fn of(site: &Site, settings: &str) -> Self {
        let node = &site.node.cluster;
        let me = Enlist { node: node.node.clone(), roles: node.roles.clone(), settings: settings.to_owned() };
        let controller = service::CONTROLLER.of(&site.controller, &site.cluster);
        Self { me, controller, by: None, asking: None }
    }

    /// Whether the controller is there.
    pub(super) fn can_be_asked(&self) -> bool {
        self.controller.is_bound()
    }

    /// Asks a controller that was not asked since its start.
    pub(super) fn look(&mut self, site: &Site) {
        let members = site.cluster.members();
        let lead = members.iter().find(|member| member.name == site.controller && member.is_up());
        let Some(start) = lead.map(|lead| lead.incarnation).filter(|start| self.by != Some(*start)) else { return };
        if self.asking.is_none() && self.can_be_asked() {
            let (controller, me) = (self.controller.clone(), self.me.clone());
            let question = |reply| ControllerMessage::Confirm(me, reply);
            let asking = async move { ask(&controller, Deadline::after_ms(WAIT_MS), question).await };
            self.asking = Some((start, asking.boxed()));
        }
    }

    /// Waits until the controller says that this node is not right, and gives the reason. Cancelling the wait loses nothing.
    pub(super) async fn refused(&mut self) -> String {
        loop {
            let Some((start, asking)) = &mut self.asking else { return std::future::pending().await };
            let (start, answer) = (*start, asking.await);
            self.asking = None;
            match answer {
                // the end of a run is told to every node that is there, with the time that it has
                Ok(Ok(()) | Err(NotEnlisted::Over(_))) => self.by = Some(start),
                Ok(Err(NotEnlisted::Refused(reason))) => return reason,
                Err(error) => tracing::warn!(%error, "the controller has not said whether this node is still right"),
            }
        }
    }
}
