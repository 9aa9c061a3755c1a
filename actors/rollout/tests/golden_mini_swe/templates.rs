//! The templates an episode was recorded with: read from an installed mini-swe-agent, never from this repository.
//!
//! `GREENROOM_MINI_SWE_CONFIG` names the package's `config` folder (or a file in it); without it `python3` is asked where
//! the package is. A package whose files have other hashes than the recordings' is treated like none at all.

use std::path::{Path, PathBuf};
use std::process::Command;

use greenroom_rollout::agent::AgentFile;

use crate::{compare::sha256, fixtures, read_json};

/// An agent file, and whether it is the one the recordings were made with.
pub struct Templates {
    pub file: AgentFile,
    pub known: bool,
}

/// The agent file called `name`, or our own default where the recorded one cannot be had.
pub fn load(name: &str) -> Templates {
    match recorded(name) {
        Ok(file) => Templates { file, known: true },
        Err(why) => {
            println!("NOTE: prompts of mini-swe-agent are not compared ({why}); everything else is.");
            let default = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config/agent/default.yaml");
            let text = std::fs::read_to_string(&default).unwrap();
            Templates { file: AgentFile::from_yaml(&text, "config/agent/default.yaml").unwrap(), known: false }
        }
    }
}

fn recorded(name: &str) -> Result<AgentFile, String> {
    let path = config_folder()?.join(name);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    if read_json(&fixtures().join("templates.json"))[name] != sha256(&text) {
        return Err(format!("{} is not the version the recordings were made with", path.display()));
    }
    // A file that is the recorded one must be readable: anything else is a failure, not a reason to skip.
    Ok(AgentFile::from_yaml(&text, name).unwrap())
}

/// The package's folder of agent files.
pub fn config_folder() -> Result<PathBuf, String> {
    if let Some(given) = std::env::var_os("GREENROOM_MINI_SWE_CONFIG") {
        let given = PathBuf::from(given);
        return Ok(if given.is_file() { given.parent().unwrap().to_owned() } else { given });
    }
    let find = "import importlib.util as u, os; print(os.path.dirname(u.find_spec('minisweagent').origin))";
    let output = Command::new("python3").args(["-c", find]).output().map_err(|error| format!("python3: {error}"))?;
    if !output.status.success() {
        return Err("the package is not installed for python3".to_owned());
    }
    Ok(Path::new(String::from_utf8_lossy(&output.stdout).trim()).join("config"))
}
