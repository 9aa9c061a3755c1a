//! The HTTP client against exchanges recorded from unmodified SGLang 0.5.23 and 0.5.10.post1, and against servers that
//! misbehave: each answer becomes the right result or the right kind of error, and nothing hangs or is believed blindly.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)] // a test's helpers may fail
#![allow(clippy::type_complexity)] // tables of changes

mod replay;

use greenroom_core::Deadline;
use greenroom_engine::*;
use greenroom_messages::engine::{EngineSpec, FinishReason, Sampling};
use replay::{Answer, Exchange, Replay, recorded};
use serde_json::{Value, json};

const NEW: &str = "0.5.23";
const OLD: &str = "0.5.10.post1";

fn client(url: &str) -> HttpEngineApi {
    HttpEngineApi::new(url, None, None, 1 << 20).unwrap()
}

fn soon() -> Deadline {
    Deadline::after_ms(10_000)
}

fn call(rid: &str, prompt_tokens: usize, max_new_tokens: u32) -> GenerateCall {
    GenerateCall {
        rid: rid.to_owned(),
        input_ids: vec![785; prompt_tokens],
        sampling: Sampling {
            temperature: 0.7,
            top_p: 1.0,
            top_k: -1,
            max_new_tokens,
            stop: vec!["</x>".into()],
            stop_token_ids: vec![7],
            seed: Some(u64::MAX),
        },
        cache_key: "run:1".into(),
    }
}

/// The call that fits a recorded `/generate`.
fn call_of(exchange: &Exchange) -> GenerateCall {
    let Answer::Whole(_, body) = &exchange.answer else { panic!("no answer was recorded") };
    let body: Value = serde_json::from_str(body).unwrap();
    let request = &exchange.request["body"];
    let prompt_tokens = request["input_ids"].as_array().unwrap().len();
    let max_new_tokens = request["sampling_params"]["max_new_tokens"].as_u64().unwrap() as u32;
    call(body["meta_info"]["id"].as_str().unwrap(), prompt_tokens, max_new_tokens)
}

