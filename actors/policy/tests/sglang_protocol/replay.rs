//! Every recorded exchange is sent to our server, in the recorded order; status, content type, error body and the shape of
//! the answer must be the recorded ones. What differs on purpose is listed here with its reason.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use greenroom_policy::generation::GeneratorHandle;
use serde_json::{Map, Value, json};
use tokio::task::JoinHandle;

use crate::client::{Answer, Call};
use crate::{Engine, shape};

/// Exchanges that are answered differently on purpose.
const DIFFERENT: [(&str, u16, &str); 7] = [
    ("633_w_get_weights_by_name", 200, "not implemented there for these models, works here"),
    ("635_w_checker_checksum", 400, "no checksums of fused tensors here"),
    ("702_dist_init_group", 400, "weights come from disk here"),
    ("704_dist_update", 400, "weights come from disk here"),
    ("707_dist_destroy", 400, "weights come from disk here"),
    ("901_fatal_token_out_of_vocab", 400, "kills the recorded server"),
    ("911_fatal_token_negative", 400, "kills the recorded server"),
];

/// Error texts that cannot be equal: (exchange, what ours begins with, why).
const OTHER_TEXT: [(&str, &str, &str); 4] = [
    ("308_err_bad_regex", "Failed to compile regex grammar: ", "the text behind it is its grammar library's"),
    (
        "258_chat_bad_role",
        "1 validation error:\n  {'type': 'value_error', 'loc': ('body', 'messages', 0, ",
        "names of Python types",
    ),
    ("607_w_err_unknown_path", "Failed to get weights iterator: ", "there a model hub is asked"),
    ("261_chat_too_long", "The input (", "another tokenizer counts other tokens"),
];

/// Exchanges after which everything that runs in the background must have been answered.
const JOIN_AFTER: [&str; 14] =
    ["402_", "404_", "407_", "411_", "413_", "506_", "512_", "518_", "611_", "614_", "619_", "624_", "629_", "708_"];

/// Answers that hold no sample are compared whole.
const EXACT_PATHS: [&str; 8] = [
    "/pause_generation",
    "/continue_generation",
    "/update_weights_from_disk",
    "/update_weight_version",
    "/flush_cache",
    "/abort_request",
    "/begin_weight_update",
    "/end_weight_update",
];

/// Differences of shape that are allowed.
fn accepted(path: &str, theirs: &Value, ours: &Value) -> bool {
    let last = path.rsplit('.').next().unwrap_or_default();
    match last {
        // Depends on what the prefix cache held at that moment.
        "cached_tokens_details" => theirs.is_null() || ours.is_null(),
        // There: whether an argument was given at the start. Here: the value in force.
        "context_length" | "max_running_requests" => true,
        // A table whose keys are token texts.
        key if key.starts_with("top_logprobs[") => {
            let floats = |value: &Value| value.as_object().is_some_and(|table| table.values().all(Value::is_f64));
            floats(theirs) && floats(ours)
        }
        _ => false,
    }
}

pub fn fixtures(folder: &str) -> Vec<(String, Value)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/sglang").join(folder);
    let mut paths: Vec<PathBuf> = std::fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, expand(&serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap()))
    };
    paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "json")).map(read).collect()
}

/// Undoes the shortening of `trim.py`.
fn expand(value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(expand).collect(),
        Value::Object(fields) => {
            if let Some(pair) = fields.get("$repeat") {
                return vec![pair[0].clone(); pair[1].as_u64().unwrap() as usize].into();
            }
            if let Some(pair) = fields.get("$repeat_text") {
                return pair[0].as_str().unwrap().repeat(pair[1].as_u64().unwrap() as usize).into();
            }
            Value::Object(fields.iter().map(|(key, value)| (key.clone(), expand(value))).collect())
        }
        other => other.clone(),
    }
}

fn call(request: &Value, models: &Path) -> Call {
    let headers = request["headers"].as_object().cloned().unwrap_or_else(Map::new);
    let body = match (&request["body_raw"], &request["body"]) {
        (Value::String(raw), _) => raw.clone(),
        (_, Value::Null) => String::new(),
        // The recorded model directories stand in a folder of the test.
        (_, body) => body
            .to_string()
            .replace("\"model_path\":\"models/", &format!("\"model_path\":\"{}/models/", models.display())),
    };
    Call {
        method: request["method"].as_str().unwrap().to_owned(),
        path: request["path"].as_str().unwrap().to_owned(),
        headers: headers.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect(),
        body: body.into_bytes(),
    }
}

