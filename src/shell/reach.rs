//! What is between a shell and its run: whether anybody listens there, and what is told when no controller was found.
//!
//! A connection is tried before the cluster is joined, because a cluster dials again and again and says nothing of it: a wrong
//! address is told at once. On failure of a try that may only be slow, joining is tried all the same.

use std::io::ErrorKind;
use std::time::Duration;

use greenroom_cluster::Member;
use tokio::net::{TcpStream, lookup_host};

use super::{ShellError, Way};

/// How long a connection may take before it is left to the cluster's own tries.
const CONNECT_WAIT: Duration = Duration::from_secs(5);

/// Tries whether somebody listens at the address.
///
/// # Errors
/// [`ShellError::Unreachable`] where the name is not known, the address is none, or the connection is refused.
pub(super) async fn probe(way: &Way) -> Result<(), ShellError> {
    let unreachable = |why: String| ShellError::Unreachable { run: way.run.clone(), at: way.at.clone(), why };
    if let Some(problem) = address_problem(&way.at) {
        return Err(unreachable(problem));
    }
    let try_all = async {
        let addresses = lookup_host(&way.at).await;
        let addresses = addresses.map_err(|error| unreachable(format!("the address is not found ({error})")))?;
        let addresses: Vec<_> = addresses.collect();
        match TcpStream::connect(addresses.as_slice()).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                Err(unreachable("the connection is refused: nobody listens there".to_owned()))
            }
            Err(error) => Err(unreachable(error.to_string())),
            Ok(_) => Ok(()),
        }
    };
    tokio::time::timeout(CONNECT_WAIT, try_all).await.unwrap_or(Ok(()))
}

/// What an address lacks of `HOST:PORT`.
fn address_problem(at: &str) -> Option<String> {
    // what is in brackets is an address of version 6, and its colons are no port's
    let (host, port) = match at.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (at, None),
    };
    let is_bare_six = host.contains(':') && !host.starts_with('[');
    match port {
        _ if is_bare_six => Some("HOST:PORT is expected, with an IPv6 address as [ADDRESS]:PORT".to_owned()),
        None => Some("`:PORT` is missing, for HOST:PORT is expected".to_owned()),
        Some(_) if host.is_empty() => Some("the host is missing, for HOST:PORT is expected".to_owned()),
        Some(port) if port.parse::<u16>().unwrap_or(0) == 0 => {
            Some(format!("{port:?} is no port: HOST:PORT is expected, with a number from 1 to 65535"))
        }
        Some(_) => None,
    }
}

/// The nodes of the run that answered.
fn answered(members: &[Member]) -> Vec<&str> {
    let is_node = |member: &&Member| member.is_up() && member.plays_a_role();
    members.iter().filter(is_node).map(|member| member.name.as_str()).collect()
}

/// What is waited for while no controller is known.
pub(super) fn waiting(way: &Way, members: &[Member]) -> String {
    let nodes = answered(members);
    match nodes.is_empty() {
        true => format!("waiting for an answer at {}", way.at),
        false => format!("waiting for the controller of run {}: {} answered", way.run, nodes.join(", ")),
    }
}

/// What was seen instead of a controller: what a peer said when it refused, who answered, or that nobody did; and what the
/// shell was not given.
pub(super) fn seen(way: &Way, heard: &str, members: &[Member]) -> String {
    let nodes = answered(members);
    if heard.is_empty() && !nodes.is_empty() {
        let know = if nodes.len() == 1 { "knows" } else { "know" };
        return format!("{} answered, but {know} no controller that is up", nodes.join(", "));
    }
    let heard = if heard.is_empty() { "something listens there, and does not let the shell in" } else { heard };
    let mut missing = Vec::new();
    if way.tls.is_none() {
        missing.push("--tls-dir (or GREENROOM_TLS_DIR)");
    }
    if way.cookie_file.is_none() {
        missing.push("--cookie-file (or GREENROOM_COOKIE_FILE)");
    }
    match missing.is_empty() {
        true => heard.to_owned(),
        false => format!("{heard}; not given, though a run may need it: {}", missing.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::sample;

    fn way(at: &str) -> Way {
        Way { at: at.to_owned(), run: "mine".to_owned(), tls: None, cookie_file: None }
    }

    #[tokio::test]
    async fn a_wrong_address_is_told_at_once() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap().to_string();
        assert_eq!(probe(&way(&at)).await, Ok(()));
        drop(listener);
        let refused = probe(&way(&at)).await.unwrap_err();
        assert_eq!(refused.code(), "GR0931");
        let said = refused.to_string();
        assert!(said.contains(&at) && said.contains("nobody listens there") && said.contains("--at"), "{said}");
        let cases = [
            ("no-such-host.invalid:1", "not found"),
            ("localhost", "`:PORT` is missing"),
            ("[::1]", "`:PORT` is missing"),
            ("::1:4700", "[ADDRESS]:PORT"),
            (":4700", "the host is missing"),
            ("localhost:http", "\"http\" is no port"),
            ("localhost:0", "\"0\" is no port"),
        ];
        for (nowhere, expected) in cases {
            let said = probe(&way(nowhere)).await.unwrap_err().to_string();
            assert!(said.contains(nowhere) && said.contains(expected), "{said}");
        }
        assert_eq!(address_problem("[::1]:4700"), None);
    }

    #[test]
    fn who_answered_is_named_while_one_waits_and_in_the_end() {
        let member = |name| sample::member(name, &["engine"]);
        let shell = Member { roles: vec![greenroom_cluster::SHELL.to_owned()], ..member("ada-1") };
        let (one, two) = ([member("box-0"), shell.clone()], [member("box-0"), member("gpu-0")]);
        assert_eq!(waiting(&way("h:1"), &[shell]), "waiting for an answer at h:1");
        assert_eq!(waiting(&way("h:1"), &two), "waiting for the controller of run mine: box-0, gpu-0 answered");
        assert_eq!(seen(&way("h:1"), "", &one), "box-0 answered, but knows no controller that is up");
        assert_eq!(seen(&way("h:1"), "", &two), "box-0, gpu-0 answered, but know no controller that is up");
    }

    #[test]
    fn what_was_not_given_is_named() {
        let mut way = way("h:1");
        let said = seen(&way, "", &[]);
        assert!(said.contains("something listens there") && said.contains("--tls-dir"), "{said}");
        way.tls = Some(greenroom_cluster::IdentityFiles { ca: "a".into(), certificate: "b".into(), key: "c".into() });
        let said = seen(&way, "n says: GR1206: the peer's cookie is another one", &[]);
        assert!(said.contains("GR1206") && said.contains("--cookie-file") && !said.contains("--tls-dir"), "{said}");
        way.cookie_file = Some("d".into());
        assert_eq!(seen(&way, "n says: no", &[]), "n says: no");
    }
}
