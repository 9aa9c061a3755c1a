//! What a node's end means for the run, on the controller: nothing, a wait, or the end for all; pure.
//!
//! The run ends for all when the last node of a primary role ends by itself. One that died is not one that ended: it is
//! waited for, whatever it plays. Without other nodes the run goes on as long as somebody plays what they played.

use greenroom_cluster::{Member, MemberEvent};

use super::NodeConfig;

/// What follows from the end of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// The run goes on or waits, as these words say.
    GoesOn(String),
    /// It ends, for this reason.
    Ends(String),
}

/// What follows from `event`, if it is the end of a node that plays a role; `members` are those of now.
pub(super) fn consequence(node: &NodeConfig, members: &[Member], event: &MemberEvent) -> Option<Consequence> {
    let (name, how, by_itself) = match event {
        MemberEvent::Left { node, .. } => (node, "has left", true),
        MemberEvent::Died { node, .. } => (node, "is lost", false),
        _ => return None,
    };
    let gone = members.iter().find(|member| member.name == *name)?;
    // one that has come back meanwhile has ended nothing
    if gone.is_up() {
        return None;
    }
    let others = |role: &String| members.iter().filter(|member| member.is_up() && member.roles.contains(role)).count();
    let needed: Vec<String> = node.required().into_iter().map(|(role, _)| role).collect();
    let played: Vec<&String> = gone.roles.iter().filter(|role| needed.contains(role)).collect();
    let last_of: Vec<&str> = played.iter().filter(|role| others(role) == 0).map(|role| role.as_str()).collect();
    if let Some(role) = last_of.iter().find(|role| by_itself && node.is_primary(role)) {
        return Some(Consequence::Ends(format!("the node {name} {how}, the last with the primary role {role}")));
    }
    match (played.is_empty(), last_of.is_empty()) {
        (true, _) => None,
        (false, true) => Some(Consequence::GoesOn(format!("the node {name} {how}: the run goes on with the others"))),
        (false, false) => {
            let roles = last_of.join(", ");
            Some(Consequence::GoesOn(format!("the node {name} {how}: the run waits for a node that plays {roles}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use greenroom_cluster::MemberState;

    use super::*;
    use crate::node::sample;

    fn member(name: &str, roles: &[&str], state: MemberState) -> Member {
        Member { state, ..sample::member(name, roles) }
    }

    fn node(primary: &str) -> NodeConfig {
        let text = format!(
            "run = \"r\"\nconfig = [\"r.toml\"]\nstate_dir = \"s\"\n{primary}\n[cluster]\nnode = \"lead\"\n\
             roles = [\"controller\", \"rollout\"]\n"
        );
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn the_last_primary_node_that_leaves_ends_the_run_and_nobody_else_does() {
        use MemberState::{Alive, Dead, Left};
        let left = |name: &str| MemberEvent::Left { node: name.to_owned(), incarnation: 1 };
        let died = |name: &str| MemberEvent::Died { node: name.to_owned(), incarnation: 1, reason: String::new() };
        let lead = member("lead", &["controller", "rollout"], Alive);
        let words = |primary: &str, members: &[Member], event: &MemberEvent| {
            let members: Vec<Member> = members.iter().chain([&lead]).cloned().collect();
            match consequence(&node(primary), &members, event) {
                None => "nothing".to_owned(),
                Some(Consequence::GoesOn(words)) => words,
                Some(Consequence::Ends(words)) => format!("END: {words}"),
            }
        };
        let (one, two) = (member("a", &["trainer"], Left), member("b", &["trainer"], Alive));
        let primary = "primary_roles = [\"trainer\"]";
        assert_eq!(
            words(primary, std::slice::from_ref(&one), &left("a")),
            "END: the node a has left, the last with the primary role trainer"
        );
        assert_eq!(
            words(primary, &[one.clone(), two.clone()], &left("a")),
            "the node a has left: the run goes on with the others"
        );
        assert_eq!(
            words("", std::slice::from_ref(&one), &left("a")),
            "the node a has left: the run waits for a node that plays trainer"
        );
        let dead = member("a", &["trainer"], Dead);
        assert_eq!(
            words(primary, &[dead], &died("a")),
            "the node a is lost: the run waits for a node that plays trainer"
        );
        // a guest, a shell, one that is back, one that nobody knows
        assert_eq!(words(primary, &[member("g", &[], Left)], &left("g")), "nothing");
        assert_eq!(words(primary, &[member("s", &["shell"], Left)], &left("s")), "nothing");
        assert_eq!(words(primary, &[two], &left("b")), "nothing");
        assert_eq!(words(primary, &[], &left("x")), "nothing");
    }
}
