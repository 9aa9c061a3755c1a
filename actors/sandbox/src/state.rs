//! The pool's decisions: which boxes are made, who gets them, who is refused. No tokio, no clock, no I/O.
//!
//! Invariants: a box is warm, or being checked for one claim, or leased to one lease, or being destroyed — never two of
//! these; a leased box never becomes warm again; boxes in all these states and those being made are never more than
//! `max_boxes`; a claim is answered exactly once. [`PoolState::violations`] states them, for tests and debug builds.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use greenroom_messages::LeaseId;
use greenroom_messages::sandbox::SandboxPoolStatus;

use crate::config::PoolConfig;
use crate::error::SandboxError;

/// Numbers the claims of one pool.
pub type ClaimNumber = u64;
/// Numbers the creations of one pool; a box keeps the number of the creation it came from.
pub type BoxNumber = u64;

/// Something that happened, told to the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolEvent {
    /// Someone wants a box within `wait_ms`.
    Claimed {
        /// The claim.
        claim: ClaimNumber,
        /// How long it may wait.
        wait_ms: u64,
    },
    /// The one who claimed is gone.
    ClaimAbandoned(ClaimNumber),
    /// A creation succeeded.
    Created(BoxNumber),
    /// A creation failed.
    CreateFailed(BoxNumber, SandboxError),
    /// A granted box turned out to live and is leased.
    GrantAccepted(BoxNumber),
    /// A granted box turned out to be dead; it is being destroyed and its claim waits on.
    GrantFailed(BoxNumber),
    /// A warm box ended by itself; what is left of it is being destroyed.
    WarmEnded(BoxNumber),
    /// A box is destroyed, nothing of it is left.
    Destroyed(BoxNumber),
    /// Time went on.
    Tick,
    /// Destroy everything and serve nobody any more.
    Drain,
}

/// Something the pool wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PoolEffect {
    /// Make a box.
    Create(BoxNumber),
    /// See whether the box lives, give it the claim's lifetime, and lease it.
    Grant {
        /// The box.
        number: BoxNumber,
        /// Who gets it.
        claim: ClaimNumber,
        /// The lease's identity.
        lease: LeaseId,
        /// Whether it was ready when the claim came.
        warm: bool,
        /// How long the claim waited.
        waited_ms: u64,
    },
    /// Tell a claim that there is no box for it.
    Refuse(ClaimNumber, SandboxError),
    /// Destroy a box that nobody holds.
    Destroy(BoxNumber),
    /// End the lease on a box.
    CloseLease(BoxNumber),
    /// Everything is gone: tell whoever asked to drain.
    Drained,
}

#[derive(Clone, Debug)]
struct Waiting {
    claim: ClaimNumber,
    since_ms: u64,
    until_ms: u64,
}

#[derive(Clone, Debug)]
enum BoxState {
    Creating,
    Warm {
        replace_at_ms: u64,
    },
    /// Promised to a claim, and being checked.
    Granted(Waiting),
    Leased,
    Destroying,
}

/// The state of one pool.
#[derive(Clone, Debug)]
pub struct PoolState {
    image: String,
    config: PoolConfig,
    boxes: BTreeMap<BoxNumber, BoxState>,
    waiting: VecDeque<Waiting>,
    /// The claim that this step brought: when it is granted at once, the box was warm.
    fresh_claim: Option<ClaimNumber>,
    next_box: BoxNumber,
    failures_in_a_row: u32,
    last_failure: Option<SandboxError>,
    create_not_before_ms: u64,
    draining: bool,
    created: u64,
    failed: u64,
}

impl PoolState {
    /// An empty pool; the first [`PoolEvent::Tick`] starts warming.
    pub fn new(image: impl Into<String>, config: PoolConfig) -> Self {
        Self {
            image: image.into(),
            config,
            boxes: BTreeMap::new(),
            waiting: VecDeque::new(),
            fresh_claim: None,
            next_box: 0,
            failures_in_a_row: 0,
            last_failure: None,
            create_not_before_ms: 0,
            draining: false,
            created: 0,
            failed: 0,
        }
    }

    /// Takes note of an event and says what to do. `next_lease` numbers leases over all pools of a run.
    pub fn step(&mut self, event: PoolEvent, now_ms: u64, next_lease: &mut impl FnMut() -> LeaseId) -> Vec<PoolEffect> {
        let mut effects = Vec::new();
        self.fresh_claim = match event {
            PoolEvent::Claimed { claim, .. } => Some(claim),
            _ => None,
        };
        self.note(event, now_ms, &mut effects);
        self.expire(now_ms, &mut effects);
        self.grant(now_ms, next_lease, &mut effects);
        self.replenish(now_ms, &mut effects);
        if self.draining && self.boxes.is_empty() {
            effects.push(PoolEffect::Drained);
        }
        debug_assert_eq!(self.violations(), Vec::<String>::new());
        effects
    }

