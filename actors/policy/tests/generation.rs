//! Promise: the generator yields what the network says, whoever else is served, and control commands mean what SGLang's do.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod support;

use std::path::Path;
use std::sync::Arc;

use greenroom_policy::checkpoint::{SaveOptions, save};
use greenroom_policy::generation::{
    FinishReason, Finished, GeneratedToken, GenerationEvent, GenerationRequest, GenerationStream, GeneratorHandle,
    GeneratorOptions, PauseMode, SamplingParams, StopMatch, start,
};
use greenroom_policy::{ModelConfig, Network, Parameters, TinyModel};
use tch::{Kind, Tensor};

/// Weights far from zero, so that different weights and prompts give clearly different tokens.
fn model(seed: u64) -> (ModelConfig, Parameters) {
    let sizes =
        TinyModel { vocab_size: 300, num_key_value_heads: 1, max_position_embeddings: 1024, ..TinyModel::default() };
    let config = ModelConfig { initializer_range: 0.1, ..ModelConfig::tiny(&sizes).unwrap() };
    let parameters = Parameters::init(&config, seed).unwrap();
    (config, parameters)
}

fn generator(seed: u64, options: GeneratorOptions) -> GeneratorHandle {
    let (config, parameters) = model(seed);
    start(&config, &parameters, Path::new("first"), options).unwrap()
}

fn request(rid: &str, prompt: std::ops::Range<u32>, max_new_tokens: u32) -> GenerationRequest {
    let ids = prompt.map(|n| (n * 37 + 11) % 299 + 1).collect();
    let mut request = GenerationRequest::new(rid, ids);
    request.params =
        SamplingParams { max_new_tokens, ignore_eos: true, sampling_seed: Some(9), ..SamplingParams::default() };
    request.return_logprob = true;
    request
}

async fn drain(mut stream: GenerationStream) -> (Vec<GeneratedToken>, Finished) {
    let mut tokens = Vec::new();
    while let Some(event) = stream.recv().await {
        match event {
            GenerationEvent::Started { .. } => {}
            GenerationEvent::Tokens(more) => tokens.extend(more),
            GenerationEvent::Finished(finished) => {
                assert!(stream.recv().await.is_none(), "nothing follows the end");
                assert_eq!(finished.completion_tokens, tokens.len());
                return (tokens, *finished);
            }
        }
    }
    panic!("the stream ended without an end")
}

async fn run(handle: &GeneratorHandle, request: GenerationRequest) -> (Vec<GeneratedToken>, Finished) {
    drain(handle.submit(request).await.unwrap()).await
}

/// Waits until `count` tokens have come.
async fn first_tokens(stream: &mut GenerationStream, count: usize) -> Vec<GeneratedToken> {
    let mut tokens = Vec::new();
    while tokens.len() < count {
        match stream.recv().await.unwrap() {
            GenerationEvent::Started { .. } => {}
            GenerationEvent::Tokens(more) => tokens.extend(more),
            GenerationEvent::Finished(finished) => panic!("ended early: {finished:?}"),
        }
    }
    tokens
}

fn bits(tokens: &[GeneratedToken]) -> Vec<(u32, u32)> {
    tokens.iter().map(|token| (token.id, token.logprob.to_bits())).collect()
}

/// Logprobs `[T, vocab]` of a whole sequence by the training forward pass.
fn trained_logprobs(seed: u64, ids: &[u32], temperature: f64) -> Tensor {
    let _guard = tch::no_grad_guard();
    let (config, parameters) = model(seed);
    let network = Network::new(&config, &parameters).unwrap();
    let ids: Vec<i64> = ids.iter().map(|&id| i64::from(id)).collect();
    let bounds = [0, ids.len() as i64];
    let positions = network.packed_positions(&bounds).unwrap();
    let hidden = network.forward_packed(&Tensor::from_slice(&ids), &positions, &bounds).unwrap();
    (network.logits(&hidden).unwrap() / temperature).log_softmax(-1, Kind::Float)
}

