//! How long the pool and its leases wait for a provider, and how often they try again.
//!
//! A provider should keep its own deadlines; one that does not must not hold a pool's places for ever. A box that is not
//! destroyed at the first attempt usually is at the second: giving up too early leaves processes and files behind.

use std::time::Duration;

use crate::error::SandboxError;
use crate::provider::{ImageSpec, Labels, Provider, SandboxBox};

/// Waits before the attempts to destroy a box.
const DESTROY_WAITS: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(500), Duration::from_secs(2), Duration::from_secs(5)];
/// How long one attempt may take.
const DESTROY_LIMIT: Duration = Duration::from_secs(10);

/// Makes a box within `limit_ms`.
pub(crate) async fn create(
    provider: &dyn Provider,
    image: &ImageSpec,
    labels: &Labels,
    lifetime_ms: u64,
    limit_ms: u64,
) -> Result<Box<dyn SandboxBox>, SandboxError> {
    let made = provider.create(image, labels, lifetime_ms);
    let made = tokio::time::timeout(Duration::from_millis(limit_ms), made).await;
    made.unwrap_or_else(|_| {
        let (stage, detail) = ("provider".to_owned(), format!("it was not ready within {limit_ms} ms"));
        Err(SandboxError::CreateFailed { image: image.name.clone(), stage, detail, lasting: false })
    })
}

/// Destroys a box, if need be at the fourth attempt; the error is that of the last one.
pub(crate) async fn destroy(sandbox: &dyn SandboxBox) -> Result<(), SandboxError> {
    let mut result = Ok(());
    for wait in DESTROY_WAITS {
        tokio::time::sleep(wait).await;
        result = tokio::time::timeout(DESTROY_LIMIT, sandbox.destroy()).await.unwrap_or_else(|_| {
            let detail = format!("destroying it takes longer than {} s", DESTROY_LIMIT.as_secs());
            Err(SandboxError::Lost { box_id: sandbox.box_id().to_owned(), detail })
        });
        match &result {
            Ok(()) => break,
            Err(error) => tracing::warn!(box_id = sandbox.box_id(), %error, "a sandbox was not destroyed yet"),
        }
    }
    result
}
