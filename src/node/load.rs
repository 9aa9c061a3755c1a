//! How much a node has to do, in a few words for people; pure.

use greenroom_messages::engine::EngineStatus;
use greenroom_messages::rollout::RolloutStatus;
use greenroom_messages::steer::PoolSight;
use greenroom_messages::trainer::TrainerStatus;

use super::service;

/// What the parts of a run have said of themselves; those that gave no answer are left out.
pub(super) struct Loads<'a> {
    pub(super) engines: &'a [EngineStatus],
    pub(super) pools: &'a [PoolSight],
    pub(super) rollouts: Option<&'a RolloutStatus>,
    pub(super) trainer: Option<&'a TrainerStatus>,
}

impl Loads<'_> {
    /// That of the node which offers these services.
    pub(super) fn of(&self, node: &str, services: &[String]) -> String {
        let offers = |name: &str| services.iter().any(|service| service == name);
        let mut words = Vec::new();
        if let Some(rollouts) = self.rollouts.filter(|_| offers(service::ROLLOUT_MANAGER.name())) {
            words.push(format!("{} rollouts", rollouts.running));
        }
        let prefix = format!("{node}/");
        let engines = || self.engines.iter().filter(|engine| engine.engine.as_str().starts_with(&prefix));
        if engines().next().is_some() {
            let sum = |count: fn(&EngineStatus) -> u32| engines().map(count).sum::<u32>();
            words.push(format!("{}/{} turns", sum(|engine| engine.in_flight), sum(|engine| engine.max_in_flight)));
        }
        let pools = || self.pools.iter().filter(|pool| pool.node == node && pool.trouble.is_none());
        if pools().next().is_some() {
            let sum = |count: fn(&PoolSight) -> u32| pools().map(count).sum::<u32>();
            words.push(format!("{} sandboxes", sum(|pool| pool.leased)));
            let waiting = sum(|pool| pool.waiting);
            words.extend((waiting > 0).then(|| format!("{waiting} claims wait")));
        }
        if let Some(trainer) = self.trainer.filter(|_| offers(service::TRAINER.name())) {
            let idle = if trainer.activity.is_empty() { "idle after " } else { "" };
            words.push(format!("{idle}step {}", trainer.step.0));
        }
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use greenroom_messages::Step;

    use super::*;

    #[test]
    fn a_node_says_what_each_of_its_roles_has_to_do() {
        let pool =
            |node: &str, leased, waiting| PoolSight { node: node.to_owned(), leased, waiting, ..PoolSight::default() };
        let pools = [pool("a", 2, 0), pool("a", 1, 4), pool("b", 9, 0)];
        let rollouts = RolloutStatus { running: 7, ..RolloutStatus::default() };
        let trainer = TrainerStatus { step: Step(3), fresh: false, activity: String::new(), progress: 0.0 };
        let loads = Loads { engines: &[], pools: &pools, rollouts: Some(&rollouts), trainer: Some(&trainer) };
        let of = |node: &str, services: &[&str]| {
            loads.of(node, &services.iter().map(|service| (*service).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(of("a", &["rollout-manager"]), "7 rollouts, 3 sandboxes, 4 claims wait");
        assert_eq!(of("b", &["trainer"]), "9 sandboxes, idle after step 3");
        assert_eq!(of("c", &["node/c"]), "");
    }
}
