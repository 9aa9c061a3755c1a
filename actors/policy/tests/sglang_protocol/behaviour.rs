//! What the recordings cannot show: disconnects, keys, bounds, streams as wholes, stopping.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use greenroom_policy::server::{Keys, Limits, ServeOptions};
use serde_json::{Value, json};
use tokio::io::AsyncReadExt;
use tokio::time::Instant;

use crate::Engine;
use crate::client::{Call, PATIENCE};
use crate::replay::fixtures;

fn generate(extra: &Value) -> Call {
    let mut body = json!({"input_ids": [785, 6722, 315], "sampling_params": {"max_new_tokens": 8, "temperature": 0}});
    for (key, value) in extra.as_object().unwrap() {
        body[key] = value.clone();
    }
    Call::post("/generate", &body)
}

async fn until(what: &str, deadline: Duration, mut holds: impl AsyncFnMut() -> bool) {
    let end = Instant::now() + deadline;
    while !holds().await {
        assert!(Instant::now() < end, "{what}: not within {deadline:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_client_that_goes_away_ends_its_request_within_a_second() {
    let engine = Engine::start().await;
    let long = json!({"max_new_tokens": 4000, "ignore_eos": true});
    for stream in [false, true] {
        let before = engine.seen.abandoned.load(Ordering::Relaxed);
        let mut socket = generate(&json!({"stream": stream, "sampling_params": long})).begin(engine.running.addr).await;
        until("the request runs", PATIENCE, async || engine.running.handle.loads().await.unwrap().running == 1).await;
        if stream {
            let mut some = [0; 64];
            assert!(socket.read(&mut some).await.unwrap() > 0);
        }
        drop(socket);
        let gone = async || engine.seen.abandoned.load(Ordering::Relaxed) == before + 1;
        until("the request ends", Duration::from_secs(1), gone).await;
        assert_eq!(engine.running.handle.loads().await.unwrap().running, 0);
    }
}

#[tokio::test]
async fn a_client_that_leaves_a_held_request_ends_it_too() {
    let engine = Engine::start().await;
    engine.running.handle.pause(greenroom_policy::generation::PauseMode::Retract).await.unwrap();
    let socket = generate(&json!({"rid": "held"})).begin(engine.running.addr).await;
    until("the request is held", PATIENCE, async || engine.running.handle.loads().await.unwrap().waiting == 1).await;
    drop(socket);
    // Looked at from outside only: a command would wake the generator, which is what is tested.
    let gone = async || engine.seen.abandoned.load(Ordering::Relaxed) == 1;
    until("the request ends", Duration::from_secs(1), gone).await;
}

#[tokio::test]
async fn each_endpoint_asks_for_its_key() {
    let matrix = [
        // (api key, admin key, token sent, normal, administration)
        (None, None, None, 200, 200),
        (Some("k"), None, None, 401, 401),
        (Some("k"), None, Some("k"), 200, 200),
        (None, Some("a"), None, 200, 401),
        (None, Some("a"), Some("a"), 200, 200),
        (Some("k"), Some("a"), Some("k"), 200, 401),
        (Some("k"), Some("a"), Some("a"), 401, 200),
    ];
    for (api, admin, token, normal, administration) in matrix {
        let keys = Keys { api_key: api.map(str::to_owned), admin_api_key: admin.map(str::to_owned) };
        let engine = Engine::start_with(ServeOptions { keys, ..ServeOptions::default() }).await;
        let with_token = |call: Call| match token {
            Some(token) => call.with_header("Authorization", &format!("Bearer {token}")),
            None => call,
        };
        for (call, expected) in [
            (generate(&json!({})), normal),
            (Call::get("/v1/models"), normal),
            (Call::get("/server_info"), normal),
            (Call::post("/abort_request", &json!({"rid": "x"})), administration),
            (Call::get("/flush_cache"), administration),
            (Call::get("/health"), 200),
            (Call::get("/ready"), 200),
            (Call::get("/metrics"), 200),
        ] {
            let answer = with_token(call.clone()).send(engine.running.addr).await;
            assert_eq!(answer.status, expected, "{} with {api:?} {admin:?}, token {token:?}", call.path);
            if expected == 401 {
                assert_eq!(answer.json(), json!({"error": "Unauthorized"}));
            }
        }
    }
}

#[tokio::test]
async fn ids_outside_of_the_vocabulary_never_reach_the_generator() {
    let engine = Engine::start().await;
    let top = crate::fake::VOCABULARY as i64;
    let bodies = [
        ("/generate", json!({"input_ids": [1, top]})),
        ("/generate", json!({"input_ids": [-1]})),
        ("/generate", json!({"input_ids": [[1, 2], [3, i64::MAX]]})),
        ("/generate", json!({"input_ids": [1], "return_logprob": true, "token_ids_logprob": [top]})),
        ("/v1/completions", json!({"prompt": [1, -7]})),
        ("/v1/chat/completions", json!({"messages": [], "input_ids": [top]})),
        ("/v1/detokenize", json!({"tokens": [top]})),
    ];
    for (path, body) in bodies {
        let answer = Call::post(path, &body).send(engine.running.addr).await;
        assert_eq!(answer.status, 400, "{path} {body}");
        assert!(answer.text().contains("vocabulary"), "{path} {body}: {}", answer.text());
    }
    assert_eq!(*engine.seen.prompts.lock().unwrap(), Vec::<Vec<u32>>::new());
}

#[tokio::test]
async fn a_body_that_is_too_large_or_never_comes_is_refused() {
    let limits = Limits { body_bytes: 1000, body_deadline: Duration::from_millis(200), ..Limits::default() };
    let engine = Engine::start_with(ServeOptions { limits, ..ServeOptions::default() }).await;
    let large = Call::post("/generate", &json!({"input_ids": vec![1; 1000]})).send(engine.running.addr).await;
    assert_eq!(large.status, 413);
    let mut socket = tokio::net::TcpStream::connect(engine.running.addr).await.unwrap();
    let head = "POST /generate HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{";
    tokio::io::AsyncWriteExt::write_all(&mut socket, head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(Duration::from_secs(5), socket.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 408"), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn chunks_are_cumulative_and_end_as_the_unstreamed_answer() {
    let engine = Engine::start().await;
    let wish = |stream: bool| {
        generate(&json!({
            "stream": stream, "return_logprob": true, "rid": format!("same-{stream}"),
            "sampling_params": {"max_new_tokens": 64, "stop_token_ids": [crate::fake::END_OF_TURN], "skip_special_tokens": false},
        }))
    };
    let whole = wish(false).send(engine.running.addr).await.json();
    let events = wish(true).send(engine.running.addr).await.events();
    let chunks: Vec<Value> =
        events[..events.len() - 1].iter().map(|event| serde_json::from_str(event).unwrap()).collect();
    let (mut text, mut tokens) = (String::new(), 0);
    for chunk in &chunks {
        let now = chunk["text"].as_str().unwrap();
        assert!(now.starts_with(&text), "{now:?} does not extend {text:?}");
        text = now.to_owned();
        let count = chunk["output_ids"].as_array().unwrap().len();
        assert!(count > tokens || chunk["meta_info"]["finish_reason"].is_object());
        tokens = count;
        assert_eq!(chunk["meta_info"]["output_token_logprobs"].as_array().unwrap().len(), count);
        assert_eq!(chunk["meta_info"]["completion_tokens"], count);
    }
    let last = chunks.last().unwrap();
    for key in ["text", "output_ids"] {
        assert_eq!(last[key], whole[key]);
    }
    assert_eq!(last["meta_info"]["finish_reason"], json!({"type": "stop", "matched": crate::fake::END_OF_TURN}));
    assert!(!last["text"].as_str().unwrap().contains("im_end"), "the stop token stays out of the text");
    assert_eq!(last["output_ids"].as_array().unwrap().last(), Some(&json!(crate::fake::END_OF_TURN)), "and in the ids");
}

/// Forms of requests that the recordings do not hold: (path, body, place in the answer, what stands there).
#[tokio::test]
async fn every_form_of_a_request_is_understood() {
    let engine = Engine::start().await;
    let short = json!({"max_new_tokens": 2, "temperature": 0});
    let two = json!({"max_new_tokens": 2, "n": 2});
    let cases = [
        (
            "/generate",
            json!({"text": ["t5", "t6 t7"], "sampling_params": short}),
            "/1/meta_info/prompt_tokens",
            json!(2),
        ),
        ("/generate", json!({"input_ids": [[1]], "sampling_params": short}), "/0/output_ids", json!([100, 137])),
        (
            "/generate",
            json!({"input_ids": [[1], [2]], "rid": "b", "sampling_params": short}),
            "/1/meta_info/id",
            json!("b_1"),
        ),
        ("/generate", json!({"input_ids": [1], "rid": "s", "sampling_params": two}), "/1/meta_info/id", json!("s_1")),
        ("/generate", json!({"input_ids": [1], "rid": ["r"], "sampling_params": short}), "/meta_info/id", json!("r")),
        (
            "/generate",
            json!({"input_ids": [[1], [2]], "return_logprob": [false, true], "sampling_params": short}),
            "/1/meta_info/output_token_logprobs/0",
            json!([-0.5, 100, null]),
        ),
        (
            "/generate",
            json!({"input_ids": [[1], [2]], "return_logprob": true, "token_ids_logprob": [[3], [4, 5]], "sampling_params": short}),
            "/1/meta_info/output_token_ids_logprobs/1/1",
            json!([-9.0, 5, null]),
        ),
        (
            "/generate",
            json!({"input_ids": [1, 2], "return_logprob": true, "logprob_start_len": 1, "sampling_params": short}),
            "/meta_info/input_token_logprobs",
            json!([[null, 2, null]]),
        ),
        (
            "/generate",
            json!({"input_ids": [8, 9], "return_prompt_token_ids": true, "sampling_params": short}),
            "/prompt_token_ids",
            json!([8, 9]),
        ),
        (
            "/generate",
            json!({"input_ids": [1], "sampling_params": {"max_new_tokens": null, "stop": "t174"}}),
            "/output_ids",
            json!([100, 137, 174]),
        ),
        ("/generate", json!({"input_ids": [[1], [2]], "sampling_params": [short]}), "/1/output_ids", json!([100, 137])),
        (
            "/generate",
            json!({"input_ids": [[1], [2], [3]], "sampling_params": [short, short]}),
            "/error/message",
            json!("sampling_params is a list of 2, but the batch has 3 prompts."),
        ),
        (
            "/generate",
            json!({"input_ids": [1], "sampling_params": {"logit_bias": {"5": 1.0}}}),
            "/error/message",
            json!("logit_bias is not supported by this engine."),
        ),
        (
            "/generate",
            json!({"input_ids": [1], "sampling_params": {"top_k": 1.5}}),
            "/error",
            json!("invalid type: floating point `1.5`, expected i64"),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "User", "content": [{"type": "text", "text": "t9"}]}], "max_tokens": 2}),
            "/usage/completion_tokens",
            json!(2),
        ),
        (
            "/v1/chat/completions",
            json!({"input_ids": [7, 7], "messages": [], "max_completion_tokens": 3}),
            "/usage/prompt_tokens",
            json!(2),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "t9"}], "stop": ["t137"], "rid": "c"}),
            "/choices/0",
            json!({"index": 0, "message": {"role": "assistant", "content": " t100 ", "reasoning_content": null}, "logprobs": null,
                "finish_reason": "stop", "matched_stop": "t137"}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": [{"role": "user", "content": "t9"}], "stream": true, "return_token_ids": true}),
            "/type",
            json!("BadRequestError"),
        ),
        (
            "/v1/completions",
            json!({"prompt": ["t1", "t2 t3"], "n": 2, "max_tokens": 1}),
            "/usage/prompt_tokens",
            json!(3),
        ),
        ("/v1/completions", json!({"prompt": [[1], [2]], "max_tokens": 1}), "/choices/1/index", json!(1)),
        ("/v1/completions", json!({"prompt": "t1"}), "/usage/completion_tokens", json!(16)),
        ("/v1/completions", json!({"prompt": ""}), "/object", json!("error")),
        ("/v1/tokenize", json!({"prompt": ["t1", "t2 t3"]}), "/tokens", json!([[1], [2, 3]])),
        ("/v1/detokenize", json!({"tokens": [[1], [2, 3]]}), "/text", json!([" t1", " t2 t3"])),
        ("/tokenize", json!({"prompt": "t1 t2"}), "/count", json!(2)),
    ];
    for (path, body, place, expected) in cases {
        let answer = Call::post(path, &body).send(engine.running.addr).await.json();
        assert_eq!(answer.pointer(place), Some(&expected), "{path} {body}: {answer}");
    }
    let mut put = generate(&json!({}));
    put.method = "PUT".to_owned();
    assert_eq!(put.send(engine.running.addr).await.status, 200);
}

