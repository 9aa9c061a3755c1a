//! Texts without the secrets in them: for what is handed on to others.
//!
//! The configuration names secrets by their source and logs do not print them, so this is the second line: whatever looks
//! like a secret is taken out, and rather too much than too little. Line by line; everything else stays as it is.

/// What stands in a secret's place.
pub const REDACTED: &str = "<redacted>";

/// Parts of names whose values are secrets.
const SECRET_NAMES: [&str; 6] = ["password", "passwd", "secret", "apikey", "credential", "authorization"];
/// Ends of such names; `tokens` and `token_ids` are none.
const SECRET_ENDS: [&str; 3] = ["token", "_key", "cookie"];

/// The text without what looks like secrets.
pub fn redact(text: &str) -> String {
    let mut redacted = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
            in_key = true;
            redacted.push_str(REDACTED);
            redacted.push('\n');
        }
        if !in_key {
            redacted.push_str(&redact_line(line));
        }
        if line.contains("-----END") {
            in_key = false;
        }
    }
    redacted
}

fn redact_line(line: &str) -> String {
    let line = without_url_users(line);
    let line = without_bearers(&line);
    without_named_values(&line)
}

/// `http://user:password@host` without the user.
fn without_url_users(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        out.push_str(before);
        let ends = after.find(|character: char| "/ \"'\t\r\n,;".contains(character)).unwrap_or(after.len());
        let (authority, after) = after.split_at(ends);
        match authority.rsplit_once('@') {
            Some((_, host)) => {
                out.push_str(REDACTED);
                out.push('@');
                out.push_str(host);
            }
            None => out.push_str(authority),
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// `Bearer abc` without what follows.
fn without_bearers(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let mut out = String::with_capacity(line.len());
    let mut from = 0;
    while let Some(at) = lower[from..].find("bearer ") {
        let begins = from + at + "bearer ".len();
        let ends = lower[begins..].find(|character: char| " \"'\t\r\n,;".contains(character));
        let ends = ends.map_or(line.len(), |ends| begins + ends);
        out.push_str(&line[from..begins]);
        out.push_str(REDACTED);
        from = ends;
    }
    out.push_str(&line[from..]);
    out
}

/// `name = value`, `name: value` or `NAME=value` whose name says that the value is a secret, without the value.
fn without_named_values(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['=', ':']) {
        let (name, value) = rest.split_at(at + 1);
        out.push_str(name);
        rest = value;
        if !is_secret(name) {
            continue;
        }
        let blank = value.len() - value.trim_start_matches([' ', '\t']).len();
        let (space, value) = value.split_at(blank);
        let ends = value_ends(value);
        let (taken, after) = value.split_at(ends);
        out.push_str(space);
        out.push_str(if taken.trim_matches(['"', '\'']).is_empty() { taken } else { REDACTED });
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Where a value ends: with its quotes, its braces, or before a blank or comma.
fn value_ends(value: &str) -> usize {
    let closes = |close: char| value[1..].find(close).map_or(value.len(), |at| at + 2);
    match value.chars().next() {
        Some(quote @ ('"' | '\'')) => closes(quote),
        Some('{') => closes('}'),
        Some('[') => closes(']'),
        _ => value.find([' ', '\t', '\r', '\n', ',', ';', '}', '"']).unwrap_or(value.len()),
    }
}

/// Whether the name right before a sign of equality says that a secret follows.
fn is_secret(before: &str) -> bool {
    let before = before.trim_end_matches(['=', ':', ' ', '"', '\'']);
    let begins = before.rfind(|character: char| !character.is_ascii_alphanumeric() && !"_-".contains(character));
    let name = before[begins.map_or(0, |at| at + 1)..].to_ascii_lowercase();
    SECRET_NAMES.iter().any(|secret| name.contains(secret)) || SECRET_ENDS.iter().any(|end| name.ends_with(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_taken_out_and_nothing_else_is() {
        let cases = [
            ("api_key = \"abc123\"\n", true),
            ("  HF_TOKEN=abc123", true),
            ("\"access_token\": \"abc123\",", true),
            ("password: abc123", true),
            ("my_secret = 'abc123'", true),
            ("url = \"http://ada:abc123@host:30000/v1\"", true),
            ("sent Authorization: Bearer abc123 to it", true),
            ("12:30:01 INFO it began with token=abc123 and more", true),
            ("admin_key = { value = \"abc123\" }", true),
            ("max_new_tokens = 48\n", false),
            ("stop_token_ids = [1, 2]", false),
            ("tokenizer = \"abc123\"", false),
            ("url = \"http://host:30000/v1\"", false),
            ("[engine.client.credentials]\n", false),
            ("12:30:01 INFO a line: of a log, without=any of that", false),
            ("cookie_file = \"abc123\"", false),
            ("password =\n", false),
        ];
        for (line, is_secret) in cases {
            let redacted = redact(line);
            assert_eq!(redacted.contains(REDACTED), is_secret, "{line} became {redacted}");
            assert!(!is_secret || !redacted.contains("abc123"), "{line} became {redacted}");
            assert!(is_secret || redacted == line, "{line} became {redacted}");
        }
    }

    #[test]
    fn private_keys_are_taken_out_whole() {
        let begin = concat!("-----BEGIN PRIVATE ", "KEY-----");
        let text = format!("before\n{begin}\nabc123\n-----END PRIVATE KEY-----\nafter\n");
        assert_eq!(redact(&text), format!("before\n{REDACTED}\nafter\n"));
    }
}