    /// When a [`PoolEvent::Tick`] is due, if nothing else happens before.
    pub fn next_wake_ms(&self) -> Option<u64> {
        let deadlines = self.waiting.iter().map(|claim| claim.until_ms);
        let replacements = self.boxes.values().filter_map(|state| match state {
            BoxState::Warm { replace_at_ms } => Some(*replace_at_ms),
            _ => None,
        });
        let retry = (self.wanted() > 0).then_some(self.create_not_before_ms);
        deadlines.chain(replacements).chain(retry).min()
    }

    /// Whether it is being emptied for good.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// How the pool stands.
    pub fn status(&self) -> SandboxPoolStatus {
        let count = |wanted: fn(&BoxState) -> bool| self.boxes.values().filter(|state| wanted(state)).count() as u32;
        SandboxPoolStatus {
            image: self.image.clone(),
            warm: count(|state| matches!(state, BoxState::Warm { .. })),
            creating: count(|state| matches!(state, BoxState::Creating)),
            leased: count(|state| matches!(state, BoxState::Granted(_) | BoxState::Leased | BoxState::Destroying)),
            waiting: self.waiting.len() as u32,
            created: self.created,
            failed: self.failed,
        }
    }

    /// Whether a claim has been promised a box that is being checked.
    pub fn is_granted(&self, claim: ClaimNumber) -> bool {
        self.boxes.values().any(|state| matches!(state, BoxState::Granted(granted) if granted.claim == claim))
    }

    /// Which invariants do not hold; empty when all is well.
    pub fn violations(&self) -> Vec<String> {
        let mut found = Vec::new();
        if self.boxes.len() > self.config.max_boxes as usize {
            found.push(format!("{} boxes, but at most {} are allowed", self.boxes.len(), self.config.max_boxes));
        }
        let creating = self.status().creating;
        if creating > self.config.max_creating {
            found.push(format!("{creating} boxes are being made, at most {} may", self.config.max_creating));
        }
        let granted = self.boxes.values().filter_map(|state| match state {
            BoxState::Granted(claim) => Some(claim.claim),
            _ => None,
        });
        let mut seen = BTreeSet::new();
        for claim in granted.chain(self.waiting.iter().map(|claim| claim.claim)) {
            if !seen.insert(claim) {
                found.push(format!("claim {claim} is promised two boxes"));
            }
        }
        if self.draining && !self.waiting.is_empty() {
            found.push("a claim waits at a pool that is being drained".to_owned());
        }
        found
    }

    fn note(&mut self, event: PoolEvent, now_ms: u64, effects: &mut Vec<PoolEffect>) {
        match event {
            PoolEvent::Claimed { claim, .. } if self.draining => effects.push(PoolEffect::Refuse(claim, self.closed())),
            PoolEvent::Claimed { claim, wait_ms } => {
                let until_ms = now_ms.saturating_add(wait_ms);
                self.waiting.push_back(Waiting { claim, since_ms: now_ms, until_ms });
            }
            PoolEvent::ClaimAbandoned(claim) => self.waiting.retain(|waiting| waiting.claim != claim),
            PoolEvent::Created(number) => self.note_created(number, now_ms, effects),
            PoolEvent::CreateFailed(number, error) => self.note_failed(number, error, now_ms, effects),
            PoolEvent::GrantAccepted(number) => {
                if let Some(state @ BoxState::Granted(_)) = self.boxes.get_mut(&number) {
                    *state = BoxState::Leased;
                    if self.draining {
                        effects.push(PoolEffect::CloseLease(number));
                    }
                }
            }
            PoolEvent::GrantFailed(number) => {
                let Some(state @ BoxState::Granted(_)) = self.boxes.get_mut(&number) else { return };
                if let BoxState::Granted(claim) = std::mem::replace(state, BoxState::Destroying) {
                    match self.draining {
                        true => effects.push(PoolEffect::Refuse(claim.claim, self.closed())),
                        // It came before all who wait now.
                        false => self.waiting.push_front(claim),
                    }
                }
            }
            PoolEvent::WarmEnded(number) => {
                if let Some(state @ BoxState::Warm { .. }) = self.boxes.get_mut(&number) {
                    *state = BoxState::Destroying;
                    effects.push(PoolEffect::Destroy(number));
                }
            }
            PoolEvent::Destroyed(number) => drop(self.boxes.remove(&number)),
            PoolEvent::Tick => {}
            PoolEvent::Drain => self.note_drain(effects),
        }
    }

    fn note_created(&mut self, number: BoxNumber, now_ms: u64, effects: &mut Vec<PoolEffect>) {
        self.created += 1;
        self.failures_in_a_row = 0;
        self.last_failure = None;
        self.create_not_before_ms = now_ms;
        let Some(state) = self.boxes.get_mut(&number) else { return };
        if self.draining {
            *state = BoxState::Destroying;
            effects.push(PoolEffect::Destroy(number));
        } else {
            // A tenth before its end, so that no claim gets a box that dies on the way.
            let use_for_ms = self.config.warm_lifetime_ms - self.config.warm_lifetime_ms / 10;
            *state = BoxState::Warm { replace_at_ms: now_ms.saturating_add(use_for_ms) };
        }
    }