#[tokio::test]
async fn stop_strings_are_cut_from_the_text_unless_wanted() {
    let engine = Engine::start().await;
    for (no_stop_trim, expected) in [(false, " t100 t137"), (true, " t100 t137 t174")] {
        let params = json!({"stop": ["nowhere", " t174"], "no_stop_trim": no_stop_trim, "max_new_tokens": 30});
        let answer = generate(&json!({"sampling_params": params})).send(engine.running.addr).await.json();
        assert_eq!(answer["text"], expected);
        assert_eq!(answer["meta_info"]["finish_reason"], json!({"type": "stop", "matched": " t174"}));
        assert_eq!(answer["output_ids"], json!([100, 137, 174]));
    }
}

#[tokio::test]
async fn an_abort_reaches_every_request_whose_id_begins_so() {
    let engine = Engine::start().await;
    let address = engine.running.addr;
    let long = json!({"max_new_tokens": 4000, "ignore_eos": true});
    let call = |rid: &str| generate(&json!({"rid": rid, "sampling_params": long}));
    let (one, two, other) = (call("g1"), call("g10"), call("h1"));
    let ended = async {
        until("all run", PATIENCE, async || engine.running.handle.loads().await.unwrap().running == 3).await;
        assert_eq!(Call::post("/abort_request", &json!({"rid": "g1"})).send(address).await.status, 200);
        until("two are gone", PATIENCE, async || engine.running.handle.loads().await.unwrap().running == 1).await;
        assert_eq!(Call::post("/abort_request", &json!({"abort_all": true})).send(address).await.status, 200);
    };
    let (one, two, other, ()) = tokio::join!(one.send(address), two.send(address), other.send(address), ended);
    for (answer, rid) in [(one, "g1"), (two, "g10"), (other, "h1")] {
        assert_eq!(answer.status, 200);
        let meta = &answer.json()["meta_info"];
        assert_eq!(meta["id"], rid);
        let aborted = json!({"type": "abort", "message": "Aborted", "status_code": null, "err_type": null});
        assert_eq!(meta["finish_reason"], aborted);
        assert!(meta["completion_tokens"].as_u64().unwrap() > 0, "partial tokens are kept");
    }
}