/// What a load is confirmed by, and what tells a stalled engine from a slow one.
#[tokio::test]
async fn numbers_and_progress_are_read_where_a_server_can_tell_them() {
    let replay = Replay::of([recorded(NEW, "009"), recorded(NEW, "633")]).await;
    let api = client(&replay.url);
    let progress = api.progress(soon()).await.unwrap().unwrap();
    assert_eq!(progress, "running 0, waiting 0, tokens held 0 of 0, 0.0 tokens/s, prefill 0 us");
    let cannot = api.weight_rows("model.norm.weight", 4, soon()).await.unwrap_err();
    assert_eq!(cannot.code(), "GR0405", "not for this model: {cannot}");
    assert!(!cannot.engine_in_doubt(), "it lives on");
    let asked = json!({ "name": "model.norm.weight", "truncate_size": 4 });
    assert_eq!(replay.received().last().unwrap().body, asked);
    let old = Replay::of([recorded(OLD, "009")]).await;
    assert_eq!(client(&old.url).progress(soon()).await.unwrap_err().code(), "GR0405");

    let rows = [
        ("[1.5, -2]", Some(vec![1.5, -2.0])),
        ("[[1, 2], [3, 4]]", Some(vec![1.0, 2.0, 3.0, 4.0])),
        ("[]", Some(Vec::new())),
        (r#"["one"]"#, None),
        ("{}", None),
    ];
    for (body, expected) in rows {
        let answer = Answer::Whole(200, body.to_owned());
        let replay = Replay::start([("/get_weights_by_name".to_owned(), answer)]).await;
        assert_eq!(client(&replay.url).weight_rows("w", 2, soon()).await.ok(), expected, "{body}");
    }
}

#[tokio::test]
async fn information_is_read_from_both_versions() {
    for (version, ready) in [(NEW, Some(true)), (OLD, None)] {
        let replay = Replay::of(["003", "005", "007", "008", "009"].map(|number| recorded(version, number))).await;
        let api = client(&replay.url);
        let server = api.server_info(soon()).await.unwrap();
        assert_eq!(server.version, version);
        assert_eq!((server.context_tokens, server.max_prompt_tokens), (Some(4096), Some(4090)), "{version}");
        assert_eq!((server.identity.is_empty(), server.disaggregated), (version == OLD, false));
        let model = api.model_info(soon()).await.unwrap();
        assert_eq!(model, ModelInfo { weight_version: "default".into(), is_generation: true });
        match version {
            NEW => assert_eq!(api.loads(soon()).await, Ok(Loads::default())),
            _ => assert_eq!(api.loads(soon()).await.unwrap_err().code(), "GR0405", "its /v1/loads answers 500"),
        }
        let answer = api.ready(soon()).await;
        match ready {
            Some(ready) => assert_eq!(answer, Ok(ready)),
            None => assert_eq!(answer.unwrap_err().code(), "GR0407", "{version} has no /ready"),
        }
    }
    let paused = Replay::start([("/ready".to_owned(), Answer::Whole(503, String::new()))]).await;
    assert_eq!(client(&paused.url).ready(soon()).await, Ok(false));
}

#[tokio::test]
async fn turns_are_read_from_both_versions() {
    let rows = [
        (NEW, "102", 8, FinishReason::Length),
        (NEW, "108", 8, FinishReason::Length),
        (NEW, "115", 0, FinishReason::Length),
        (NEW, "401", 20, FinishReason::Abort),
        (NEW, "604", 8, FinishReason::Length),
        (OLD, "102", 8, FinishReason::Length),
        (OLD, "401", 238, FinishReason::Abort),
    ];
    for (version, number, tokens, finish) in rows {
        let exchange = recorded(version, number);
        let (call, Answer::Whole(_, body)) = (call_of(&exchange), exchange.answer.clone()) else { panic!() };
        let body: Value = serde_json::from_str(&body).unwrap();
        let replay = Replay::of([exchange]).await;
        let turn = client(&replay.url).generate(&call, soon()).await.unwrap();
        let name = format!("{version} {number}");
        assert_eq!((turn.output_ids.len(), turn.logprobs.len(), turn.finish), (tokens, tokens, finish), "{name}");
        assert_eq!(json!(turn.output_ids), body["output_ids"], "{name}");
        assert_eq!(turn.weight_version, body["meta_info"]["weight_version"], "{name}");
        let recorded = |index: usize| body["meta_info"]["output_token_logprobs"][index][0].as_f64().unwrap() as f32;
        assert!(turn.logprobs.iter().enumerate().all(|(index, logprob)| *logprob == recorded(index)), "{name}");
        let told = version == NEW && tokens > 0;
        let span = LabelSpan { label: turn.weight_version.clone(), start: 0, end: tokens as u32 };
        assert_eq!(turn.spans, if told { vec![span] } else { vec![] }, "{name}");
    }
}

#[tokio::test]
async fn what_is_sent_is_what_the_server_knows() {
    let replay = Replay::of([recorded(NEW, "102")]).await;
    let _ = client(&replay.url).generate(&call("t00001-g000-s00-a00-t000", 3, 16), soon()).await;
    let sent = replay.received().remove(0);
    assert_eq!(sent.line, "POST /generate HTTP/1.1");
    assert_eq!(sent.headers["content-type"], "application/json");
    let expected = json!({
        "rid": "t00001-g000-s00-a00-t000",
        "extra_key": "run:1",
        "input_ids": [785, 785, 785],
        "sampling_params": {
            "temperature": 0.7, "top_p": 1.0, "top_k": -1, "max_new_tokens": 16, "stop": ["</x>"],
            "stop_token_ids": [7], "skip_special_tokens": false, "spaces_between_special_tokens": false,
            "no_stop_trim": true, "sampling_seed": i64::MAX,
        },
        "return_logprob": true, "logprob_start_len": -1, "stream": false,
    });
    assert_eq!(sent.body, expected);
    // The server lists the sampling parameters that it knows when it meets another one, and refuses all others.
    let Answer::Whole(_, refusal) = recorded(NEW, "305").answer else { panic!() };
    for name in expected["sampling_params"].as_object().unwrap().keys() {
        assert!(refusal.contains(&format!("`{name}`")), "{name}");
    }
}

#[tokio::test]
async fn every_recorded_refusal_becomes_a_refusal_with_its_message() {
    let rows = [
        (NEW, "301", "temperature must be"),
        (NEW, "305", "unknown field `temperture`"),
        (NEW, "306", "expected f64"),
        (NEW, "309", "is longer than the model's context length"),
        (NEW, "310", "(4096 tokens)"),
        (NEW, "311", "4154 tokens"),
        (NEW, "312", "input_ids cannot be empty"),
        (NEW, "313", "1 validation error"),
        (NEW, "314", "should be provided"),
        (NEW, "316", "JSON decode error"),
        (NEW, "318", "Input should be a dictionary"),
        (NEW, "320", "Duplicate request IDs"),
        (NEW, "322", "LoRA is not enabled"),
        (NEW, "411", "Duplicate request ID detected: dup"),
        (OLD, "305", "Internal Server Error"),
        (OLD, "310", "context length"),
    ];
    for (version, number, says) in rows {
        let exchange = recorded(version, number);
        let Answer::Whole(recorded_status, _) = exchange.answer else { panic!() };
        let replay = Replay::of([exchange]).await;
        match client(&replay.url).generate(&call("r", 5, 8), soon()).await {
            Err(error @ ApiError::Refused { status, .. }) => {
                assert_eq!(status, recorded_status);
                assert!(error.to_string().contains(says), "{version} {number}: {error}");
                assert!(!error.engine_in_doubt());
            }
            other => panic!("{version} {number}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn control_calls_send_what_the_server_wants_and_read_its_answers() {
    let numbers = ["402", "407", "414", "502", "508", "514", "506", "602"];
    let replay = Replay::of(numbers.map(|number| recorded(NEW, number))).await;
    let api = client(&replay.url);
    api.abort(&AbortTarget::Request("r1".into()), soon()).await.unwrap();
    api.abort(&AbortTarget::All, soon()).await.unwrap();
    api.flush_cache(soon()).await.unwrap();
    for mode in [ServerPause::Abort, ServerPause::Retract, ServerPause::InPlace] {
        api.pause(mode, soon()).await.unwrap();
    }
    api.continue_generation(soon()).await.unwrap();
    let load = LoadWeights { model_dir: "/w/7".into(), weight_version: "run:7".into(), flush_cache: true };
    api.update_weights_from_disk(&load, soon()).await.unwrap();
    let sent: Vec<_> = replay.received().into_iter().map(|sent| (sent.line, sent.body)).collect();
    let post = |path: &str, body: Value| (format!("POST {path} HTTP/1.1"), body);
    assert_eq!(
        sent,
        [
            post("/abort_request", json!({ "rid": "r1" })),
            post("/abort_request", json!({ "abort_all": true })),
            post("/flush_cache", json!({})),
            post("/pause_generation", json!({ "mode": "abort" })),
            post("/pause_generation", json!({ "mode": "retract" })),
            post("/pause_generation", json!({ "mode": "in_place" })),
            post("/continue_generation", json!({})),
            post(
                "/update_weights_from_disk",
                json!({ "model_path": "/w/7", "weight_version": "run:7", "flush_cache": true })
            ),
        ]
    );
}

#[tokio::test]
async fn refused_control_calls_are_refusals() {
    let load = LoadWeights { model_dir: "/no".into(), weight_version: "run:8".into(), flush_cache: true };
    for (version, number, says) in [(NEW, "607", "Failed"), (NEW, "628", "not flushed"), (OLD, "607", "Failed")] {
        let replay = Replay::of([recorded(version, number)]).await;
        let error = client(&replay.url).update_weights_from_disk(&load, soon()).await.unwrap_err();
        assert!(error.code() == "GR0405" && error.to_string().contains(says), "{version} {number}: {error}");
    }
    for version in [NEW, OLD] {
        let replay = Replay::of([recorded(version, "413")]).await;
        let error = client(&replay.url).flush_cache(soon()).await.unwrap_err();
        assert!(error.to_string().contains("Flush cache failed."), "{error}");
    }
    let unbelieved = Answer::Whole(200, r#"{"success":false,"message":"no"}"#.into());
    let replay = Replay::start([("/update_weights_from_disk".to_owned(), unbelieved)]).await;
    let error = client(&replay.url).update_weights_from_disk(&load, soon()).await.unwrap_err();
    assert_eq!(error.code(), "GR0405", "a 200 without success is no success");
}

#[tokio::test]
async fn requests_that_killed_a_server_are_lost_connections() {
    for (version, number) in [(NEW, "901"), (NEW, "911"), (NEW, "892"), (NEW, "921"), (OLD, "618"), (OLD, "892")] {
        let exchange = recorded(&format!("{version}-fatal"), number);
        assert!(matches!(exchange.answer, Answer::HangUp), "{version} {number} was fatal");
        let generate = exchange.path == "/generate";
        let replay = Replay::of([exchange]).await;
        let api = client(&replay.url);
        let error = match generate {
            true => api.generate(&call("r", 3, 8), soon()).await.unwrap_err(),
            false => {
                let load = LoadWeights { model_dir: "x".into(), weight_version: "9".into(), flush_cache: true };
                api.update_weights_from_disk(&load, soon()).await.unwrap_err()
            }
        };
        assert!(error.code() == "GR0402" && error.engine_in_doubt(), "{version} {number}: {error}");
        assert_eq!(replay.received().len(), 1, "it is not sent again");
        drop(replay);
        let error = api.model_info(soon()).await.unwrap_err();
        assert!(matches!(error.code(), "GR0401" | "GR0402"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_misbehaves_gives_the_right_kind_of_error() {
    let whole = |status, body: &str| Answer::Whole(status, body.to_owned());
    let rows = [
        ("silence", Answer::Silence, "GR0403"),
        ("half an answer", Answer::Half(200, r#"{"weight_ver"#.into()), "GR0402"),
        ("no JSON", whole(200, "<html>"), "GR0408"),
        ("JSON of another kind", whole(200, r#"{"model":1}"#), "GR0408"),
        ("too much", whole(200, &"x".repeat(2 << 20)), "GR0408"),
        ("elsewhere", whole(307, ""), "GR0405"),
        ("not there", whole(404, ""), "GR0407"),
        ("no credential", whole(401, r#"{"error":"Unauthorized"}"#), "GR0404"),
        ("forbidden", whole(403, r#"{"error":"Forbidden"}"#), "GR0404"),
        ("ending", whole(503, ""), "GR0406"),
        ("a broken server", whole(500, "Internal Server Error"), "GR0405"),
    ];
    for (name, answer, code) in rows {
        let replay = Replay::start([("/model_info".to_owned(), answer)]).await;
        let error = client(&replay.url).model_info(Deadline::after_ms(500)).await.unwrap_err();
        assert_eq!(error.code(), code, "{name}: {error}");
        assert!(error.to_string().contains(&replay.url), "{name}: it names the engine: {error}");
    }
}

#[tokio::test]
async fn an_answer_that_contradicts_itself_or_the_call_is_not_believed() {
    let exchange = recorded(NEW, "102");
    let Answer::Whole(_, body) = &exchange.answer else { panic!() };
    let rows: [(&str, fn(&mut Value)); 13] = [
        ("another request", |body| body["meta_info"]["id"] = json!("other")),
        ("another prompt", |body| body["meta_info"]["prompt_tokens"] = json!(6)),
        ("no finish reason", |body| body["meta_info"]["finish_reason"] = Value::Null),
        ("an unknown finish reason", |body| body["meta_info"]["finish_reason"]["type"] = json!("tired")),
        ("a missing logprob", |body| body["meta_info"]["output_token_logprobs"][3][0] = Value::Null),
        ("a probability above one", |body| body["meta_info"]["output_token_logprobs"][3][0] = json!(0.5)),
        ("another id", |body| body["output_ids"][0] = json!(1)),
        ("no logprobs", |body| body["meta_info"]["output_token_logprobs"] = json!([])),
        ("an end without a token", |body| {
            body["meta_info"]["output_token_logprobs"] = json!([]);
            body["meta_info"]["weight_versions"] = json!([]);
            body["output_ids"] = json!([]);
        }),
        ("a gap in the versions", |body| body["meta_info"]["weight_versions"][0]["start"] = json!(1)),
        ("versions of fewer tokens", |body| body["meta_info"]["weight_versions"][0]["end"] = json!(7)),
        ("no version", |body| body["meta_info"]["weight_version"] = Value::Null),
        ("a negative id", |body| body["meta_info"]["output_token_logprobs"][0][1] = json!(-1)),
    ];
    for (name, damage) in rows {
        let mut damaged: Value = serde_json::from_str(body).unwrap();
        damage(&mut damaged);
        let replay = Replay::start([("/generate".to_owned(), Answer::Whole(200, damaged.to_string()))]).await;
        let error = client(&replay.url).generate(&call_of(&exchange), soon()).await.unwrap_err();
        assert_eq!(error.code(), "GR0408", "{name}: {error}");
    }
    let replay = Replay::of([exchange.clone()]).await;
    let call =
        GenerateCall { sampling: Sampling { max_new_tokens: 7, ..call_of(&exchange).sampling }, ..call_of(&exchange) };
    assert_eq!(client(&replay.url).generate(&call, soon()).await.unwrap_err().code(), "GR0408", "more than asked for");
}

#[tokio::test]
async fn a_turn_that_is_given_up_hangs_up() {
    let replay = Replay::start([("/generate".to_owned(), Answer::Silence)]).await;
    let api = client(&replay.url);
    let error = api.generate(&call("r", 3, 8), Deadline::after_ms(200)).await.unwrap_err();
    assert_eq!(error.code(), "GR0403");
    let hung_up = async {
        while replay.hung_up() == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(5), hung_up).await.expect("the connection is closed");
}

#[tokio::test]
async fn each_call_carries_its_own_credential() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = directory.path().join(name);
        std::fs::write(&path, format!("{name}-secret\n")).unwrap();
        SecretSource::File(path)
    };
    let rows = [
        (None, None, [None, None]),
        (Some("api"), None, [Some("Bearer api-secret"); 2]),
        (None, Some("admin"), [None, Some("Bearer admin-secret")]),
        (Some("api"), Some("admin"), [Some("Bearer api-secret"), Some("Bearer admin-secret")]),
    ];
    for (api_key, admin_key, expected) in rows {
        let replay = Replay::of([recorded(NEW, "005"), recorded(NEW, "402")]).await;
        let credentials = Credentials { api_key: api_key.map(file), admin_key: admin_key.map(file) };
        let config = EngineConfig { credentials, ..EngineConfig::default() };
        let shown = toml::to_string(&config).unwrap();
        assert!(!shown.contains("secret"), "a dump names the file only: {shown}");
        let spec =
            EngineSpec { engine: greenroom_messages::EngineId::new("e0"), url: replay.url.clone(), max_in_flight: 1 };
        let api = http_api_factory(&config).unwrap()(&spec).unwrap();
        assert!(!format!("{api:?}").contains("secret"));
        api.model_info(soon()).await.unwrap();
        api.abort(&AbortTarget::Request("r".into()), soon()).await.unwrap();
        let sent = replay.received();
        let headers: Vec<_> = sent.iter().map(|sent| sent.headers.get("authorization").map(String::as_str)).collect();
        assert_eq!(headers, expected);
    }
}

#[test]
fn settings_are_read_with_defaults_and_without_unknown_keys() {
    let config: EngineConfig = toml::from_str(
        "drain_ms = 5\nupdate_order = \"rolling\"\n[deadlines]\nload_ms = 9\n[credentials]\nadmin_key = { env = \"KEY\" }",
    )
    .unwrap();
    assert_eq!((config.drain_ms, config.deadlines.load_ms, config.deadlines.probe_ms), (5, 9, 5_000));
    assert_eq!(config.credentials.admin_key, Some(SecretSource::Env("KEY".into())));
    assert_eq!(config.problems(), []);
    assert!(toml::from_str::<EngineConfig>("drain = 5").unwrap_err().to_string().contains("drain"));
    let broken = "probe_interval_ms = 0\n[versions]\noldest = \"new\"";
    assert_eq!(toml::from_str::<EngineConfig>(broken).unwrap().problems().len(), 2);
    for url in ["", "localhost:1", "ftp://x", "http://"] {
        let error = HttpEngineApi::new(url, None, None, 1).unwrap_err();
        assert_eq!(error.code(), "GR0410", "{url}");
    }
}
