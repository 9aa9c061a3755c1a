//! A server that answers with exchanges recorded from a real SGLang, or with anything else that a test wants to see
//! survived: silence, half an answer, a closed connection.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// One recorded exchange.
#[derive(Clone, Debug)]
pub struct Exchange {
    pub request: Value,
    pub answer: Answer,
    pub path: String,
}

/// How the server answers.
#[derive(Clone, Debug)]
pub enum Answer {
    /// With a status and a body.
    Whole(u16, String),
    /// With a status, a length, and fewer bytes than that before it hangs up.
    Half(u16, String),
    /// It hangs up.
    HangUp,
    /// It stays silent.
    Silence,
}

/// The recorded exchange of this version whose file name begins with `number`.
pub fn recorded(version: &str, number: &str) -> Exchange {
    let directory = format!("{}/../../tests/fixtures/sglang/{version}", env!("CARGO_MANIFEST_DIR"));
    let mut files = std::fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().path());
    let begins = |path: &std::path::PathBuf| path.file_name().unwrap().to_string_lossy().starts_with(number);
    let path = files.find(begins).unwrap_or_else(|| panic!("no exchange {number} in {directory}"));
    let exchange: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (request, response) = (exchange["request"].clone(), &exchange["response"]);
    let answer = match response["status"].as_u64() {
        None => Answer::HangUp,
        Some(status) => {
            let body = match &response["body"] {
                Value::Null => response["body_text"].as_str().unwrap_or_default().to_owned(),
                body => body.to_string(),
            };
            Answer::Whole(status as u16, body)
        }
    };
    let path = request["path"].as_str().unwrap().to_owned();
    Exchange { request, answer, path }
}

/// A request as the server received it.
#[derive(Clone, Debug)]
pub struct Received {
    pub line: String,
    pub headers: BTreeMap<String, String>,
    pub body: Value,
}

#[derive(Debug, Default)]
struct Shared {
    answers: BTreeMap<String, VecDeque<Answer>>,
    received: Vec<Received>,
    hung_up: usize,
}

/// A running server.
pub struct Replay {
    pub url: String,
    shared: Arc<Mutex<Shared>>,
    accepting: tokio::task::JoinHandle<Option<()>>,
}

impl Replay {
    /// Serves answers by path; the last answer of a path is repeated, an unknown path is 404.
    pub async fn start(answers: impl IntoIterator<Item = (String, Answer)>) -> Self {
        let shared = Arc::new(Mutex::new(Shared::default()));
        for (path, answer) in answers {
            shared.lock().unwrap().answers.entry(path).or_default().push_back(answer);
        }
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let serving = shared.clone();
        let accepting = greenroom_core::spawn_named("replay", async move {
            while let Ok((stream, _)) = listener.accept().await {
                greenroom_core::spawn_named("replay-connection", serve(stream, serving.clone()));
            }
        });
        Self { url, shared, accepting }
    }

    pub async fn of(exchanges: impl IntoIterator<Item = Exchange>) -> Self {
        Self::start(exchanges.into_iter().map(|exchange| (exchange.path, exchange.answer))).await
    }

    pub fn received(&self) -> Vec<Received> {
        self.shared.lock().unwrap().received.clone()
    }

    /// How often a client hung up while it was kept waiting.
    pub fn hung_up(&self) -> usize {
        self.shared.lock().unwrap().hung_up
    }
}

impl Drop for Replay {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn read_request(stream: &mut TcpStream) -> Option<Received> {
    let mut bytes = Vec::new();
    let head_end = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    };
    let head = String::from_utf8(bytes[..head_end].to_vec()).unwrap();
    let mut lines = head.split("\r\n");
    let line = lines.next().unwrap().to_owned();
    let pairs = lines.map(|line| line.split_once(':').unwrap());
    let headers: BTreeMap<_, _> = pairs.map(|(name, value)| (name.to_lowercase(), value.trim().to_owned())).collect();
    let length: usize = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    while bytes.len() < head_end + 4 + length {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
    }
    let body = serde_json::from_slice(&bytes[head_end + 4..]).unwrap_or(Value::Null);
    Some(Received { line, headers, body })
}

async fn serve(mut stream: TcpStream, shared: Arc<Mutex<Shared>>) {
    while let Some(request) = read_request(&mut stream).await {
        let path = request.line.split(' ').nth(1).unwrap().to_owned();
        let answer = {
            let mut shared = shared.lock().unwrap();
            shared.received.push(request);
            match shared.answers.get_mut(&path) {
                None => Answer::Whole(404, r#"{"detail":"Not Found"}"#.into()),
                Some(answers) if answers.len() > 1 => answers.pop_front().unwrap(),
                Some(answers) => answers[0].clone(),
            }
        };
        let head = |status: u16, length: usize| {
            format!("HTTP/1.1 {status} X\r\ncontent-length: {length}\r\ncontent-type: application/json\r\n\r\n")
        };
        let half = matches!(answer, Answer::Half(..));
        let bytes = match answer {
            Answer::Whole(status, body) => head(status, body.len()) + &body,
            Answer::Half(status, body) => head(status, body.len() + 10) + &body,
            Answer::HangUp => return,
            Answer::Silence => {
                // Reading ends when the client hangs up.
                if stream.read_u8().await.is_err() {
                    shared.lock().unwrap().hung_up += 1;
                }
                return;
            }
        };
        stream.write_all(bytes.as_bytes()).await.unwrap();
        if half {
            return;
        }
    }
}
