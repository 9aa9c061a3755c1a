//! Which connection and which line two nodes agree on; pure decisions of both sides.
//!
//! Both may dial at once, either may have lost what the other still holds, and a line that one side gave up must not go on
//! at the other. Invariant: whatever is dialled and lost in whichever order, both sides end with the same connection, and
//! with the same line or none.

use super::preamble::Begin;

/// A connection that stands, for all one side knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub connection: u64,
    /// Whether this side dialled it.
    pub is_dialled: bool,
}

/// Whether a connection dialled by the peer takes the place of the one that stands. Of two dials at once the one of the
/// lower name stays; a connection that the peer has lost is none.
pub(crate) fn takes_over(standing: Option<Standing>, me: &str, peer: &str, begin: &Begin) -> bool {
    match standing {
        Some(standing) => !(standing.is_dialled && me < peer) || begin.lost == Some(standing.connection),
        None => true,
    }
}

/// A line that the dialler holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub line: u64,
    /// Whether anything has ever arrived on it, so that the peer must have held it as well.
    pub has_received: bool,
}

/// Whether the dialler's line goes on, given what the peer holds and what it ended last.
pub(crate) fn goes_on(held: Held, theirs: Option<u64>, ended: Option<u64>) -> bool {
    match theirs {
        Some(theirs) => theirs == held.line,
        // the peer never saw the line's first connection: it may see it now
        None => !held.has_received && ended != Some(held.line),
    }
}

/// What the one who was dialled does about the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Accepted {
    /// The line it holds goes on.
    GoesOn,
    /// The line begins; one it holds has ended.
    Begins,
    /// The line was ended here meanwhile: this connection is of no use.
    Useless,
}

/// What the one who was dialled does, given the line it holds and the one it ended last.
pub(crate) fn accepted(mine: Option<u64>, ended: Option<u64>, begin: &Begin) -> Accepted {
    if mine == Some(begin.line) {
        Accepted::GoesOn
    } else if ended == Some(begin.line) || !begin.is_new {
        Accepted::Useless
    } else {
        Accepted::Begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEGIN: Begin = Begin { connection: 9, line: 1, is_new: false, lost: None };

    #[test]
    fn of_two_dials_at_once_the_lower_names_stays() {
        let standing = |is_dialled| Some(Standing { connection: 5, is_dialled });
        assert!(takes_over(None, "a", "b", &BEGIN));
        assert!(!takes_over(standing(true), "a", "b", &BEGIN), "a's own dial stays at a");
        assert!(takes_over(standing(true), "b", "a", &BEGIN), "and replaces b's at b");
        assert!(takes_over(standing(false), "a", "b", &BEGIN), "who dials again has lost what it dialled");
        assert!(takes_over(standing(true), "a", "b", &Begin { lost: Some(5), ..BEGIN }));
        assert!(!takes_over(standing(true), "a", "b", &Begin { lost: Some(4), ..BEGIN }));
    }

    #[test]
    fn a_line_goes_on_when_both_hold_it_and_never_after_one_ended_it() {
        let held = |has_received| Held { line: 1, has_received };
        for has_received in [false, true] {
            assert!(goes_on(held(has_received), Some(1), None));
            assert!(!goes_on(held(has_received), Some(2), None));
            assert!(!goes_on(held(has_received), None, Some(1)), "the peer ended it");
        }
        assert!(goes_on(held(false), None, None), "its first connection was lost before the peer saw it");
        assert!(!goes_on(held(true), None, None), "the peer was restarted or forgot");
        let new = Begin { is_new: true, ..BEGIN };
        assert_eq!(accepted(Some(1), None, &BEGIN), Accepted::GoesOn);
        assert_eq!(accepted(Some(1), None, &new), Accepted::GoesOn);
        assert_eq!(accepted(None, None, &new), Accepted::Begins);
        assert_eq!(accepted(Some(2), None, &new), Accepted::Begins);
        assert_eq!(accepted(None, Some(1), &new), Accepted::Useless);
        assert_eq!(accepted(None, None, &BEGIN), Accepted::Useless);
        assert_eq!(accepted(Some(2), None, &BEGIN), Accepted::Useless);
    }
}
