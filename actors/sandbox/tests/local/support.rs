//! What the tests of the local provider share.

use std::collections::BTreeMap;
use std::path::PathBuf;

use greenroom_messages::sandbox::{ExecOutcome, ExecRequest, Shell};
use greenroom_sandbox::{BoxLimits, ImageSpec, Labels, LocalProvider, LocalProviderConfig, Provider, SandboxBox};

pub struct Site {
    pub provider: LocalProvider,
    pub dir: tempfile::TempDir,
}

pub fn config() -> LocalProviderConfig {
    LocalProviderConfig {
        helper_argv: vec![env!("CARGO_BIN_EXE_greenroom-box").to_owned()],
        limits: BoxLimits {
            memory_bytes: 200 << 20,
            processes: 64,
            disk_bytes: 20 << 20,
            tmp_bytes: 20 << 20,
            file_size_bytes: 64 << 20,
            output_bytes: 1 << 20,
            ..BoxLimits::default()
        },
        ..LocalProviderConfig::default()
    }
}

/// A provider over a fresh directory.
pub fn site(config: LocalProviderConfig) -> Site {
    let dir = tempfile::tempdir().unwrap();
    let provider = LocalProvider::new(config, dir.path().join("sandboxes")).unwrap();
    Site { provider, dir }
}

impl Site {
    /// An image whose source holds the given files.
    pub fn image(&self, files: &[(&str, &str)]) -> ImageSpec {
        let source = self.dir.path().join("image");
        std::fs::create_dir_all(&source).unwrap();
        for (name, content) in files {
            std::fs::write(source.join(name), content).unwrap();
        }
        ImageSpec::new("test", Some(source))
    }

    pub async fn make_box(&self) -> Box<dyn SandboxBox> {
        self.provider.create(&self.image(&[("hello.txt", "hello\n")]), &Labels::new(), 600_000).await.unwrap()
    }

    pub fn sandboxes_dir(&self) -> PathBuf {
        self.dir.path().join("sandboxes")
    }
}

pub fn request(command: &str) -> ExecRequest {
    ExecRequest {
        command: command.to_owned(),
        shell: Shell::Sh,
        cwd: None,
        env: BTreeMap::new(),
        timeout_ms: 10_000,
        output_limit_bytes: 1 << 20,
    }
}

pub fn text(outcome: &ExecOutcome) -> String {
    greenroom_sandbox::decode_output(&outcome.output)
}

/// Runs a command and gives its output and return code; exceptions end the test.
pub async fn run(sandbox: &dyn SandboxBox, command: &str) -> (String, i32) {
    let outcome = sandbox.exec(request(command)).await.unwrap();
    assert_eq!(outcome.exception, None, "{command}: {}", text(&outcome));
    (text(&outcome), outcome.returncode)
}
