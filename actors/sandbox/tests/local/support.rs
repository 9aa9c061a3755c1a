//! What the tests of the local provider share.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use greenroom_messages::sandbox::{ExecOutcome, ExecRequest, SandboxFile, Shell};
use greenroom_sandbox::{
    BoxLimits, ImageSpec, Isolation, Labels, LocalProvider, LocalProviderConfig, Provider, SandboxBox, decode_output,
};

/// A provider over a fresh directory.
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

pub fn without_walls() -> LocalProviderConfig {
    LocalProviderConfig { isolation: Isolation::None, ..config() }
}

pub fn site(config: LocalProviderConfig) -> Site {
    let dir = tempfile::tempdir().unwrap();
    let provider = LocalProvider::new(config, dir.path().join("sandboxes")).unwrap();
    Site { provider, dir }
}

impl Site {
    /// An image whose source holds `hello.txt` and a script.
    pub fn image(&self) -> ImageSpec {
        let source = self.dir.path().join("image");
        std::fs::create_dir_all(source.join("sub")).unwrap();
        std::fs::write(source.join("hello.txt"), "hello\n").unwrap();
        ImageSpec::new("test", Some(source))
    }

    pub async fn make_box(&self) -> Box<dyn SandboxBox> {
        self.provider.create(&self.image(), &Labels::new(), 600_000).await.unwrap()
    }

    pub fn sandboxes_dir(&self) -> PathBuf {
        self.dir.path().join("sandboxes")
    }

    pub fn box_dirs(&self) -> usize {
        std::fs::read_dir(self.sandboxes_dir()).unwrap().count()
    }
}

pub fn request(command: &str) -> ExecRequest {
    ExecRequest {
        command: command.to_owned(),
        shell: Shell::Sh,
        cwd: None,
        env: BTreeMap::new(),
        timeout_ms: 20_000,
        output_limit_bytes: 1 << 20,
    }
}

pub fn within(timeout_ms: u64, command: &str) -> ExecRequest {
    ExecRequest { timeout_ms, ..request(command) }
}

pub fn text(outcome: &ExecOutcome) -> String {
    decode_output(&outcome.output)
}

/// Runs a command and gives its output and return code; an exception ends the test.
pub async fn run(sandbox: &dyn SandboxBox, command: &str) -> (String, i32) {
    let outcome = sandbox.exec(request(command)).await.unwrap();
    assert_eq!(outcome.exception, None, "{command}: {}", text(&outcome));
    (text(&outcome), outcome.returncode)
}

/// Runs a command that must end in an exception; gives its kind and text.
pub async fn exception(sandbox: &dyn SandboxBox, request: ExecRequest) -> (String, String, String) {
    let outcome = sandbox.exec(request).await.unwrap();
    assert_eq!(outcome.returncode, -1, "{}", text(&outcome));
    let output = text(&outcome);
    let exception = outcome.exception.unwrap_or_else(|| panic!("no exception, but: {output}"));
    (exception.kind, exception.text, output)
}

pub fn file(path: &str, content: &str) -> SandboxFile {
    SandboxFile { path: path.to_owned(), content: content.as_bytes().to_vec(), executable: false }
}

/// A number of seconds that no other process sleeps: finds this test's processes in the host's table.
pub fn unique_seconds(number: u32) -> String {
    format!("{}{:06}", 90_000 + number, std::process::id())
}

/// Processes of the machine whose command line holds `token`.
pub fn processes_with(token: &str) -> Vec<String> {
    let listing = std::fs::read_dir("/proc").unwrap();
    let commands = listing.filter_map(|entry| {
        let pid: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
        (pid != std::process::id() && command.contains(token)).then(|| format!("{pid}: {}", command.replace('\0', " ")))
    });
    commands.collect()
}

/// Waits until something holds, for at most five seconds.
pub async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..500 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("not within five seconds: {what}");
}
