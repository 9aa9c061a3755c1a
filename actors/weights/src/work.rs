//! What publisher and receiver share: a directory of their own, and blocking work on it that is timed and cannot take the
//! actor with it.

use std::fs;
use std::path::Path;

use greenroom_core::Seam;
use greenroom_messages::weights::WeightFailure;

use crate::WeightsError;

/// Makes an actor's own directory, if it is not there.
pub(crate) fn own_directory(dir: &Path) -> Result<(), WeightsError> {
    fs::create_dir_all(dir).map_err(|error| WeightsError::file(dir, &error))
}

/// Does blocking work off the actors' threads; gives its result and how long it took, in milliseconds. A panic in it is a
/// failure of the work called `what`.
pub(crate) async fn do_blocking<T: Send + 'static>(
    seam: &Seam,
    what: &'static str,
    work: impl FnOnce() -> Result<T, WeightsError> + Send + 'static,
) -> Result<(T, u64), WeightFailure> {
    let started_ms = seam.clock.elapsed_ms();
    let done = seam.blocking(&format!("weights-{what}"), work).await;
    let result = done.unwrap_or(Err(WeightsError::Panicked { what }))?;
    Ok((result, seam.clock.elapsed_ms() - started_ms))
}