#[tokio::test]
async fn logprobs_are_those_of_the_training_forward_at_the_same_temperature() {
    for batch_invariant in [true, false] {
        let handle = generator(1, GeneratorOptions { batch_invariant, ..GeneratorOptions::default() });
        for temperature in [0.0, 0.7, 1.0] {
            let mut request = request("a", 0..50, 40);
            request.params.temperature = temperature;
            request.logprob_start_len = Some(3);
            request.top_logprobs_num = 2;
            request.token_ids_logprob = vec![7];
            let prompt = request.input_ids.clone();
            let (tokens, finished) = run(&handle, request).await;
            let all: Vec<u32> = prompt.iter().copied().chain(tokens.iter().map(|token| token.id)).collect();
            let scaled = trained_logprobs(1, &all, if temperature == 0.0 { 1.0 } else { temperature });
            for (index, token) in tokens.iter().enumerate() {
                let row = (prompt.len() + index - 1) as i64;
                let close = |id: u32, logprob: f32| {
                    let expected = scaled.double_value(&[row, i64::from(id)]);
                    assert!((expected - f64::from(logprob)).abs() < 1e-4, "token {index}: {expected} and {logprob}");
                };
                close(token.id, token.logprob);
                close(7, token.requested_logprobs[0].logprob);
                let top = scaled.get(row).argmax(-1, false).int64_value(&[]) as u32;
                assert_eq!(token.top_logprobs[0].id, top);
                assert!(temperature > 0.0 || token.id == top, "greedy takes the top");
            }
            let unscaled = trained_logprobs(1, &all, 1.0);
            assert_eq!(finished.prompt_logprobs.len(), prompt.len() - 3);
            assert_eq!(finished.prompt_logprobs[0].logprob, None);
            for (offset, token) in finished.prompt_logprobs.iter().enumerate().skip(1) {
                assert_eq!(token.id, prompt[3 + offset]);
                let expected = unscaled.double_value(&[(3 + offset - 1) as i64, i64::from(token.id)]);
                assert!((expected - f64::from(token.logprob.unwrap())).abs() < 1e-4);
            }
        }
    }
}

#[tokio::test]
async fn a_request_yields_the_same_bits_alone_and_among_seven_others() {
    let wanted = || request("wanted", 0..61, 60);
    let (alone, _) = run(&generator(2, GeneratorOptions::default()), wanted()).await;
    let crowded = generator(2, GeneratorOptions::default());
    let mut others = Vec::new();
    for number in 0..7_u32 {
        // Of different lengths, some sharing the beginning of the prompt.
        let range = if number % 2 == 0 { 0..40 + number } else { number * 9..number * 9 + 90 };
        let mut other = request(&format!("other-{number}"), range, 20 + number * 13);
        other.params.sampling_seed = Some(u64::from(number));
        other.stream = true;
        others.push(crowded.submit(other).await.unwrap());
        if number == 3 {
            // The others join a batch that is under way.
            first_tokens(&mut others[0], 3).await;
        }
    }
    let (among, finished) = run(&crowded, wanted()).await;
    assert_eq!(bits(&alone), bits(&among), "neighbours changed the result");
    assert!(finished.cached_tokens > 0, "the shared beginning was not reused");
    let (again, finished) = run(&crowded, wanted()).await;
    assert_eq!(bits(&alone), bits(&again), "the prefix cache changed the result");
    assert_eq!(finished.cached_tokens, 60);
    for mut other in others {
        while other.recv().await.is_some() {}
    }
}

#[tokio::test]
async fn a_retracted_request_goes_on_with_the_same_bits() {
    let handle = generator(3, GeneratorOptions::default());
    let (reference, _) = run(&handle, request("reference", 0..30, 80)).await;
    let mut streamed = request("target", 0..30, 80);
    streamed.stream = true;
    let mut stream = handle.submit(streamed).await.unwrap();
    let mut tokens = first_tokens(&mut stream, 5).await;
    handle.pause(PauseMode::Retract).await.unwrap();
    let loads = handle.loads().await.unwrap();
    assert_eq!((loads.running, loads.waiting, loads.retracted, loads.paused), (0, 1, 1, true));
    assert_eq!(loads.used_tokens, 0);
    handle.flush_cache().await.unwrap();
    let mut held = handle.submit(request("held", 5..9, 3)).await.unwrap();
    assert!(held.try_recv().is_err());
    handle.resume().await.unwrap();
    let (rest, finished) = drain_counting(stream, tokens.len()).await;
    tokens.extend(rest);
    assert_eq!(bits(&tokens), bits(&reference));
    assert_eq!(finished.retractions, 1);
    assert_eq!(drain(held).await.0.len(), 3);
}