/// Compares one answer with the recorded one; gives the differences.
fn check(name: &str, exchange: &Value, answer: &Answer) -> Vec<String> {
    let recorded = &exchange["response"];
    if let Some((_, status, _)) = DIFFERENT.iter().find(|(different, ..)| *different == name) {
        return if answer.status == *status {
            Vec::new()
        } else {
            vec![format!("status {} instead of {status}", answer.status)]
        };
    }
    let mut wrong = Vec::new();
    if recorded["status"] != answer.status {
        wrong.push(format!("status {} there, {} here: {}", recorded["status"], answer.status, answer.text()));
        return wrong;
    }
    let header = |name: &str| {
        let pairs = recorded["headers"].as_array().unwrap().iter();
        pairs
            .filter(|pair| pair[0].as_str().unwrap().eq_ignore_ascii_case(name))
            .map(|pair| pair[1].as_str().unwrap())
            .next()
    };
    for name in ["content-type", "vary"] {
        if header(name) != answer.header(name) {
            wrong.push(format!("{name} {:?} there, {:?} here", header(name), answer.header(name)));
        }
    }
    let methods = |text: Option<&str>| {
        text.map(|text| text.split(',').map(|one| one.trim().to_owned()).collect::<std::collections::BTreeSet<_>>())
    };
    if methods(header("allow")) != methods(answer.header("allow")) {
        wrong.push(format!("allow {:?} there, {:?} here", header("allow"), answer.header("allow")));
    }
    if let Some(chunks) = recorded["chunks"].as_array() {
        wrong.extend(check_stream(chunks, answer));
    } else if let Some(text) = recorded["body_text"].as_str().filter(|_| !name.starts_with("012_")) {
        if text != answer.text() {
            wrong.push(format!("body {text:?} there, {:?} here", answer.text()));
        }
    } else if !recorded["body"].is_null() {
        wrong.extend(check_body(name, exchange, &answer.json()));
    }
    wrong
}

fn check_body(name: &str, exchange: &Value, ours: &Value) -> Vec<String> {
    let theirs = &exchange["response"]["body"];
    let mut wrong = shape::differences(theirs, ours, &accepted);
    let path = exchange["request"]["path"].as_str().unwrap();
    if exchange["response"]["status"].as_u64().unwrap() >= 400 {
        wrong.extend(check_error(name, theirs, ours));
    } else if EXACT_PATHS.contains(&path) && theirs != ours {
        wrong.push(format!("{theirs} there, {ours} here"));
    }
    wrong
}

/// Errors are equal, except for the place in Python code that validation errors end with.
fn check_error(name: &str, theirs: &Value, ours: &Value) -> Vec<String> {
    let text = |body: &Value| {
        let place = [&body["error"]["message"], &body["error"], &body["message"], &body["detail"]];
        place.into_iter().find_map(Value::as_str).unwrap_or_default().to_owned()
    };
    let without = |body: &Value| {
        let mut body = body.clone();
        body.as_object_mut().unwrap().remove("message");
        if body["error"].is_object() || body["error"].is_string() {
            body["error"] = Value::Null;
        }
        body
    };
    let mut wrong = Vec::new();
    if without(theirs) != without(ours) {
        wrong.push(format!("{theirs} there, {ours} here"));
    }
    let (theirs, ours) = (text(theirs), text(ours));
    let expected = theirs.split("\n\n  File \"").next().unwrap();
    match OTHER_TEXT.iter().find(|(other, ..)| *other == name) {
        Some((_, beginning, _)) if ours.starts_with(beginning) => {}
        None if ours == expected => {}
        _ => wrong.push(format!("text\n  {expected:?} there,\n  {ours:?} here")),
    }
    wrong
}

