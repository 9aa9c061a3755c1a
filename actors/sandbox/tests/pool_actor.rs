//! Pools and leases as actors, over boxes that exist in memory only, in virtual time.

#![allow(clippy::unwrap_used, clippy::panic)] // a failing test panics

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use greenroom_core::{Address, AskError, Deadline, Faults, Seam, ask, spawn_named};
use greenroom_messages::RolloutId;
use greenroom_messages::run::{JournalMessage, RunEvent};
use greenroom_messages::sandbox::*;
use greenroom_sandbox::*;
use ractor::Actor;
use tokio::sync::watch;
use tokio::time::Instant;

/// Makes boxes that sleep instead of working: `sleep MS` as a command takes that long.
#[derive(Default)]
struct Memory {
    alive: Arc<Mutex<BTreeSet<String>>>,
    made: Mutex<u32>,
    fail: Mutex<u32>,
    /// So many creations hang.
    hang: Mutex<u32>,
    /// So many attempts to destroy a box fail.
    destroy_fails: Arc<Mutex<u32>>,
    kill_switch: Mutex<Vec<watch::Sender<Option<SandboxError>>>>,
}

struct MemoryBox {
    box_id: String,
    alive: Arc<Mutex<BTreeSet<String>>>,
    until: Mutex<Instant>,
    end: watch::Sender<Option<SandboxError>>,
    destroy_fails: Arc<Mutex<u32>>,
}

impl Drop for MemoryBox {
    fn drop(&mut self) {
        self.alive.lock().unwrap().remove(&self.box_id);
    }
}

#[async_trait]
impl Provider for Memory {
    async fn create(
        &self,
        image: &ImageSpec,
        _: &Labels,
        lifetime_ms: u64,
    ) -> Result<Box<dyn SandboxBox>, SandboxError> {
        let hangs = {
            let mut hang = self.hang.lock().unwrap();
            let hangs = *hang > 0;
            *hang -= u32::from(hangs);
            hangs
        };
        if hangs {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut fail = self.fail.lock().unwrap();
        if *fail > 0 {
            *fail -= 1;
            let (stage, detail) = ("memory".into(), "told to".into());
            return Err(SandboxError::CreateFailed { image: image.name.clone(), stage, detail, lasting: false });
        }
        let mut made = self.made.lock().unwrap();
        *made += 1;
        let box_id = format!("box-{made}");
        self.alive.lock().unwrap().insert(box_id.clone());
        let end = watch::channel(None).0;
        self.kill_switch.lock().unwrap().push(end.clone());
        let until = Mutex::new(Instant::now() + Duration::from_millis(lifetime_ms));
        let destroy_fails = self.destroy_fails.clone();
        Ok(Box::new(MemoryBox { box_id, alive: self.alive.clone(), until, end, destroy_fails }))
    }

    async fn list(&self, _: &Labels) -> Result<Vec<BoxSummary>, SandboxError> {
        Ok(Vec::new())
    }

    async fn sweep(&self) -> Result<SweepReport, SandboxError> {
        Ok(SweepReport::default())
    }
}

#[async_trait]
impl SandboxBox for MemoryBox {
    fn box_id(&self) -> &str {
        &self.box_id
    }

    async fn exec(&self, request: ExecRequest) -> Result<ExecOutcome, SandboxError> {
        let wait_ms = request.command.strip_prefix("sleep ").and_then(|text| text.parse().ok()).unwrap_or(0);
        tokio::select! {
            () = tokio::time::sleep(Duration::from_millis(wait_ms)) => {}
            error = self.ended() => return Err(error),
        }
        Ok(ExecOutcome {
            output: request.command.into_bytes(),
            dropped_bytes: 0,
            returncode: 0,
            exception: None,
            elapsed_ms: wait_ms,
        })
    }

    async fn put_files(&self, _: Vec<SandboxFile>) -> Result<(), SandboxError> {
        Ok(())
    }

    async fn read_file(&self, path: &str, _: u64) -> Result<Vec<u8>, SandboxError> {
        let detail = "no such file".to_owned();
        Err(SandboxError::Refused { box_id: self.box_id.clone(), action: "read", path: path.to_owned(), detail })
    }

