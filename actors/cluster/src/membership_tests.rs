//! The membership against a simple account of the same facts, over random histories.

use proptest::prelude::*;

use super::*;

fn member(name: &str, incarnation: u64) -> Member {
    Member {
        name: name.into(),
        incarnation,
        roles: vec!["engine".into()],
        address: String::new(),
        state: MemberState::Alive,
        since_ms: 0,
        services: Vec::new(),
        certificate: None,
        build: "0".into(),
        clock_skew_ms: None,
        last_heard_ms: 0,
        round_trip_ms: None,
    }
}

fn at(ms: u64) -> Moment {
    Moment { elapsed_ms: ms, date_ms: 1000 + ms }
}

fn kinds(events: &[MemberEvent]) -> Vec<String> {
    let name = |event: &MemberEvent| match event {
        MemberEvent::Joined(member) => format!("joined {}", member.incarnation),
        MemberEvent::Suspect { incarnation, .. } => format!("suspect {incarnation}"),
        MemberEvent::Recovered { incarnation, .. } => format!("recovered {incarnation}"),
        MemberEvent::Died { incarnation, .. } => format!("died {incarnation}"),
        MemberEvent::Left { incarnation, .. } => format!("left {incarnation}"),
        other => format!("{other:?}"),
    };
    events.iter().map(name).collect()
}

#[test]
fn silence_is_suspected_then_taken_for_death_and_a_return_is_a_join() {
    let mut membership = Membership::new(3000, 10_000);
    assert_eq!(kinds(&membership.joined(member("a", 5), at(0))), ["joined 5"]);
    assert!(membership.tick(at(2999)).is_empty());
    assert_eq!(kinds(&membership.tick(at(3000))), ["suspect 5"]);
    assert!(membership.tick(at(4000)).is_empty(), "once");
    assert!(membership.heard("a", 5, at(0)).is_empty(), "an old sign of life is none");
    assert!(membership.tick(at(4000)).is_empty());
    assert_eq!(kinds(&membership.heard("a", 5, at(4000))), ["recovered 5"]);
    assert_eq!(kinds(&membership.tick(at(7000))), ["suspect 5"]);
    membership.excuse(1000);
    assert!(membership.tick(at(14_000)).is_empty(), "a second in which nobody could be heard");
    assert_eq!(kinds(&membership.tick(at(15_000))), ["died 5"]);
    assert!(membership.heard("a", 5, at(15_001)).is_empty(), "who is dead is not heard");
    assert!(!membership.is_up("a", 5));
    assert_eq!(kinds(&membership.joined(member("a", 5), at(16_000))), ["joined 5"]);
    assert_eq!(kinds(&membership.joined(member("a", 6), at(16_001))), ["died 5", "joined 6"]);
    assert!(membership.joined(member("a", 5), at(16_002)).is_empty(), "the older one stays out");
    assert_eq!(membership.newest("a"), Some(6));
    assert!(membership.left("a", 5, at(16_003)).is_empty());
    assert_eq!(kinds(&membership.left("a", 6, at(16_003))), ["left 6"]);
    assert!(membership.joined(member("a", 5), at(16_004)).is_empty(), "even when the newer one has left");
}

#[derive(Clone, Debug)]
enum Happening {
    Joined(u8, u64),
    Heard(u8, u64),
    Died(u8, u64),
    Left(u8, u64),
    Wait(u64),
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        (0..3_u8, 1..4_u64).prop_map(|(node, incarnation)| Happening::Joined(node, incarnation)),
        (0..3_u8, 1..4_u64).prop_map(|(node, incarnation)| Happening::Heard(node, incarnation)),
        (0..3_u8, 1..4_u64).prop_map(|(node, incarnation)| Happening::Died(node, incarnation)),
        (0..3_u8, 1..4_u64).prop_map(|(node, incarnation)| Happening::Left(node, incarnation)),
        (1..6000_u64).prop_map(Happening::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    /// Whatever happens: what events say adds up to what the table says, and no incarnation ever goes backwards.
    #[test]
    fn events_and_table_agree(happenings in prop::collection::vec(happening(), 1..80)) {
        let mut membership = Membership::new(3000, 10_000);
        let mut up = BTreeMap::<String, u64>::new();
        let mut newest = BTreeMap::<String, u64>::new();
        let mut now = 0;
        for happening in happenings {
            let name = |node: u8| format!("n{node}");
            let events = match happening {
                Happening::Joined(node, incarnation) => membership.joined(member(&name(node), incarnation), at(now)),
                Happening::Heard(node, incarnation) => membership.heard(&name(node), incarnation, at(now)),
                Happening::Died(node, incarnation) => membership.died(&name(node), incarnation, "test", at(now)),
                Happening::Left(node, incarnation) => membership.left(&name(node), incarnation, at(now)),
                Happening::Wait(ms) => {
                    now += ms;
                    membership.tick(at(now))
                }
            };
            for event in events {
                match event {
                    MemberEvent::Joined(member) => {
                        prop_assert!(newest.get(&member.name).is_none_or(|newest| *newest <= member.incarnation));
                        newest.insert(member.name.clone(), member.incarnation);
                        prop_assert_eq!(up.insert(member.name, member.incarnation), None);
                    }
                    MemberEvent::Died { node, incarnation, .. } | MemberEvent::Left { node, incarnation } => {
                        prop_assert_eq!(up.remove(&node), Some(incarnation));
                    }
                    _ => {}
                }
            }
            let table: BTreeMap<String, u64> = membership
                .members()
                .into_iter()
                .filter(Member::is_up)
                .map(|member| (member.name, member.incarnation))
                .collect();
            prop_assert_eq!(&table, &up);
        }
    }
}
