//! The parts of a run that libtorch computes in this process: embedded engines, and a tiny model made from nothing.

use std::path::Path;

use anyhow::Context;
use greenroom_messages::EngineId;
use greenroom_messages::engine::EngineSpec;
use greenroom_policy::checkpoint::SaveOptions;
use greenroom_policy::server::{EngineServer, EngineServerConfig, RunningEngine};
use greenroom_policy::{Parameters, checkpoint};
use greenroom_trainer::device::DeviceChoice;
use tch::{Device, Kind};

use crate::StartError;
use crate::config::EmbeddedEngines;

/// Starts the embedded engines on free ports of the loopback interface.
pub(crate) async fn start(
    config: &EmbeddedEngines,
    model_dir: &Path,
    seed: u64,
) -> anyhow::Result<Vec<(EngineSpec, RunningEngine)>> {
    let mut engines = Vec::new();
    for number in 0..config.count {
        let mut server = EngineServerConfig::new(model_dir);
        server.max_running_requests = config.max_running_requests as usize;
        server.batch_invariant = config.batch_invariant;
        server.seed = seed;
        server.threads = config.threads as i32;
        server.device = device("engine.embedded.device", &config.device)?;
        let running = EngineServer::start(server).await.with_context(|| format!("embedded engine {number}"))?;
        let engine = EngineId::new(format!("embedded-{number}"));
        let url = format!("http://{}", running.addr);
        let max_in_flight = config.max_running_requests * 2;
        engines.push((EngineSpec { engine, url, max_in_flight }, running));
    }
    Ok(engines)
}

/// The device that a text names; libtorch's CUDA half is loaded when it may be needed. `setting` is who names it.
///
/// # Errors
/// [`StartError::Device`] (GR0911) for a text that names none; GR0711 for a device that is not there.
pub fn device(setting: &str, text: &str) -> anyhow::Result<Device> {
    if !crate::config::is_device(text) {
        return Err(StartError::Device { setting: setting.to_owned(), text: text.to_owned() }.into());
    }
    DeviceChoice::parse(text)?.resolve().with_context(|| setting.to_owned())
}

/// All memory of this machine; nothing where it cannot be told.
fn memory_bytes() -> Option<u128> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kibibytes = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?.split_whitespace().next()?;
    Some(kibibytes.parse::<u128>().ok()? << 10)
}

/// Makes a model's weights at random, in `out`, in the shape of `source`'s configuration and beside its tokenizer.
pub(crate) fn init_model(source: &Path, out: &Path, seed: u64) -> anyhow::Result<()> {
    let config = checkpoint::load_config(source)?;
    let (bytes, most) = (config.parameters() * 4, memory_bytes());
    anyhow::ensure!(
        most.is_none_or(|most| bytes <= most),
        "GR0908: model.dir: {} describes a model of {} parameters: its weights would take {bytes} bytes, and this machine has {}",
        source.join("config.json").display(),
        config.parameters(),
        most.unwrap_or_default()
    );
    let parameters = Parameters::init(&config, greenroom_core::Seed::new(seed).child("model").value())?;
    let companions_from = Some(source.to_owned());
    let options = SaveOptions { kind: Kind::Float, companions_from, ..SaveOptions::default() };
    checkpoint::save(out, &config, &parameters, &options)?;
    Ok(())
}