/// As `drain`, when `already` tokens were received before.
async fn drain_counting(mut stream: GenerationStream, already: usize) -> (Vec<GeneratedToken>, Finished) {
    let mut tokens = Vec::new();
    while let Some(event) = stream.recv().await {
        match event {
            GenerationEvent::Started { .. } => {}
            GenerationEvent::Tokens(more) => tokens.extend(more),
            GenerationEvent::Finished(finished) => {
                assert_eq!(finished.completion_tokens, already + tokens.len());
                return (tokens, *finished);
            }
        }
    }
    panic!("the stream ended without an end")
}

fn write_model(directory: &Path, seed: u64) {
    let (config, parameters) = model(seed);
    let options = SaveOptions { kind: Kind::Float, ..SaveOptions::default() };
    save(directory, &config, &parameters, &options).unwrap();
}

#[tokio::test]
async fn tokens_say_which_weights_made_them_and_a_retracted_request_is_recomputed_by_the_new() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("second");
    write_model(&path, 5);
    for mode in [PauseMode::Retract, PauseMode::InPlace] {
        let handle = generator(4, GeneratorOptions::default());
        let mut target = request("target", 0..30, 120);
        target.stream = true;
        let prompt = target.input_ids.clone();
        let mut stream = handle.submit(target).await.unwrap();
        let mut tokens = first_tokens(&mut stream, 4).await;
        handle.pause(mode).await.unwrap();
        let report = handle.update_weights(&path, Some("run:1".to_owned()), true).await.unwrap();
        assert_eq!((&*report.weight_version, report.cache_flushed), ("run:1", mode == PauseMode::Retract));
        handle.resume().await.unwrap();
        let (rest, finished) = drain_counting(stream, tokens.len()).await;
        tokens.extend(rest);
        assert_eq!(&*finished.weight_version, "run:1");
        let split = tokens.iter().position(|token| &*token.weight_version == "run:1").unwrap();
        assert!(split >= 4 && tokens[..split].iter().all(|token| &*token.weight_version == "default"));
        assert!(tokens[split..].iter().all(|token| &*token.weight_version == "run:1"));
        let all: Vec<u32> = prompt.iter().copied().chain(tokens.iter().map(|token| token.id)).collect();
        let (old, new) = (trained_logprobs(4, &all, 1.0), trained_logprobs(5, &all, 1.0));
        let mut worst = [0.0_f64; 2];
        for (index, token) in tokens.iter().enumerate() {
            let by = if index < split { &old } else { &new };
            let expected = by.double_value(&[(prompt.len() + index - 1) as i64, i64::from(token.id)]);
            let part = &mut worst[usize::from(index >= split)];
            *part = part.max((expected - f64::from(token.logprob)).abs());
        }
        assert!(worst[0] < 1e-4, "before the update: {worst:?}");
        let recomputed = worst[1] < 1e-4;
        assert_eq!(recomputed, mode == PauseMode::Retract, "in place the old keys and values stay: {worst:?}");
        let excerpt = handle.get_weights_by_name("model.layers.0.self_attn.k_proj.weight", 2).await.unwrap();
        let (_, parameters) = model(5);
        let stored = parameters.get("model.layers.0.self_attn.k_proj.weight").unwrap().narrow(0, 0, 2);
        assert_eq!(excerpt.shape, [2, 160]);
        assert_eq!(excerpt.values, Vec::<f32>::try_from(stored.contiguous().view([-1])).unwrap());
    }
}

#[tokio::test]
async fn a_bad_checkpoint_leaves_the_old_weights_serving() {
    let directory = tempfile::tempdir().unwrap();
    let handle = generator(4, GeneratorOptions::default());
    let (reference, _) = run(&handle, request("a", 0..30, 20)).await;
    let missing = directory.path().join("missing");
    let truncated = directory.path().join("truncated");
    write_model(&truncated, 5);
    let file = truncated.join("model.safetensors");
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 100]).unwrap();
    let misshapen = directory.path().join("misshapen");
    let sizes = TinyModel { vocab_size: 301, num_key_value_heads: 1, ..TinyModel::default() };
    let config = ModelConfig::tiny(&sizes).unwrap();
    save(&misshapen, &config, &Parameters::init(&config, 1).unwrap(), &SaveOptions::default()).unwrap();
    for (path, words) in [(missing, "missing"), (truncated, "truncated"), (misshapen, "vocab_size: 301")] {
        let error = handle.update_weights(&path, Some("bad".into()), true).await.unwrap_err();
        assert_eq!(error.code(), "GR0626");
        assert!(error.to_string().contains(words), "{error}");
        let (tokens, finished) = run(&handle, request("a", 0..30, 20)).await;
        assert_eq!(bits(&tokens), bits(&reference));
        assert_eq!(&*finished.weight_version, "default");
    }
}

