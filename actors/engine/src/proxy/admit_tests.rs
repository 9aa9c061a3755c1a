//! Which turns an engine may serve, and what their ends mean for it, as tables of inputs and effects.

#![allow(clippy::type_complexity)] // tables of changes

use greenroom_messages::engine::EngineFailureKind;

use super::effect::{Admission, Effect, Input, Report};
use super::state_tests::{Bench, admission, rollout};

#[test]
fn what_is_sent_is_checked_and_clamped() {
    let change: [(&str, fn(&mut Admission), &str); 9] = [
        ("as it is", |_| {}, "send r max=50 v=5"),
        ("clamped to the context", |a| a.prompt_tokens = 94, "send r max=6 v=5"),
        ("longer than the longest prompt", |a| a.prompt_tokens = 95, "reject r ContextExceeded"),
        ("longer than the context", |a| a.prompt_tokens = 1_000, "reject r ContextExceeded"),
        ("outside of the vocabulary", |a| a.largest_id = Some(100), "reject r Refused"),
        ("empty", |a| a.largest_id = None, "reject r Refused"),
        ("nothing asked for", |a| a.max_new_tokens = 0, "reject r Refused"),
        ("weights just new enough", |a| a.oldest_version = 5, "send r max=50 v=5"),
        ("weights too old", |a| a.oldest_version = 6, "reject r NoEngine"),
    ];
    for (name, change, expected) in change {
        let mut bench = Bench::serving(5);
        let mut request = admission("r");
        change(&mut request);
        assert_eq!(bench.step(Input::Generate(request)), [expected], "{name}");
    }
    let mut bench = Bench::serving(5);
    bench.step(Input::Generate(admission("r1")));
    assert_eq!(bench.step(Input::Generate(admission("r1"))), ["reject r1 Refused"], "the same id twice");
    bench.step(Input::Generate(admission("r2")));
    assert_eq!(bench.step(Input::Generate(admission("r3"))), ["reject r3 NoEngine"], "full");
    bench.step(Input::Finished("r1".into(), Report::Answered));
    assert_eq!(bench.step(Input::Generate(admission("r3"))), ["send r3 max=50 v=5"]);
}

#[test]
fn an_engine_whose_answers_cannot_be_used_serves_no_more_and_shows_itself_by_one_turn_at_a_time() {
    let mut bench = Bench::serving(3);
    let of_group = |group: u32| {
        let mut request = admission("r");
        request.rollout.group.index = group;
        request
    };
    let turn_of = |bench: &mut Bench, group: u32, report: Report| {
        bench.step(Input::Generate(of_group(group)));
        bench.step(Input::Finished("r".into(), report))
    };
    let turn = |bench: &mut Bench, report: Report| turn_of(bench, 0, report);
    let unusable = || Report::Unusable("it is no JSON".into());
    let nothing = Vec::<String>::new();
    for group in [0, 0, 0, 1] {
        assert_eq!(turn_of(&mut bench, group, unusable()), nothing, "it may be these prompts");
        assert_eq!(turn(&mut bench, Report::Refused), nothing, "which says nothing of the engine");
    }
    assert_eq!(turn(&mut bench, Report::Answered), nothing, "begins the count anew");
    turn_of(&mut bench, 0, unusable());
    turn_of(&mut bench, 1, unusable());
    bench.step(Input::Generate(of_group(2)));
    bench.step(Input::Release(of_group(2).rollout));
    assert_eq!(bench.step(Input::Finished("r".into(), unusable())), nothing, "it was told to end that one");
    bench.step(Input::Generate(admission("other")));
    assert_eq!(turn_of(&mut bench, 2, unusable()), ["incompatible -", "fail other Lost"]);
    let trouble = bench.machine.status().trouble.unwrap();
    assert!(trouble.contains("turns of 3 groups") && trouble.contains("it is no JSON"), "{trouble}");

    let again = |bench: &mut Bench| {
        assert_eq!(bench.wake(), ["connecting -", "reach"]);
        bench.labelled("run:3");
        bench.inspected("run:3");
        assert_eq!(bench.done(), ["serving run:3"]);
    };
    again(&mut bench);
    assert_eq!(bench.machine.status().max_in_flight, 1);
    assert_eq!(turn(&mut bench, unusable()), ["incompatible -"], "one more is enough");
    again(&mut bench);
    bench.step(Input::Generate(admission("r")));
    assert_eq!(bench.step(Input::Generate(admission("other"))), ["reject other NoEngine"]);
    let sound = bench.step(Input::Finished("r".into(), Report::Answered));
    assert_eq!(sound, ["has room"], "the fleet is told that it may have more again");
    assert_eq!(bench.machine.status().max_in_flight, 2);
    assert_eq!(turn(&mut bench, unusable()), nothing, "it is sound again");
}

#[test]
fn an_abandoned_or_released_turn_is_aborted_at_the_engine() {
    let mut bench = Bench::serving(1);
    bench.step(Input::Generate(admission("r1")));
    assert_eq!(bench.step(Input::Finished("r1".into(), Report::Abandoned)), ["abort r1"]);
    bench.step(Input::Generate(admission("r2")));
    assert_eq!(bench.step(Input::Finished("r2".into(), Report::TimedOut)), ["abort r2"]);
    bench.step(Input::Generate(admission("r3")));
    assert_eq!(bench.step(Input::Release(rollout(1))), Vec::<String>::new(), "another rollout");
    assert_eq!(bench.step(Input::Release(rollout(0))), ["abort r3", "fail r3 Released"]);
}

#[test]
fn failures_are_of_infrastructure_except_for_the_context() {
    let mut bench = Bench::serving(1);
    let long = Admission { prompt_tokens: 100, ..admission("r") };
    let effects = bench.machine.step(0, Input::Generate(long));
    let [Effect::Reject { failure, .. }] = &effects[..] else { panic!("{effects:?}") };
    assert_eq!(failure.kind, EngineFailureKind::ContextExceeded);
    assert!(failure.message.contains("100 tokens"), "{failure}");
}

#[test]
fn an_answer_from_other_weights_closes_the_gate() {
    let mut bench = Bench::serving(1);
    bench.step(Input::Generate(admission("r1")));
    let seen = bench.step(Input::Finished("r1".into(), Report::Untrusted("default".into())));
    assert_eq!(seen, ["verifying -", "inspect"]);
    assert_eq!(bench.step(Input::Generate(admission("r2"))), ["reject r2 NoEngine"]);
}