    fn note_failed(&mut self, number: BoxNumber, error: SandboxError, now_ms: u64, effects: &mut Vec<PoolEffect>) {
        self.boxes.remove(&number);
        self.failed += 1;
        self.failures_in_a_row = self.failures_in_a_row.saturating_add(1);
        let doublings = (self.failures_in_a_row - 1).min(30);
        let backoff_ms = self.config.backoff_first_ms.saturating_mul(1 << doublings).min(self.config.backoff_max_ms);
        self.create_not_before_ms = now_ms.saturating_add(backoff_ms);
        // A machine that forbids namespaces, or an image that cannot be read, does not change while claims wait.
        if error.is_lasting() || self.failures_in_a_row >= self.config.failures_before_claims_fail {
            effects.extend(self.waiting.drain(..).map(|claim| PoolEffect::Refuse(claim.claim, error.clone())));
        }
        self.last_failure = Some(error);
    }

    fn note_drain(&mut self, effects: &mut Vec<PoolEffect>) {
        self.draining = true;
        let closed = self.closed();
        effects.extend(self.waiting.drain(..).map(|claim| PoolEffect::Refuse(claim.claim, closed.clone())));
        for (number, state) in &mut self.boxes {
            match state {
                BoxState::Warm { .. } => {
                    *state = BoxState::Destroying;
                    effects.push(PoolEffect::Destroy(*number));
                }
                BoxState::Leased => effects.push(PoolEffect::CloseLease(*number)),
                // These come back as Created, GrantAccepted or Destroyed, and are dealt with then.
                BoxState::Creating | BoxState::Granted(_) | BoxState::Destroying => {}
            }
        }
    }

    /// Claims whose wait is over, warm boxes that grew too old.
    fn expire(&mut self, now_ms: u64, effects: &mut Vec<PoolEffect>) {
        let all = std::mem::take(&mut self.waiting).into_iter();
        let (over, waiting): (VecDeque<_>, _) = all.partition(|claim| claim.until_ms <= now_ms);
        self.waiting = waiting;
        for claim in over {
            let detail = match &self.last_failure {
                Some(error) => format!("the last creation failed: {error}"),
                None => format!("{} of at most {} boxes are in use", self.boxes.len(), self.config.max_boxes),
            };
            let waited_ms = now_ms.saturating_sub(claim.since_ms);
            let error = SandboxError::ClaimTimedOut { image: self.image.clone(), waited_ms, detail };
            effects.push(PoolEffect::Refuse(claim.claim, error));
        }
        for (number, state) in &mut self.boxes {
            if matches!(state, BoxState::Warm { replace_at_ms } if *replace_at_ms <= now_ms) {
                *state = BoxState::Destroying;
                effects.push(PoolEffect::Destroy(*number));
            }
        }
    }

    /// Warm boxes to claims, oldest to oldest.
    fn grant(&mut self, now_ms: u64, next_lease: &mut impl FnMut() -> LeaseId, effects: &mut Vec<PoolEffect>) {
        while !self.waiting.is_empty() {
            let ready = self.boxes.iter_mut().find(|(_, state)| matches!(state, BoxState::Warm { .. }));
            let Some((number, state)) = ready else { return };
            let Some(claim) = self.waiting.pop_front() else { return };
            let waited_ms = now_ms.saturating_sub(claim.since_ms);
            effects.push(PoolEffect::Grant {
                number: *number,
                claim: claim.claim,
                lease: next_lease(),
                warm: self.fresh_claim == Some(claim.claim),
                waited_ms,
            });
            *state = BoxState::Granted(claim);
        }
    }

    /// How many boxes are missing: for those who wait, and to be warm.
    fn wanted(&self) -> usize {
        if self.draining {
            return 0;
        }
        let status = self.status();
        let goal = self.waiting.len() + self.config.warm_boxes as usize;
        let missing = goal.saturating_sub((status.warm + status.creating) as usize);
        let room = (self.config.max_boxes as usize).saturating_sub(self.boxes.len());
        let hands = (self.config.max_creating - status.creating.min(self.config.max_creating)) as usize;
        missing.min(room).min(hands)
    }

    fn replenish(&mut self, now_ms: u64, effects: &mut Vec<PoolEffect>) {
        if now_ms < self.create_not_before_ms {
            return;
        }
        // After a failure one box at a time tells whether it is worth trying.
        let most = if self.failures_in_a_row > 0 { 1 } else { usize::MAX };
        for _ in 0..self.wanted().min(most) {
            let number = self.next_box;
            self.next_box += 1;
            self.boxes.insert(number, BoxState::Creating);
            effects.push(PoolEffect::Create(number));
        }
    }

    fn closed(&self) -> SandboxError {
        SandboxError::Closed { what: format!("the pool of image {}", self.image) }
    }
}