#[tokio::test]
async fn a_flush_with_a_timeout_waits_for_idleness_and_only_one_may_wait() {
    let engine = Engine::start().await;
    let address = engine.running.addr;
    let running = generate(&json!({"sampling_params": {"max_new_tokens": 100, "ignore_eos": true}}));
    let flushes = async {
        until("it runs", PATIENCE, async || engine.running.handle.loads().await.unwrap().running == 1).await;
        let first = Call::get("/flush_cache?timeout=20");
        let second = async {
            tokio::time::sleep(Duration::from_millis(60)).await;
            Call::get("/flush_cache?timeout=20").send(address).await
        };
        tokio::join!(first.send(address), second)
    };
    let (generated, (first, second)) = tokio::join!(running.send(address), flushes);
    assert_eq!((generated.status, first.status, second.status), (200, 200, 400));
    assert_eq!(second.text(), "Another flush_cache is already in progress.\n");
    engine.running.handle.pause(greenroom_policy::generation::PauseMode::InPlace).await.unwrap();
    assert_eq!(Call::get("/ready").send(address).await.status, 503);
    assert_eq!(Call::get("/health").send(address).await.status, 503);
}

#[tokio::test]
async fn tokens_name_the_weights_that_made_them() {
    let engine = Engine::start().await;
    let address = engine.running.addr;
    let sample = generate(&json!({"sampling_params": {"max_new_tokens": 120, "ignore_eos": true}}));
    let path = engine.models.path().join("models/tiny32-s1");
    let change = async {
        until("it runs", PATIENCE, async || engine.running.handle.loads().await.unwrap().total_generated_tokens > 5)
            .await;
        for (path, body) in [
            ("/pause_generation", json!({"mode": "retract"})),
            ("/update_weights_from_disk", json!({"model_path": path, "weight_version": "run:1"})),
            ("/continue_generation", json!({})),
        ] {
            assert_eq!(Call::post(path, &body).send(address).await.status, 200, "{path}");
        }
    };
    let (answer, ()) = tokio::join!(sample.send(address), change);
    let meta = &answer.json()["meta_info"];
    let spans = meta["weight_versions"].as_array().unwrap();
    assert_eq!(spans.len(), 2, "{spans:?}");
    assert_eq!((&spans[0]["version"], &spans[1]["version"]), (&json!("default"), &json!("run:1")));
    assert_eq!((&spans[0]["start"], &spans[0]["end"], &spans[1]["end"]), (&json!(0), &spans[1]["start"], &json!(120)));
    assert_eq!((&meta["weight_version"], &meta["num_retractions"]), (&json!("run:1"), &json!(1)));
    let info = Call::get("/model_info").send(address).await.json();
    assert_eq!((&info["weight_version"], &info["served_model_name"]), (&json!("run:1"), &json!(path)));
}

