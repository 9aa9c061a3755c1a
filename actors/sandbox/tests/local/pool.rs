//! A pool over real boxes.

use std::sync::Arc;

use greenroom_core::{Address, Deadline, Faults, Seam, ask};
use greenroom_messages::sandbox::{ClaimLease, SandboxLeaseMessage, SandboxPoolMessage};
use greenroom_sandbox::{Labels, LeaseNumbers, PoolConfig, SandboxPool, SandboxPoolArguments};
use ractor::Actor;

use crate::support::*;

#[tokio::test]
async fn claims_run_commands_in_boxes_of_their_own_and_draining_leaves_nothing() {
    let site = site(config());
    let spec = site.image();
    let Site { provider, dir } = site;
    let arguments = SandboxPoolArguments {
        image: spec,
        config: PoolConfig { warm_boxes: 2, ..PoolConfig::default() },
        provider: Arc::new(provider),
        labels: Labels::new(),
        seam: Seam::system(1, Faults::none()),
        journal: None,
        lease_numbers: LeaseNumbers::starting_at(0),
    };
    let (pool, _) = Actor::spawn(None, SandboxPool, arguments).await.unwrap();
    let pool: Address<SandboxPoolMessage> = Address::adapted(&pool);
    let deadline = || Deadline::after_ms(20_000);
    let mut leases = Vec::new();
    for sample in 0..5 {
        let rollout = format!("t00000-g000-s{sample:02}-a00").parse().unwrap();
        let claim = ClaimLease { rollout, lifetime_ms: 60_000, wait_ms: 20_000 };
        let lease = ask(&pool, deadline(), |reply| SandboxPoolMessage::Claim(claim, reply)).await.unwrap().unwrap();
        let command = request("cat hello.txt; echo used > hello.txt");
        let outcome = ask(&lease.address, deadline(), |reply| SandboxLeaseMessage::Exec(command, reply)).await;
        assert_eq!(text(&outcome.unwrap().unwrap()), "hello\n", "no lease gets a used box");
        leases.push(lease);
    }
    ask(&leases[0].address, deadline(), SandboxLeaseMessage::Release).await.unwrap();
    drop(leases.pop());
    ask(&pool, deadline(), SandboxPoolMessage::Drain).await.unwrap();
    assert_eq!(std::fs::read_dir(dir.path().join("sandboxes")).unwrap().count(), 0);
}
