//! Reading what a server says when it refuses, whatever shape it has.
//!
//! SGLang has at least five: `{"error":{"message":…}}`, `{"error":"…"}`, `{"object":"error","message":…}`,
//! `{"success":false,"message":…}` and plain text. Reading never fails: what has no known shape is shown as it is, cut.

use std::error::Error;

use serde::Deserialize;

const MESSAGE_LIMIT_CHARS: usize = 600;

#[derive(Deserialize)]
#[serde(untagged)]
enum ErrorField {
    Object { message: String },
    Text(String),
}

#[derive(Deserialize)]
struct ErrorBody {
    #[serde(default)]
    error: Option<ErrorField>,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    detail: Option<serde_json::Value>,
}

/// The message in an error body, at most a few hundred characters.
pub(super) fn error_message(bytes: &[u8]) -> String {
    let parsed = serde_json::from_slice::<ErrorBody>(bytes).ok();
    let message = parsed.and_then(|body| match body.error {
        Some(ErrorField::Object { message } | ErrorField::Text(message)) => Some(message),
        None => body
            .message
            .or_else(|| body.detail.map(|detail| detail.as_str().map_or_else(|| detail.to_string(), str::to_owned))),
    });
    let message = message.unwrap_or_else(|| String::from_utf8_lossy(bytes).into_owned());
    let message = message.trim();
    if message.is_empty() {
        "the server gave no reason".to_owned()
    } else {
        printable(&shorten(message, MESSAGE_LIMIT_CHARS))
    }
}

/// A text of a stranger with what steers a terminal, or turns the direction of writing, escaped as Rust escapes it.
pub(super) fn printable(text: &str) -> String {
    let steers = |character: char| {
        character.is_control() || matches!(character, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if steers(character) { shown.extend(character.escape_debug()) } else { shown.push(character) }
    }
    shown
}

/// A text cut to so many characters.
pub(super) fn shorten(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// An error with its causes: the outermost text alone of an HTTP client's error says nothing.
pub(super) fn with_causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_of_error_gives_its_message() {
        let cases = [
            (r#"{"error":{"message":"too long","type":"x"}}"#, "too long"),
            (r#"{"error":"unknown field"}"#, "unknown field"),
            (r#"{"object":"error","message":"1 validation error","code":400}"#, "1 validation error"),
            (r#"{"success":false,"message":"no such path","num_paused_requests":0}"#, "no such path"),
            (r#"{"type":"error","error":{"type":"x","message":"anthropic"}}"#, "anthropic"),
            (r#"{"detail":"Not Found"}"#, "Not Found"),
            (r#"{"detail":[{"loc":1}]}"#, r#"[{"loc":1}]"#),
            ("Flush cache failed.\n", "Flush cache failed."),
            (r#"{"error":7}"#, r#"{"error":7}"#),
            ("", "the server gave no reason"),
        ];
        for (body, message) in cases {
            assert_eq!(error_message(body.as_bytes()), message, "{body}");
        }
        assert_eq!(error_message("é".repeat(2_000).as_bytes()).chars().count(), MESSAGE_LIMIT_CHARS + 1);
        assert!(!error_message(&[0xff, 0xfe]).is_empty());
        let steering = "\u{1b}[31mred\u{9b}1m \u{202e}left\u{2069}\nnext \"quoted\"";
        let shown = error_message(steering.as_bytes());
        assert_eq!(shown, r#"\u{1b}[31mred\u{9b}1m \u{202e}left\u{2069}\nnext "quoted""#);
    }
}
