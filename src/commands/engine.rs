//! `greenroom engine`: a model served by SGLang's protocol.

use std::process::ExitCode;

use crate::cli;

#[cfg(not(feature = "torch"))]
pub(super) fn run(_: cli::Engine) -> anyhow::Result<ExitCode> {
    anyhow::bail!("GR0902: serving a model needs libtorch, and this binary was built without the feature `torch`")
}

#[cfg(feature = "torch")]
pub(super) fn run(arguments: cli::Engine) -> anyhow::Result<ExitCode> {
    use greenroom::policy::server::{EngineServer, EngineServerConfig};
    use greenroom::up::{ModelUse, check_model};
    let used = ModelUse {
        setting: "--model",
        given: &arguments.model,
        needs_weights: true,
        without_weights: "a run's policy with weights is the last one in its weights/export",
    };
    check_model(&arguments.model, used)?;
    let mut config = EngineServerConfig::new(arguments.model);
    config.bind = arguments.bind;
    config.device = greenroom::up::device("--device", &arguments.device)?;
    config.batch_invariant = arguments.batch_invariant;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async move {
        let running = EngineServer::start(config).await?;
        eprintln!("serving at {}; end with Ctrl-C", running.url());
        tokio::signal::ctrl_c().await?;
        running.shutdown().await?;
        Ok(ExitCode::SUCCESS)
    })
}
