//! A server that nobody calls uses no processor. In a process of its own, so that no other test is measured with it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test may

use std::sync::Arc;
use std::time::Duration;

use greenroom_policy::GenerationError;
use greenroom_policy::generation::{Command, GeneratorHandle, ModelInfo};
use greenroom_policy::server::{ChatPrompt, EngineServer, ServeOptions, TextCodec};

struct NoText;

impl TextCodec for NoText {
    fn encode(&self, _: &str, _: bool) -> Result<Vec<u32>, String> {
        Err("no text".to_owned())
    }

    fn decode(&self, _: &[u32], _: bool) -> Result<String, String> {
        Ok(String::new())
    }

    fn render_chat(&self, _: &ChatPrompt<'_>) -> Result<String, String> {
        Err("no text".to_owned())
    }
}

/// Processor time of this process in clock ticks (usually 10 ms).
fn ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_server_uses_no_processor() {
    let (generator, commands) = GeneratorHandle::channel();
    std::thread::spawn(move || {
        for command in commands {
            match command {
                Command::ModelInfo(reply) => {
                    let info = ModelInfo {
                        model_path: "nowhere".into(),
                        model_type: "qwen3".into(),
                        architecture: "Qwen3ForCausalLM".into(),
                        vocabulary_size: 1,
                        context_length: 1,
                        eos_token_ids: Vec::new(),
                        weight_version: "default".into(),
                        parameters: 1,
                        batch_invariant: false,
                    };
                    let _ = reply.send(Ok(info));
                }
                Command::Shutdown(reply) => {
                    let _ = reply.send(Err(GenerationError::GeneratorStopped));
                }
                _ => {}
            }
        }
    });
    let engine = EngineServer::serve(generator, Arc::new(NoText), ServeOptions::default()).await.unwrap();
    let idle_connection = tokio::net::TcpStream::connect(engine.addr).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = ticks();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let used = ticks() - before;
    assert!(used <= 2, "{used} ticks of processor time in two idle seconds");
    drop(idle_connection);
    engine.shutdown().await.unwrap();
}