#[tokio::test]
async fn a_stopping_server_lets_requests_finish_then_ends_them_and_always_stops() {
    let limits = Limits { drain_deadline: Duration::from_secs(5), ..Limits::default() };
    let engine = Engine::start_with(ServeOptions { limits, ..ServeOptions::default() }).await;
    let (address, handle) = (engine.running.addr, engine.running.handle.clone());
    let short = generate(&json!({"sampling_params": {"max_new_tokens": 50, "ignore_eos": true}}));
    let stop = async {
        until("it runs", PATIENCE, async || handle.loads().await.unwrap().running == 1).await;
        engine.running.shutdown().await
    };
    let (answer, stopped) = tokio::join!(short.send(address), stop);
    assert_eq!(answer.json()["meta_info"]["finish_reason"]["type"], "length");
    stopped.unwrap();
    assert!(handle.loads().await.is_err(), "the generator has ended");
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "nobody listens");

    let limits = Limits { drain_deadline: Duration::from_millis(100), ..Limits::default() };
    let engine = Engine::start_with(ServeOptions { limits, ..ServeOptions::default() }).await;
    let (address, handle) = (engine.running.addr, engine.running.handle.clone());
    handle.pause(greenroom_policy::generation::PauseMode::InPlace).await.unwrap();
    let held = generate(&json!({}));
    let stop = async {
        until("it is held", PATIENCE, async || handle.loads().await.unwrap().waiting == 1).await;
        engine.running.shutdown().await
    };
    let (answer, stopped) = tokio::join!(held.send(address), stop);
    assert_eq!(answer.json()["meta_info"]["finish_reason"]["type"], "abort");
    stopped.unwrap();
}