#[tokio::test]
async fn an_update_without_a_pause_waits_for_running_requests_and_holds_new_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("second");
    write_model(&path, 5);
    let handle = generator(4, GeneratorOptions::default());
    let before = handle.submit(request("before", 0..30, 60)).await.unwrap();
    let updating = handle.clone();
    let update = async { updating.update_weights(&path, Some("2".into()), true).await.unwrap() };
    let after = async {
        tokio::task::yield_now().await;
        run(&handle, request("after", 0..30, 5)).await
    };
    let (_, after, before) = tokio::join!(update, after, drain(before));
    assert!(before.0.iter().all(|token| &*token.weight_version == "default"));
    assert!(after.0.iter().all(|token| &*token.weight_version == "2"));
}

#[tokio::test]
async fn aborts_keep_what_was_made_and_match_by_prefix() {
    let handle = generator(6, GeneratorOptions { max_running: 2, ..GeneratorOptions::default() });
    let mut streams = Vec::new();
    for (number, rid) in (0_u32..).zip(["g1-a", "g1-b", "g1-c", "g2-a"]) {
        let mut request = request(rid, number * 7..number * 7 + 30, 900);
        request.stream = true;
        streams.push(handle.submit(request).await.unwrap());
    }
    let first = first_tokens(&mut streams[0], 3).await;
    assert_eq!(handle.abort("g1").await.unwrap(), 3);
    assert_eq!(handle.abort("nobody").await.unwrap(), 0);
    let last = streams.pop().unwrap();
    let mut messages = Vec::new();
    for (index, stream) in streams.into_iter().enumerate() {
        let (_, finished) = drain_counting(stream, if index == 0 { first.len() } else { 0 }).await;
        let FinishReason::Abort { message } = finished.reason else { panic!("{finished:?}") };
        messages.push(message);
    }
    assert_eq!(messages, ["Aborted", "Aborted", "Abort in waiting queue"]);
    handle.pause(PauseMode::Abort).await.unwrap();
    let (_, finished) = drain(last).await;
    assert!(matches!(finished.reason, FinishReason::Abort { .. }));
    assert_eq!(handle.loads().await.unwrap().total_aborted, 4);
}

#[tokio::test]
async fn a_dropped_stream_frees_its_place() {
    let handle = generator(6, GeneratorOptions { max_running: 1, ..GeneratorOptions::default() });
    drop(handle.submit(request("deserted", 0..30, 900)).await.unwrap());
    let (tokens, _) = run(&handle, request("next", 0..30, 4)).await;
    assert_eq!(tokens.len(), 4);
    assert_eq!(handle.loads().await.unwrap().total_aborted, 1);
}

#[tokio::test]
async fn generation_stops_where_it_should() {
    let decoder = Arc::new(|ids: &[u32]| ids.iter().map(|id| format!("<{id}>")).collect::<String>());
    let handle = generator(7, GeneratorOptions { decoder: Some(decoder), ..GeneratorOptions::default() });
    let greedy = |max_new_tokens| {
        let mut request = request("r", 0..20, max_new_tokens);
        request.params.temperature = 0.0;
        request
    };
    let (free, finished) = run(&handle, greedy(30)).await;
    assert_eq!(finished.reason, FinishReason::Length { length: 30 });
    let ids: Vec<u32> = free.iter().map(|token| token.id).collect();
    let fresh = (3..30).find(|&index| !ids[..index].contains(&ids[index])).expect("some token is new after the third");
    let target = ids[fresh];

    let check = |change: Box<dyn Fn(&mut SamplingParams)>, length: usize, reason: FinishReason| {
        let (handle, mut request) = (handle.clone(), greedy(30));
        change(&mut request.params);
        async move {
            let (tokens, finished) = run(&handle, request).await;
            assert_eq!((tokens.len(), finished.reason), (length, reason));
        }
    };
    let at_token = FinishReason::Stop { matched: StopMatch::Token(target) };
    let full = FinishReason::Length { length: 30 };
    check(Box::new(move |p| (p.stop_token_ids, p.ignore_eos) = (vec![target], false)), fresh + 1, at_token).await;
    check(Box::new(move |p| p.stop_token_ids = vec![target]), 30, full).await;
    let text = format!("><{target}>");
    let at_text = FinishReason::Stop { matched: StopMatch::Text(text.clone()) };
    check(Box::new(move |p| p.stop = vec!["never".into(), text.clone()]), fresh + 1, at_text).await;
    check(Box::new(|p| p.max_new_tokens = 0), 0, FinishReason::Length { length: 0 }).await;

    let mut early = greedy(30);
    early.params.stop_token_ids = ids.clone();
    early.params.ignore_eos = false;
    early.params.min_new_tokens = 5;
    let (tokens, _) = run(&handle, early).await;
    assert!(tokens.len() > 5 && tokens[..5].iter().all(|token| !ids.contains(&token.id)), "stop ids were forbidden");
}

