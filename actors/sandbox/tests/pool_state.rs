//! The pool's decisions, alone: whatever happens in whatever order, no box is given twice, every claim is answered once,
//! and a drained pool leaves nothing.

#![allow(clippy::unwrap_used, clippy::panic)] // a failing test panics

use std::collections::{BTreeMap, BTreeSet};

use greenroom_messages::LeaseId;
use greenroom_sandbox::{PoolConfig, PoolEffect, PoolEvent, PoolState, SandboxError};
use proptest::prelude::*;

fn config() -> PoolConfig {
    PoolConfig {
        warm_boxes: 2,
        max_boxes: 6,
        max_creating: 3,
        warm_lifetime_ms: 1000,
        create_timeout_ms: 1000,
        backoff_first_ms: 50,
        backoff_max_ms: 200,
        failures_before_claims_fail: 3,
    }
}

fn failure() -> SandboxError {
    SandboxError::CreateFailed { image: "i".into(), stage: "s".into(), detail: "d".into(), lasting: false }
}

/// A world around the pool: what it asked for and has not been told about yet, and who holds what.
struct World {
    pool: PoolState,
    now_ms: u64,
    next_lease: u64,
    next_claim: u64,
    creating: BTreeSet<u64>,
    idle: BTreeSet<u64>,
    granted: BTreeMap<u64, u64>,
    leased: BTreeSet<u64>,
    destroying: BTreeSet<u64>,
    open_claims: BTreeSet<u64>,
    ever_leased: BTreeSet<u64>,
    leases: BTreeSet<LeaseId>,
    drained: bool,
}

impl World {
    fn new(config: PoolConfig) -> Self {
        Self {
            pool: PoolState::new("i", config),
            now_ms: 0,
            next_lease: 0,
            next_claim: 0,
            creating: BTreeSet::new(),
            idle: BTreeSet::new(),
            granted: BTreeMap::new(),
            leased: BTreeSet::new(),
            destroying: BTreeSet::new(),
            open_claims: BTreeSet::new(),
            ever_leased: BTreeSet::new(),
            leases: BTreeSet::new(),
            drained: false,
        }
    }

    fn tell(&mut self, event: PoolEvent) -> Vec<PoolEffect> {
        let next_lease = &mut self.next_lease;
        let effects = self.pool.step(event, self.now_ms, &mut || {
            *next_lease += 1;
            LeaseId(*next_lease)
        });
        assert_eq!(self.pool.violations(), Vec::<String>::new());
        for effect in &effects {
            match effect {
                PoolEffect::Create(number) => assert!(self.creating.insert(*number)),
                PoolEffect::Grant { number, claim, lease, .. } => {
                    assert!(self.idle.remove(number), "box {number} was not idle");
                    assert!(self.ever_leased.insert(*number), "box {number} was used before");
                    assert!(self.open_claims.contains(claim), "claim {claim} was answered before");
                    assert!(self.leases.insert(*lease), "{lease} was given before");
                    self.granted.insert(*number, *claim);
                }
                PoolEffect::Refuse(claim, _) => assert!(self.open_claims.remove(claim), "claim {claim} answered twice"),
                PoolEffect::Destroy(number) => {
                    assert!(self.idle.remove(number) || self.ever_leased.contains(number));
                    assert!(self.destroying.insert(*number));
                }
                PoolEffect::CloseLease(number) => {
                    if self.leased.remove(number) {
                        self.destroying.insert(*number);
                    }
                }
                PoolEffect::Drained => self.drained = true,
            }
        }
        effects
    }

    fn claim(&mut self, wait_ms: u64) -> u64 {
        let claim = self.next_claim;
        self.next_claim += 1;
        self.open_claims.insert(claim);
        self.tell(PoolEvent::Claimed { claim, wait_ms });
        claim
    }

    /// One of many things that can happen; `pick` chooses among those it can happen to.
    fn happen(&mut self, what: u8, pick: usize) {
        fn nth(set: &BTreeSet<u64>, pick: usize) -> Option<u64> {
            (!set.is_empty()).then(|| set.iter().nth(pick % set.len()).copied()).flatten()
        }
        match what {
            0 | 1 => drop(self.claim(20 * (pick as u64 % 20))),
            2 | 3 => {
                if let Some(number) = nth(&self.creating, pick) {
                    self.creating.remove(&number);
                    self.idle.insert(number);
                    self.tell(PoolEvent::Created(number));
                }
            }
            4 => {
                if let Some(number) = nth(&self.creating, pick) {
                    self.creating.remove(&number);
                    self.tell(PoolEvent::CreateFailed(number, failure()));
                }
            }
            5 | 6 => {
                if let Some((number, claim)) = self.granted.pop_first() {
                    if pick.is_multiple_of(4) {
                        self.destroying.insert(number);
                        self.tell(PoolEvent::GrantFailed(number));
                    } else {
                        assert!(self.open_claims.remove(&claim));
                        self.leased.insert(number);
                        self.tell(PoolEvent::GrantAccepted(number));
                    }
                }
            }
            7 => {
                if let Some(number) = nth(&self.leased, pick) {
                    self.leased.remove(&number);
                    self.destroying.insert(number);
                }
            }
            8 => {
                if let Some(number) = nth(&self.destroying, pick) {
                    self.destroying.remove(&number);
                    self.tell(PoolEvent::Destroyed(number));
                }
            }
            9 => {
                if let Some(number) = nth(&self.idle, pick) {
                    self.tell(PoolEvent::WarmEnded(number));
                }
            }
            10 => {
                let waiting = nth(&self.open_claims, pick).filter(|claim| !self.pool.is_granted(*claim));
                if let Some(claim) = waiting {
                    self.open_claims.remove(&claim);
                    self.tell(PoolEvent::ClaimAbandoned(claim));
                }
            }
            _ => {
                self.now_ms += pick as u64 % 120;
                self.tell(PoolEvent::Tick);
            }
        }
    }