#[tokio::test]
async fn a_dead_generator_is_said_at_once() {
    let engine = Engine::start().await;
    engine.running.handle.shutdown().await.unwrap();
    for call in [
        generate(&json!({})),
        Call::get("/server_info"),
        Call::get("/v1/loads"),
        Call::get("/health"),
        Call::get("/ready"),
    ] {
        assert_eq!(call.send(engine.running.addr).await.status, 503, "{}", call.path);
    }
    let stream = generate(&json!({"stream": true})).send(engine.running.addr).await;
    assert!(stream.events()[0].contains("\"code\":503"), "{:?}", stream.events());
}

/// Family, kind and label names of an exposition.
fn families(text: &str) -> BTreeMap<String, (String, Vec<String>)> {
    let mut found: BTreeMap<String, (String, Vec<String>)> = BTreeMap::new();
    for line in text.lines() {
        if let Some((family, kind)) = line.strip_prefix("# TYPE ").and_then(|rest| rest.split_once(' ')) {
            found.insert(family.to_owned(), (kind.to_owned(), Vec::new()));
        } else if let Some((name, rest)) = line.split_once('{') {
            let base =
                ["_bucket", "_sum", "_count"].iter().find_map(|suffix| name.strip_suffix(suffix)).unwrap_or(name);
            let family = if found.contains_key(name) { name } else { base };
            let labels = rest.split_once('}').unwrap().0;
            let keys = labels.split("\",").filter_map(|label| label.split_once('=')).map(|(key, _)| key.to_owned());
            let mut keys: Vec<String> = keys.filter(|key| key != "le").collect();
            keys.sort();
            found.get_mut(family).unwrap_or_else(|| panic!("{name} has no TYPE")).1 = keys;
        }
    }
    found
}

