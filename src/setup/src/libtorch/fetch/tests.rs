//! Downloads from a small server on the loopback that breaks off, ignores ranges, or sends something else.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use super::*;

/// How the server treats a request.
#[derive(Clone, Copy)]
enum Manner {
    /// Sends what was asked for.
    Whole,
    /// Ends the connection after this many bytes.
    BreaksOff(usize),
    /// Sends everything from the start, whatever the range.
    IgnoresRanges,
    /// Answers with this status.
    Refuses(u16),
}

/// Serves `content`, one manner a request, and notes where each request began.
fn serve(content: Vec<u8>, manners: Vec<Manner>) -> (String, Arc<Mutex<Vec<usize>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}/folder/file.whl", listener.local_addr().unwrap());
    let begins = Arc::new(Mutex::new(Vec::new()));
    let seen = begins.clone();
    std::thread::spawn(move || {
        for manner in manners {
            let (mut stream, _) = listener.accept().unwrap();
            let mut begin = 0;
            for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
                if let Some(range) = line.to_lowercase().strip_prefix("range: bytes=") {
                    begin = range.trim_end_matches('-').parse().unwrap();
                }
                if line.is_empty() {
                    break;
                }
            }
            seen.lock().unwrap().push(begin);
            let total = content.len();
            let (head, body) = match manner {
                Manner::Refuses(status) => (format!("{status} No\r\nContent-Length: 0"), &content[..0]),
                Manner::IgnoresRanges => (format!("200 OK\r\nContent-Length: {total}"), &content[..]),
                _ if begin == 0 => (format!("200 OK\r\nContent-Length: {total}"), &content[..]),
                _ if begin >= total => {
                    (format!("416 No\r\nContent-Range: bytes */{total}\r\nContent-Length: 0"), &content[..0])
                }
                _ => {
                    let range = format!("206 Partial\r\nContent-Range: bytes {begin}-{}/{total}", total - 1);
                    (format!("{range}\r\nContent-Length: {}", total - begin), &content[begin..])
                }
            };
            let body = if let Manner::BreaksOff(count) = manner { &body[..count.min(body.len())] } else { body };
            write!(stream, "HTTP/1.1 {head}\r\nConnection: close\r\n\r\n").unwrap();
            stream.write_all(body).unwrap();
        }
    });
    (address, begins)
}

fn content() -> Vec<u8> {
    (0..3_000_000_u32).flat_map(|number| [(number % 251) as u8]).collect()
}

/// Downloads by the manners, from a part of `have` bytes; the requests' beginnings and whether the file came whole.
fn fetch(have: usize, manners: &[Manner]) -> (Vec<usize>, Result<bool, String>) {
    let folder = tempfile::tempdir().unwrap();
    let part = folder.path().join("file.whl.part");
    if have > 0 {
        std::fs::write(&part, &content()[..have]).unwrap();
    }
    let (address, begins) = serve(content(), manners.to_vec());
    let done = download(&Python::find().unwrap(), &address, &part, "file.whl");
    let done = done.map(|()| std::fs::read(&part).unwrap() == content()).map_err(|error| error.to_string());
    let begins = begins.lock().unwrap().clone();
    (begins, done)
}

#[test]
fn a_download_goes_on_in_the_middle_of_a_file() {
    assert_eq!(fetch(0, &[Manner::Whole]), (vec![0], Ok(true)));
    assert_eq!(fetch(1_234_567, &[Manner::Whole]), (vec![1_234_567], Ok(true)));
    let (begins, done) = fetch(0, &[Manner::BreaksOff(1_100_000), Manner::BreaksOff(900_000), Manner::Whole]);
    assert_eq!(done, Ok(true));
    assert!(begins[0] == 0 && begins[1] > 0 && begins[2] > begins[1], "{begins:?}");
    assert_eq!(fetch(3_000_000, &[Manner::Whole]), (vec![3_000_000], Ok(true)));
    assert_eq!(fetch(1_000_000, &[Manner::IgnoresRanges]), (vec![1_000_000], Ok(true)));
}

#[test]
fn trouble_that_may_pass_is_tried_again_and_other_trouble_is_not() {
    assert_eq!(fetch(0, &[Manner::Refuses(503), Manner::Whole]), (vec![0, 0], Ok(true)));
    let (begins, done) = fetch(0, &[Manner::Refuses(404), Manner::Whole]);
    assert_eq!(begins, [0]);
    assert!(done.unwrap_err().contains("404"));
}

#[test]
fn a_file_with_another_checksum_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file.whl");
    let wheel = |sha256| Wheel { requirement: "file", file: "file.whl", sha256 };
    std::fs::write(&path, "abc").unwrap();
    assert!(verified(&wheel("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"), &path));
    assert!(!verified(&wheel("0000000000000000000000000000000000000000000000000000000000000000"), &path));
    assert!(!path.exists());
}

#[test]
fn a_part_that_is_damaged_is_fetched_anew() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file.whl.part"), "something else").unwrap();
    let (address, begins) = serve(b"something that came whole".to_vec(), vec![Manner::Whole, Manner::Whole]);
    let sum = format!("{:x}", Sha256::digest(b"something that came whole"));
    let wheel = Wheel { requirement: "no-such-requirement", file: "file.whl", sha256: Box::leak(sum.into_boxed_str()) };
    provide(&Python::find().unwrap(), &wheel, Some(&address), folder.path()).unwrap();
    assert_eq!(std::fs::read(folder.path().join("file.whl")).unwrap(), b"something that came whole");
    assert_eq!(*begins.lock().unwrap(), [14, 0]);
}

#[test]
fn pips_report_gives_the_addresses() {
    let report = serde_json::json!({ "install": [
        { "download_info": { "url": "https://index.test/a/torch-1.whl#sha256=00" } },
        { "download_info": { "dir_info": {} } },
    ]});
    let expected = [("torch-1.whl".to_owned(), "https://index.test/a/torch-1.whl#sha256=00".to_owned())];
    assert_eq!(addresses_in(&report), expected);
    assert!(addresses_in(&serde_json::Value::Null).is_empty());
}