    /// Lets everything that is under way come to its end.
    fn settle(&mut self) {
        for _ in 0..1000 {
            for what in [2, 5, 8] {
                self.happen(what, 1);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn no_box_is_given_twice_no_claim_is_lost_and_draining_leaves_nothing(
        story in prop::collection::vec((0u8..13, 0usize..1000), 0..200)
    ) {
        let mut world = World::new(config());
        world.tell(PoolEvent::Tick);
        for (what, pick) in story {
            world.happen(what, pick);
        }
        // Time passes every deadline: all who wait are answered, unless their box is just being checked.
        world.now_ms += 1_000_000;
        world.tell(PoolEvent::Tick);
        prop_assert_eq!(world.pool.status().waiting, 0);
        world.tell(PoolEvent::Drain);
        let late = world.claim(1000);
        prop_assert!(!world.open_claims.contains(&late), "a claim is accepted while draining");
        let leased: Vec<u64> = world.leased.iter().copied().collect();
        prop_assert!(leased.is_empty(), "a lease was not told to close");
        world.settle();
        prop_assert!(world.drained && world.open_claims.is_empty());
        prop_assert!(world.creating.is_empty() && world.idle.is_empty() && world.destroying.is_empty());
        prop_assert_eq!(world.pool.status().leased + world.pool.status().warm + world.pool.status().creating, 0);
    }
}

#[test]
fn it_warms_ahead_replenishes_and_keeps_to_its_limits() {
    let mut world = World::new(config());
    world.tell(PoolEvent::Tick);
    assert_eq!(world.creating.len(), 2, "the warm boxes");
    world.happen(2, 0);
    world.happen(2, 0);
    assert_eq!(world.pool.status().warm, 2);
    let first = world.claim(1000);
    assert_eq!(world.granted.values().copied().collect::<Vec<_>>(), [first], "a warm box is granted at once");
    assert_eq!(world.creating.len(), 1, "and replaced");
    for _ in 0..9 {
        world.claim(1000);
    }
    assert_eq!(world.creating.len(), 3, "at most max_creating");
    for _ in 0..20 {
        world.happen(2, 0);
    }
    let status = world.pool.status();
    assert_eq!((status.leased, status.waiting, status.creating), (6, 4, 0), "at most max_boxes");
    world.now_ms = 1000;
    world.tell(PoolEvent::Tick);
    assert_eq!(world.pool.status().waiting, 0, "deadlines are kept");
}

#[test]
fn failures_back_off_and_tell_those_who_wait() {
    let mut world = World::new(config());
    let claim = world.claim(10_000);
    let mut attempts_at = Vec::new();
    for now_ms in 0..1000 {
        world.now_ms = now_ms;
        world.tell(PoolEvent::Tick);
        while let Some(number) = world.creating.pop_first() {
            attempts_at.push(now_ms);
            world.tell(PoolEvent::CreateFailed(number, failure()));
        }
    }
    assert!(!world.open_claims.contains(&claim), "after three failures the claim is told");
    assert!(attempts_at.len() < 12, "attempts at {attempts_at:?}");
    assert!(attempts_at.windows(2).skip(6).all(|pair| pair[1] - pair[0] == 200), "attempts at {attempts_at:?}");
}

#[test]
fn a_failure_that_will_come_again_is_told_at_once() {
    let mut world = World::new(config());
    let claim = world.claim(10_000);
    let number = world.creating.pop_first().unwrap();
    let (image, stage, detail) = ("i".to_owned(), "work tree".to_owned(), "a: Permission denied".to_owned());
    world.tell(PoolEvent::CreateFailed(number, SandboxError::CreateFailed { image, stage, detail, lasting: true }));
    assert!(!world.open_claims.contains(&claim), "nobody waits for what cannot be");
}

#[test]
fn an_old_warm_box_is_replaced_before_it_ends() {
    let mut world = World::new(config());
    world.tell(PoolEvent::Tick);
    world.happen(2, 0);
    world.happen(2, 0);
    assert_eq!(world.pool.next_wake_ms(), Some(900));
    world.now_ms = 900;
    let effects = world.tell(PoolEvent::Tick);
    assert_eq!(effects, [PoolEffect::Destroy(0), PoolEffect::Destroy(1), PoolEffect::Create(2), PoolEffect::Create(3)]);
}