#[tokio::test]
async fn metrics_have_the_recorded_names_kinds_and_labels() {
    let engine = Engine::start().await;
    assert_eq!(generate(&json!({})).send(engine.running.addr).await.status, 200);
    assert_eq!(Call::get("/no_such_path").send(engine.running.addr).await.status, 404);
    assert_eq!(Call::get("/v1/loads").send(engine.running.addr).await.status, 200);
    let answer = Call::get("/metrics").send(engine.running.addr).await;
    let ours = families(&answer.text());
    let recorded = fixtures("0.5.23").into_iter().find(|(name, _)| name == "012_metrics").unwrap().1;
    let theirs = families(recorded["response"]["body_text"].as_str().unwrap());
    let shared: Vec<&String> = ours.keys().filter(|family| theirs.contains_key(*family)).collect();
    for family in &shared {
        assert_eq!(ours[*family], theirs[*family], "{family}");
    }
    for family in
        ["num_running_reqs", "num_queue_reqs", "token_usage", "gen_throughput", "num_paused_reqs", "cache_hit_rate"]
    {
        assert!(shared.iter().any(|name| **name == format!("sglang:{family}")), "{family}");
    }
    let value = |series: &str| {
        let line = answer.text().lines().find(|line| line.starts_with(series)).map(str::to_owned);
        line.and_then(|line| line.rsplit(' ').next().and_then(|value| value.parse::<f64>().ok()))
    };
    assert_eq!(value("sglang:generation_tokens_total"), Some(8.0));
    assert_eq!(value("sglang:prompt_tokens_total"), Some(3.0));
    assert_eq!(value("sglang:http_responses_total{endpoint=\"other\",method=\"GET\",status_code=\"404\"}"), Some(1.0));
}
