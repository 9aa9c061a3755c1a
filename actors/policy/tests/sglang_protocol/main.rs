//! The embedded engine speaks SGLang's protocol: recorded exchanges are replayed against it, over real sockets.
//!
//! The generator behind it is scripted, so that nothing here depends on a network's numbers; one test uses a real one.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may

mod behaviour;
mod client;
mod fake;
mod real;
mod replay;
mod shape;

use std::sync::Arc;

use greenroom_policy::server::{EngineServer, RunningEngine, ServeOptions};

/// A server over the scripted generator.
struct Engine {
    running: RunningEngine,
    seen: Arc<fake::Seen>,
    /// Holds the model directories that the recorded requests name.
    models: tempfile::TempDir,
}

impl Engine {
    async fn start() -> Self {
        Self::start_with(ServeOptions::default()).await
    }

    async fn start_with(options: ServeOptions) -> Self {
        let models = tempfile::tempdir().unwrap();
        for name in ["tiny32-s0", "tiny32-s1", "tiny-qwen3-s0"] {
            let directory = models.path().join("models").join(name);
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("config.json"), "{}").unwrap();
        }
        let (generator, seen) = fake::generator("models/tiny32-s0");
        let running = EngineServer::serve(generator, Arc::new(fake::Words), options).await.unwrap();
        Self { running, seen, models }
    }
}