/// First, middle and last chunks of a stream look like the recorded ones, and it ends as they do.
fn check_stream(chunks: &[Value], answer: &Answer) -> Vec<String> {
    let payload = |chunk: &Value| chunk["data"].as_str().unwrap().strip_prefix("data: ").unwrap().trim_end().to_owned();
    let theirs: Vec<String> = chunks.iter().map(payload).collect();
    let ours = answer.events();
    let mut wrong = Vec::new();
    if ours.last().map(String::as_str) != Some("[DONE]") {
        wrong.push(format!("the stream ends with {:?}", ours.last()));
    }
    let parse = |list: &[String]| -> Vec<Value> {
        list.iter().filter(|text| *text != "[DONE]").map(|text| serde_json::from_str(text).unwrap()).collect()
    };
    let (theirs, ours) = (parse(&theirs), parse(&ours));
    if let Some(error) = theirs[0].get("error") {
        if ours.first().and_then(|event| event.get("error")) != Some(error) {
            wrong.push(format!("{error} there, {:?} here", ours.first()));
        }
        return wrong;
    }
    let pick = |list: &[Value], from_end: usize| list[list.len().saturating_sub(1 + from_end)].clone();
    // The aborts and pauses of the recording fall elsewhere in our stream, so a middle chunk stands for all middle chunks.
    let pairs = [
        (theirs[0].clone(), ours[0].clone()),
        (theirs[1].clone(), ours[1].clone()),
        (pick(&theirs, 0), pick(&ours, 0)),
    ];
    for (theirs, ours) in pairs {
        wrong.extend(shape::differences(&theirs, &ours, &accepted));
    }
    if theirs.len() > 3 && ours.len() > 3 {
        wrong.extend(shape::differences(&pick(&theirs, 1), &pick(&ours, 1), &accepted));
    }
    wrong
}

async fn queue_length(handle: &GeneratorHandle) -> (usize, u64) {
    let load = handle.loads().await.unwrap();
    (load.running + load.waiting, load.total_requests)
}

/// Waits until a request that was just sent is in the generator, with a few tokens out if it may run.
async fn settled(handle: &GeneratorHandle, requests_before: u64) {
    for _ in 0..2000 {
        let load = handle.loads().await.unwrap();
        if load.total_requests > requests_before {
            if !load.paused {
                tokio::time::sleep(Duration::from_millis(40)).await;
            }
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("a request did not reach the generator");
}

type Background = Vec<(String, Value, JoinHandle<Answer>)>;

async fn join(background: &mut Background, report: &mut BTreeMap<String, Vec<String>>) {
    for (name, exchange, task) in background.drain(..) {
        let answer = task.await.unwrap();
        report.insert(name.clone(), check(&name, &exchange, &answer));
    }
}

async fn replay(folder: &str, skip: &dyn Fn(&str) -> bool) -> usize {
    let engine = Engine::start().await;
    let mut report: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut background: Background = Vec::new();
    for (name, exchange) in fixtures(folder).into_iter().filter(|(name, _)| !skip(name)) {
        let call = call(&exchange["request"], engine.models.path());
        let address = engine.running.addr;
        let in_background = ["_target", "new_request", "duplicate_rid_first"].iter().any(|part| name.contains(part));
        if in_background {
            let (_, before) = queue_length(&engine.running.handle).await;
            #[allow(clippy::disallowed_methods)] // a test's own task
            let task = tokio::spawn(async move { call.send(address).await });
            settled(&engine.running.handle, before).await;
            background.push((name, exchange, task));
        } else {
            let answer = call.send(address).await;
            report.insert(name.clone(), check(&name, &exchange, &answer));
            if JOIN_AFTER.iter().any(|prefix| name.starts_with(prefix)) {
                join(&mut background, &mut report).await;
            }
        }
    }
    join(&mut background, &mut report).await;
    let wrong: Vec<String> = report
        .iter()
        .filter(|(_, wrong)| !wrong.is_empty())
        .map(|(name, wrong)| format!("{name}\n    {}", wrong.join("\n    ")))
        .collect();
    assert!(wrong.is_empty(), "{} of {} exchanges differ:\n{}", wrong.len(), report.len(), wrong.join("\n"));
    report.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_recorded_exchange_is_answered_as_recorded() {
    let replayed = replay("0.5.23", &|_| false).await;
    assert!(replayed > 150, "only {replayed} exchanges were found");
}

/// Where the recorded server dies or freezes, ours answers and lives. What has a recorded answer is compared with it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kills_the_recorded_server_is_refused() {
    let engine = Engine::start().await;
    let mut answered = 0;
    for (name, exchange) in fixtures("0.5.23-fatal") {
        let answer = call(&exchange["request"], engine.models.path()).send(engine.running.addr).await;
        if !exchange["response"]["status"].is_null() {
            assert_eq!(check(&name, &exchange, &answer), Vec::<String>::new(), "{name}");
        } else if exchange["request"]["path"] == "/health" {
            assert_eq!(answer.status, 200, "{name}");
        } else {
            assert_eq!(answer.status, 400, "{name}: {}", answer.text());
            assert!(answer.json().get("error").or(answer.json().get("success")).is_some(), "{name}");
        }
        answered += 1;
    }
    assert!(answered >= 10);
    let load = Call::get("/v1/loads").send(engine.running.addr).await.json();
    assert_eq!(load["loads"][0]["num_running_reqs"], json!(0));
}
