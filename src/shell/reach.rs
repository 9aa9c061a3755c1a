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

/// What was seen instead of a controller: what a peer said when it refused, who answered, or that nobody did; and what the
/// shell was not given.
pub(super) fn seen(way: &Way, heard: &str, members: &[Member]) -> String {
    let is_node = |member: &&Member| member.is_up() && member.plays_a_role();
    let nodes: Vec<&str> = members.iter().filter(is_node).map(|member| member.name.as_str()).collect();
    if heard.is_empty() && !nodes.is_empty() {
        return format!("{} answered, but knows no controller that is up", nodes.join(", "));
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
        for nowhere in ["no-such-host.invalid:1", "nonsense"] {
            let said = probe(&way(nowhere)).await.unwrap_err().to_string();
            assert!(said.contains(nowhere) && said.contains("not found"), "{said}");
        }
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