    async fn renew(&self, lifetime_ms: u64) -> Result<(), SandboxError> {
        if let Some(error) = self.end.borrow().clone() {
            return Err(error);
        }
        *self.until.lock().unwrap() = Instant::now() + Duration::from_millis(lifetime_ms);
        Ok(())
    }

    async fn ended(&self) -> SandboxError {
        let mut end = self.end.subscribe();
        loop {
            let until = *self.until.lock().unwrap();
            tokio::select! {
                error = end.wait_for(Option::is_some) => return error.unwrap().clone().unwrap(),
                () = tokio::time::sleep_until(until) => {
                    if *self.until.lock().unwrap() <= Instant::now() {
                        return SandboxError::Expired { box_id: self.box_id.clone() };
                    }
                }
            }
        }
    }

    async fn destroy(&self) -> Result<(), SandboxError> {
        let mut fails = self.destroy_fails.lock().unwrap();
        if *fails > 0 {
            *fails -= 1;
            return Err(SandboxError::Lost { box_id: self.box_id.clone(), detail: "a process did not die".into() });
        }
        self.alive.lock().unwrap().remove(&self.box_id);
        self.end.send_if_modified(|end| {
            let first = end.is_none();
            end.get_or_insert(SandboxError::Closed { what: self.box_id.clone() });
            first
        });
        Ok(())
    }
}

struct Hall {
    pool: Address<SandboxPoolMessage>,
    provider: Arc<Memory>,
    journal: Arc<Mutex<Vec<RunEvent>>>,
    actor: ractor::ActorRef<PoolMessage>,
}

async fn open(config: PoolConfig) -> Hall {
    let provider = Arc::new(Memory::default());
    let journal = Arc::new(Mutex::new(Vec::new()));
    let recorded = journal.clone();
    let arguments = SandboxPoolArguments {
        image: ImageSpec::new("image", None),
        config,
        provider: provider.clone(),
        labels: Labels::new(),
        seam: Seam::simulated(1, 0, Faults::none()),
        journal: Some(Address::of_function("journal", move |message| {
            if let JournalMessage::Record(event) = message {
                recorded.lock().unwrap().push(event);
            }
            Ok(())
        })),
        lease_numbers: LeaseNumbers::starting_at(7),
    };
    let (actor, _) = Actor::spawn(None, SandboxPool, arguments).await.unwrap();
    Hall { pool: Address::adapted(&actor), provider, journal, actor }
}

fn small() -> PoolConfig {
    PoolConfig { warm_boxes: 1, max_boxes: 3, ..PoolConfig::default() }
}

fn rollout() -> RolloutId {
    "t00012-g003-s05-a00".parse().unwrap()
}

impl Hall {
    async fn claim(&self, lifetime_ms: u64, wait_ms: u64) -> Result<ClaimedLease, SandboxFailure> {
        let claim = ClaimLease { rollout: rollout(), lifetime_ms, wait_ms };
        ask(&self.pool, Deadline::after_ms(1_000_000), |reply| SandboxPoolMessage::Claim(claim, reply)).await.unwrap()
    }

    async fn status(&self) -> SandboxPoolStatus {
        ask(&self.pool, Deadline::after_ms(1000), SandboxPoolMessage::Status).await.unwrap()
    }

    fn alive(&self) -> usize {
        self.provider.alive.lock().unwrap().len()
    }

