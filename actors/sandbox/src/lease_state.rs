//! The life of one lease: held until released, expired, lost, closed or left alone; then over, once. No tokio, no clock.

use crate::error::SandboxError;

/// Why a lease is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseEnd {
    /// Its holder gave it back.
    Released,
    /// Its holder is gone.
    OwnerGone,
    /// Its lifetime is over.
    Expired,
    /// Its box ended by itself.
    Lost(SandboxError),
    /// Its pool is being drained.
    Closed,
}

impl LeaseEnd {
    /// As it stands in the run's history.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::OwnerGone => "owner_gone",
            Self::Expired => "expired",
            Self::Lost(SandboxError::Expired { .. }) => "expired",
            Self::Lost(_) => "lost",
            Self::Closed => "closed",
        }
    }

    /// What a holder is told that asks for something afterwards.
    pub fn error(&self, box_id: &str) -> SandboxError {
        match self {
            Self::Expired => SandboxError::Expired { box_id: box_id.to_owned() },
            Self::Lost(error) => error.clone(),
            Self::Released | Self::OwnerGone | Self::Closed => {
                SandboxError::Closed { what: format!("the lease on sandbox {box_id}") }
            }
        }
    }
}

/// The state of one lease.
#[derive(Clone, Debug)]
pub struct LeaseState {
    ends_at_ms: u64,
    end: Option<LeaseEnd>,
    destroyed: bool,
    /// Nobody will ask any more: the actor may stop once the box is destroyed.
    forgotten: bool,
}

impl LeaseState {
    /// A lease that begins now.
    pub fn new(now_ms: u64, lifetime_ms: u64) -> Self {
        Self { ends_at_ms: now_ms.saturating_add(lifetime_ms), end: None, destroyed: false, forgotten: false }
    }

    /// When the lease expires, unless it is renewed.
    pub fn ends_at_ms(&self) -> u64 {
        self.ends_at_ms
    }

    /// Lets a lease that is still held live `lifetime_ms` from now; false when it is over.
    pub fn renew(&mut self, now_ms: u64, lifetime_ms: u64) -> bool {
        if self.end.is_some() {
            return false;
        }
        self.ends_at_ms = now_ms.saturating_add(lifetime_ms);
        true
    }

    /// True once, when the lease has just expired: destroy the box.
    pub fn expires(&mut self, now_ms: u64) -> bool {
        now_ms >= self.ends_at_ms && self.finish(LeaseEnd::Expired)
    }

    /// True once, when this ends the lease: destroy the box. The first reason stays.
    pub fn finish(&mut self, end: LeaseEnd) -> bool {
        self.forgotten |= matches!(end, LeaseEnd::Released | LeaseEnd::OwnerGone | LeaseEnd::Closed);
        if self.end.is_some() {
            return false;
        }
        self.end = Some(end);
        true
    }

    /// The box is destroyed.
    pub fn destroyed(&mut self) {
        self.destroyed = true;
    }

    /// Whether the box is destroyed.
    pub fn is_destroyed(&self) -> bool {
        self.destroyed
    }

    /// Whether nothing is left to do or to answer.
    pub fn is_finished(&self) -> bool {
        self.destroyed && self.forgotten
    }

    /// Why the lease is over, if it is.
    pub fn end(&self) -> Option<&LeaseEnd> {
        self.end.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_ends_once_and_the_first_reason_stays() {
        let mut lease = LeaseState::new(100, 50);
        assert!(!lease.expires(149));
        assert!(lease.renew(140, 50));
        assert!(!lease.expires(150));
        assert!(lease.expires(190));
        assert!(!lease.expires(191) && !lease.renew(192, 50) && !lease.finish(LeaseEnd::Released));
        assert_eq!(lease.end(), Some(&LeaseEnd::Expired));
        assert!(!lease.is_finished());
        lease.destroyed();
        assert!(lease.is_finished());
    }

    #[test]
    fn an_expired_lease_answers_until_its_holder_lets_go() {
        let mut lease = LeaseState::new(0, 10);
        assert!(lease.expires(10));
        lease.destroyed();
        assert!(!lease.is_finished());
        assert!(!lease.finish(LeaseEnd::OwnerGone));
        assert!(lease.is_finished());
    }
}
