//! A small HTTP/1.1 client over a plain socket: it shows every byte and can leave in the middle.

use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest any exchange of a test may take.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A request.
#[derive(Debug, Clone)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

/// A response.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl Call {
    pub fn get(path: &str) -> Self {
        Self { method: "GET".into(), path: path.into(), headers: Vec::new(), body: Vec::new() }
    }

    pub fn post(path: &str, body: &Value) -> Self {
        let headers = vec![("Content-Type".to_owned(), "application/json".to_owned())];
        Self { method: "POST".into(), path: path.into(), headers, body: body.to_string().into_bytes() }
    }

    pub fn with_header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sends the request and leaves the connection open.
    pub async fn begin(&self, address: SocketAddr) -> TcpStream {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let mut head = format!("{} {} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n", self.method, self.path);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("Content-Length: {}\r\n\r\n", self.body.len()));
        // A server that refuses early may close before it has read everything.
        let _ = socket.write_all(&[head.as_bytes(), &self.body].concat()).await;
        socket
    }

    pub async fn send(&self, address: SocketAddr) -> Answer {
        let mut socket = self.begin(address).await;
        let mut bytes = Vec::new();
        let read = tokio::time::timeout(PATIENCE, socket.read_to_end(&mut bytes)).await;
        let read = read.unwrap_or_else(|_| panic!("{} {} was not answered in time", self.method, self.path));
        assert!(read.is_ok() || !bytes.is_empty(), "{} {}: {read:?}", self.method, self.path);
        Answer::parse(&bytes)
    }
}

impl Answer {
    fn parse(bytes: &[u8]) -> Self {
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n").expect("a head");
        let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let split =
            |line: &str| line.split_once(':').map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()));
        let headers: Vec<(String, String)> = lines.filter_map(split).collect();
        let chunked = headers.iter().any(|(name, value)| name == "transfer-encoding" && value == "chunked");
        let body = if chunked { unchunk(&bytes[end + 4..]) } else { bytes[end + 4..].to_vec() };
        Self { status, headers, body }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.text()))
    }

    /// The payloads of server-sent events.
    pub fn events(&self) -> Vec<String> {
        let text = self.text();
        assert!(text.ends_with("\n\n"), "a stream ends with a whole event: {text:?}");
        text.trim_end()
            .split("\n\n")
            .map(|frame| frame.strip_prefix("data: ").expect("a data frame").to_owned())
            .collect()
    }
}

fn unchunk(mut bytes: &[u8]) -> Vec<u8> {
    let mut whole = Vec::new();
    while let Some(line) = bytes.windows(2).position(|window| window == b"\r\n") {
        let size = usize::from_str_radix(std::str::from_utf8(&bytes[..line]).unwrap(), 16).unwrap();
        if size == 0 {
            break;
        }
        whole.extend_from_slice(&bytes[line + 2..line + 2 + size]);
        bytes = &bytes[line + 4 + size..];
    }
    whole
}