    fn ends(&self) -> Vec<String> {
        let journal = self.journal.lock().unwrap();
        let ends = journal.iter().filter_map(|event| match event {
            RunEvent::LeaseEnded { reason, .. } => Some(reason.clone()),
            _ => None,
        });
        ends.collect()
    }
}

async fn sleep_ms(wait_ms: u64) {
    tokio::time::sleep(Duration::from_millis(wait_ms)).await;
}

async fn exec(lease: &ClaimedLease, command: &str) -> Result<Result<ExecOutcome, SandboxFailure>, AskError> {
    let request = ExecRequest {
        command: command.into(),
        shell: Shell::Sh,
        cwd: None,
        env: Default::default(),
        timeout_ms: 100_000,
        output_limit_bytes: 1000,
    };
    ask(&lease.address, Deadline::after_ms(200_000), |reply| SandboxLeaseMessage::Exec(request, reply)).await
}

async fn release(lease: &ClaimedLease) {
    ask(&lease.address, Deadline::after_ms(1000), SandboxLeaseMessage::Release).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_warm_box_is_there_at_once_and_others_are_made_on_demand() {
    let hall = open(small()).await;
    sleep_ms(500).await;
    assert_eq!(hall.status().await.warm, 1);
    let first = hall.claim(60_000, 5000).await.unwrap();
    assert!(first.warm && first.waited_ms == 0);
    assert_eq!((first.image.as_str(), first.workdir.as_str(), first.lease.0), ("image", "/testbed", 7));
    let second = hall.claim(60_000, 5000).await.unwrap();
    assert!(!second.warm && second.waited_ms >= 99, "{second:?}");
    assert_eq!(exec(&first, "sleep 30").await.unwrap().unwrap().output, b"sleep 30");
    sleep_ms(500).await;
    assert_eq!((hall.status().await.leased, hall.alive()), (2, 3));
    release(&first).await;
    release(&second).await;
    sleep_ms(500).await;
    let status = hall.status().await;
    assert_eq!((status.leased, status.warm, status.created, hall.alive()), (0, 1, 3, 1), "used boxes do not come back");
    assert!(matches!(exec(&first, "true").await, Err(AskError::Gone { .. })));
    assert_eq!(hall.ends(), ["released", "released"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_expires_as_a_typed_failure_unless_renewed() {
    let hall = open(small()).await;
    let lease = hall.claim(1000, 5000).await.unwrap();
    sleep_ms(800).await;
    ask(&lease.address, Deadline::after_ms(100), |reply| SandboxLeaseMessage::Renew(2000, reply))
        .await
        .unwrap()
        .unwrap();
    sleep_ms(1500).await;
    assert!(exec(&lease, "true").await.unwrap().is_ok());
    let cut_short = exec(&lease, "sleep 50000").await.unwrap().unwrap_err();
    assert_eq!(cut_short.kind, SandboxFailureKind::Expired, "{cut_short}");
    assert_eq!(exec(&lease, "true").await.unwrap().unwrap_err().kind, SandboxFailureKind::Expired);
    release(&lease).await;
    sleep_ms(500).await;
    assert_eq!((hall.ends(), hall.status().await.leased), (vec!["expired".to_owned()], 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_whose_holder_is_gone_is_given_back_also_in_the_middle_of_a_command() {
    let hall = open(small()).await;
    let lease = hall.claim(600_000, 5000).await.unwrap();
    let holder = spawn_named("holder", async move { drop(exec(&lease, "sleep 90000").await) });
    sleep_ms(1000).await;
    assert_eq!(hall.status().await.leased, 1);
    holder.abort();
    sleep_ms(1000).await;
    assert_eq!((hall.status().await.leased, hall.ends()), (0, vec!["owner_gone".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_claim_leaves_no_lease() {
    let hall = open(PoolConfig { warm_boxes: 0, ..small() }).await;
    let claim = ClaimLease { rollout: rollout(), lifetime_ms: 60_000, wait_ms: 60_000 };
    let asked = ask(&hall.pool, Deadline::after_ms(20), |reply| SandboxPoolMessage::Claim(claim, reply)).await;
    assert!(matches!(asked, Err(AskError::TimedOut { .. })));
    sleep_ms(5000).await;
    let status = hall.status().await;
    assert_eq!((status.leased, status.waiting), (0, 0), "{status:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_pool_and_a_failing_provider_are_typed_failures() {
    let hall = open(PoolConfig { max_boxes: 1, failures_before_claims_fail: 2, ..small() }).await;
    let held = hall.claim(600_000, 5000).await.unwrap();
    let refused = hall.claim(600_000, 700).await.unwrap_err();
    assert_eq!(refused.kind, SandboxFailureKind::ClaimTimedOut, "{refused}");
    *hall.provider.fail.lock().unwrap() = 2;
    release(&held).await;
    let refused = hall.claim(600_000, 60_000).await.unwrap_err();
    assert_eq!(refused.kind, SandboxFailureKind::CreateFailed, "{refused}");
    assert!(hall.claim(600_000, 60_000).await.is_ok(), "it recovers");
}

#[tokio::test(start_paused = true)]
async fn a_warm_box_that_died_is_replaced_and_a_leased_one_is_lost() {
    let hall = open(small()).await;
    sleep_ms(500).await;
    let lost = SandboxError::Lost { box_id: "box-1".into(), detail: "test".into() };
    hall.provider.kill_switch.lock().unwrap()[0].send_replace(Some(lost.clone()));
    let lease = hall.claim(60_000, 5000).await.unwrap();
    assert!(!hall.provider.alive.lock().unwrap().contains("box-1"));
    hall.provider.kill_switch.lock().unwrap()[1].send_replace(Some(lost));
    sleep_ms(10).await;
    assert_eq!(exec(&lease, "true").await.unwrap().unwrap_err().kind, SandboxFailureKind::Lost);
    sleep_ms(1000).await;
    assert_eq!((hall.status().await.leased, hall.ends()), (0, vec!["lost".to_owned()]));
}

#[tokio::test(start_paused = true)]
async fn draining_ends_everything() {
    let hall = open(small()).await;
    let lease = hall.claim(600_000, 5000).await.unwrap();
    ask(&hall.pool, Deadline::after_ms(60_000), SandboxPoolMessage::Drain).await.unwrap();
    assert_eq!(hall.alive(), 0);
    assert!(matches!(exec(&lease, "true").await, Err(AskError::Gone { .. }) | Ok(Err(_))));
    assert_eq!(hall.claim(1000, 1000).await.unwrap_err().kind, SandboxFailureKind::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_pool_that_stops_takes_its_boxes_along() {
    let hall = open(small()).await;
    let lease = hall.claim(600_000, 5000).await.unwrap();
    sleep_ms(500).await;
    hall.actor.stop_and_wait(None, None).await.unwrap();
    sleep_ms(500).await;
    assert!(matches!(exec(&lease, "true").await, Err(AskError::Gone { .. } | AskError::Dropped { .. })));
}

#[tokio::test(start_paused = true)]
async fn a_creation_that_hangs_does_not_hold_its_place_for_ever() {
    let config = PoolConfig { warm_boxes: 0, max_boxes: 1, ..PoolConfig::default() };
    let limit_ms = config.create_timeout_ms;
    let hall = open(config).await;
    *hall.provider.hang.lock().unwrap() = 1;
    let refused = hall.claim(600_000, limit_ms - 1_000).await.unwrap_err();
    assert_eq!(refused.kind, SandboxFailureKind::ClaimTimedOut, "{refused}");
    assert!(hall.claim(600_000, 60_000).await.is_ok(), "its place is free after the limit");
}

#[tokio::test(start_paused = true)]
async fn a_box_that_is_not_destroyed_at_first_is_destroyed_at_last() {
    let hall = open(PoolConfig { warm_boxes: 1, max_boxes: 2, ..PoolConfig::default() }).await;
    let held = hall.claim(600_000, 5_000).await.unwrap();
    sleep_ms(500).await;
    *hall.provider.destroy_fails.lock().unwrap() = 1;
    release(&held).await;
    assert!(!hall.provider.alive.lock().unwrap().contains("box-1"), "a leased box");
    *hall.provider.destroy_fails.lock().unwrap() = 2;
    ask(&hall.pool, Deadline::after_ms(60_000), SandboxPoolMessage::Drain).await.unwrap();
    assert_eq!(hall.alive(), 0, "a warm box");
}

#[tokio::test(start_paused = true)]
async fn draining_does_not_wait_for_a_creation_that_hangs() {
    let hall = open(small()).await;
    *hall.provider.hang.lock().unwrap() = 1;
    sleep_ms(50).await;
    assert_eq!(hall.status().await.creating, 1);
    ask(&hall.pool, Deadline::after_ms(1_000), SandboxPoolMessage::Drain).await.unwrap();
    assert_eq!(hall.alive(), 0);
}