#[tokio::test]
async fn wrong_requests_are_refused_with_a_reason() {
    let handle = generator(8, GeneratorOptions { context_length: Some(100), ..GeneratorOptions::default() });
    let base = || request("r", 0..20, 10);
    let with = |change: fn(&mut GenerationRequest)| {
        let mut request = base();
        change(&mut request);
        request
    };
    let cases = [
        ("GR0621", with(|r| r.input_ids.clear())),
        ("GR0621", with(|r| r.input_ids.push(300))),
        ("GR0621", with(|r| r.token_ids_logprob.push(300))),
        ("GR0622", with(|r| r.params.max_new_tokens = 81)),
        ("GR0622", with(|r| (r.input_ids, r.params.max_new_tokens) = (vec![1; 100], 0))),
        ("GR0620", with(|r| r.params.temperature = f64::NAN)),
        ("GR0620", with(|r| r.params.top_p = 0.0)),
        ("GR0620", with(|r| r.params.min_new_tokens = 11)),
        ("GR0624", with(|r| r.params.stop.push("x".into()))),
    ];
    for (code, request) in cases {
        assert_eq!(handle.submit(request.clone()).await.unwrap_err().code(), code, "{request:?}");
    }
    handle.pause(PauseMode::InPlace).await.unwrap();
    let _first = handle.submit(base()).await.unwrap();
    assert_eq!(handle.submit(base()).await.unwrap_err().code(), "GR0623");
    assert_eq!(handle.get_weights_by_name("nothing", 1).await.unwrap_err().code(), "GR0627");
    handle.shutdown().await.unwrap();
    assert_eq!(handle.loads().await.unwrap_err().code(), "GR0629");
}

#[tokio::test]
async fn a_flush_is_refused_while_busy_and_empties_the_cache_when_idle() {
    let handle = generator(8, GeneratorOptions::default());
    let stream = handle.submit(request("r", 0..50, 200)).await.unwrap();
    assert_eq!(handle.flush_cache().await.unwrap_err().code(), "GR0625");
    drain(stream).await;
    assert!(handle.loads().await.unwrap().cached_tokens > 200);
    handle.flush_cache().await.unwrap();
    assert_eq!(handle.loads().await.unwrap().cached_tokens, 0);
    let (_, finished) = run(&handle, request("r", 0..50, 1)).await;
    assert_eq!(finished.cached_tokens, 0);
}

#[tokio::test]
async fn the_same_seed_gives_the_same_tokens_and_another_gives_others() {
    let handle = generator(9, GeneratorOptions::default());
    let seeded = |rid: &str, seed: Option<u64>| {
        let mut request = request(rid, 0..20, 30);
        request.params.sampling_seed = seed;
        request
    };
    let mut results = Vec::new();
    for (rid, seed) in [("a", Some(1)), ("b", Some(1)), ("c", Some(2)), ("x", None), ("x", None), ("y", None)] {
        results.push(bits(&run(&handle, seeded(rid, seed)).await.0));
    }
    assert_eq!(results[0], results[1]);
    assert_ne!(results[0], results[2]);
    assert_eq!(results[3], results[4], "the same id draws the same numbers");
    assert_ne!(results[3], results[5]);
}
