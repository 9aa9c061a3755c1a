//! The whole fleet against a real engine, when there is one: an unmodified SGLang started by this test
//! (`GREENROOM_SGLANG_PYTHON`, see `tests/real_engine/setup.sh`), or any engine that speaks its protocol
//! (`GREENROOM_ENGINE_URL` and `GREENROOM_ENGINE_WEIGHTS=dirA,dirB`, two models of one shape with a vocabulary of at least
//! 512 and a context of at least 1024 tokens). Without either, the test says so and passes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)] // a test's helpers may fail

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

mod contract;

use contract::{Subject, log, the_fleet_drives};

/// An SGLang of this test's own; its whole process group ends with it.
struct Server {
    python: PathBuf,
    directory: PathBuf,
    port: u16,
    process: Child,
}

impl Server {
    fn start(python: &Path, directory: &Path, port: u16) -> Self {
        let models = python.parent().unwrap().parent().unwrap().join("lib/python3.11/site-packages/sglang/srt/models");
        let kept = ["__init__", "registry", "utils", "qwen2", "qwen3", "llama"];
        let files = std::fs::read_dir(models).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let unused: Vec<_> = files
            .filter_map(|name| name.strip_suffix(".py").map(str::to_owned))
            .filter(|name| !kept.contains(&name.as_str()))
            .collect();
        let output = std::fs::File::create(directory.join("server.log")).unwrap();
        let process = Command::new(python)
            .args(["-m", "sglang.launch_server", "--host", "127.0.0.1", "--port", &port.to_string()])
            .args(["--device", "cpu", "--attention-backend", "torch_native", "--sampling-backend", "pytorch"])
            .args(["--disable-overlap-schedule", "--skip-server-warmup", "--sleep-on-idle"])
            .args(["--max-total-tokens", "8192", "--model-path"])
            .arg(directory.join("a"))
            .env("SGLANG_USE_CPU_ENGINE", "1")
            .env("HF_HUB_OFFLINE", "1")
            .env("OMP_NUM_THREADS", "1")
            .env("SGLANG_CPU_OMP_THREADS_BIND", "0")
            .env("SGLANG_DISABLED_MODEL_ARCHS", unused.join(","))
            .env_remove("PYTHONDONTWRITEBYTECODE")
            .env_remove("LD_LIBRARY_PATH")
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .process_group(0)
            .spawn()
            .unwrap();
        Self { python: python.to_owned(), directory: directory.to_owned(), port, process }
    }

    fn kill(&mut self) {
        let group = format!("-{}", self.process.id());
        let _ = Command::new("kill").args(["-9", "--", &group]).status();
        let _ = self.process.wait();
    }

    fn restart(&mut self) {
        self.kill();
        *self = Self::start(&self.python.clone(), &self.directory.clone(), self.port);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An engine, with what must live as long as it.
struct Started {
    url: String,
    weights: [String; 2],
    server: Option<Server>,
    _directory: Option<tempfile::TempDir>,
}

fn started() -> Option<Started> {
    if let (Ok(url), Ok(weights)) = (std::env::var("GREENROOM_ENGINE_URL"), std::env::var("GREENROOM_ENGINE_WEIGHTS")) {
        let (a, b) = weights.split_once(',').expect("GREENROOM_ENGINE_WEIGHTS is dirA,dirB");
        return Some(Started { url, weights: [a.to_owned(), b.to_owned()], server: None, _directory: None });
    }
    let python = PathBuf::from(std::env::var_os("GREENROOM_SGLANG_PYTHON")?);
    let directory = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/real_engine/tiny_model.py");
    for (name, seed) in [("a", "0"), ("b", "1")] {
        let mut make = Command::new(&python);
        make.arg(&script).arg(directory.path().join(name)).arg(seed).env_remove("LD_LIBRARY_PATH");
        assert!(make.status().unwrap().success(), "the tiny model cannot be made");
    }
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Server::start(&python, directory.path(), port);
    let weights = ["a", "b"].map(|name| directory.path().join(name).display().to_string());
    let url = format!("http://127.0.0.1:{port}");
    Some(Started { url, weights, server: Some(server), _directory: Some(directory) })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fleet_drives_a_real_engine() {
    let Some(Started { url, weights, mut server, _directory }) = started() else {
        return log("skipped: set GREENROOM_SGLANG_PYTHON or GREENROOM_ENGINE_URL and GREENROOM_ENGINE_WEIGHTS");
    };
    let some_tokens = Duration::from_millis(300);
    let mut kill_and_start = server.as_mut().map(|server| || server.restart());
    let restart = kill_and_start.as_mut().map(|restart| restart as &mut dyn FnMut());
    the_fleet_drives(Subject { url, weights, some_tokens, restart }).await;
}
