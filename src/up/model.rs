//! Whether a directory is a model, before anything is loaded from it: what is missing is told with what to do about it.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

use crate::StartError;
use crate::config::Config;
use crate::files::{self, Limit};

/// The files that make token ids of messages.
pub(super) const TOKENIZER_FILES: &[&str] =
    &["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"];

/// The files beside weights that may be large.
const MEDIUM: &[&str] = &["tokenizer.json", "model.safetensors.index.json"];

/// What is asked of a model's directory.
#[derive(Clone, Copy, Debug)]
pub struct ModelUse<'a> {
    /// The setting or option that names the directory.
    pub setting: &'a str,
    /// The setting's text, before it was made a whole path.
    pub given: &'a Path,
    /// Whether weights must be there; else they are made.
    pub needs_weights: bool,
    /// How weights could be made instead, if they can.
    pub without_weights: &'a str,
}

/// Looks at a model's directory; gives `max_position_embeddings` of its `config.json`, where that says so.
///
/// # Errors
/// [`StartError::Model`] (GR0908) or [`StartError::File`] (GR0907).
pub fn check_model(dir: &Path, used: ModelUse<'_>) -> Result<Option<u64>, StartError> {
    let wrong = |reason: String| StartError::Model { setting: used.setting.to_owned(), path: dir.to_owned(), reason };
    if !dir.exists() {
        return Err(wrong(if is_hub_name(used.given) {
            "there is no such directory. It looks like a model's name on a hub, and nothing is fetched from hubs: fetch the \
             model yourself and give the path of its directory"
                .to_owned()
        } else {
            "there is no such directory: give the path of a Hugging Face directory".to_owned()
        }));
    }
    if !dir.is_dir() {
        return Err(wrong("it is no directory: give the path of a Hugging Face directory".to_owned()));
    }
    let config = dir.join("config.json");
    if !config.exists() {
        return Err(wrong(format!(
            "{} is missing: give a whole Hugging Face directory (config.json, tokenizer.json, chat template, *.safetensors)",
            config.display()
        )));
    }
    for name in TOKENIZER_FILES.iter().chain(MEDIUM).chain(&["config.json"]) {
        let path = dir.join(name);
        if path.exists() {
            files::check(used.setting, &path, if MEDIUM.contains(name) { Limit::MEDIUM } else { Limit::SMALL })?;
        }
    }
    if used.needs_weights {
        let weights = weight_files(dir);
        if weights.is_empty() {
            return Err(wrong(format!("it holds no weights (*.safetensors): {}{}", others(dir), used.without_weights)));
        }
        weights.iter().try_for_each(|path| files::check(used.setting, path, Limit::NONE).map(drop))?;
    }
    let text = files::read_text(used.setting, &config, Limit::SMALL)?;
    let json: Value =
        serde_json::from_str(&text).map_err(|error| wrong(format!("{} is no JSON: {error}", config.display())))?;
    Ok(json.get("max_position_embeddings").and_then(Value::as_u64))
}

/// The directory with the initial weights: the configured one (`source`), or one that is made at random from the seed, as
/// `model` below `dir`.
pub(crate) fn initial_model(config: &Config, source: PathBuf, dir: &Path) -> anyhow::Result<PathBuf> {
    if !config.model.init_weights {
        return Ok(source);
    }
    let made = dir.join("model");
    if !made.exists() {
        #[cfg(feature = "torch")]
        super::embedded::init_model(&source, &made, config.seed)?;
        #[cfg(not(feature = "torch"))]
        anyhow::bail!("GR0902: model.init_weights needs libtorch, and this binary was built without it");
    }
    Ok(made)
}

/// The weights of a directory, in order of their names.
pub(super) fn weight_files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        entries.filter(|path| path.extension().is_some_and(|extension| extension == "safetensors")).collect();
    files.sort();
    files
}

/// What weights of another form need.
fn others(dir: &Path) -> &'static str {
    let is_other = |path: PathBuf| path.extension().is_some_and(|extension| extension == "bin" || extension == "pth");
    let mut entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    if entries.any(|entry| is_other(entry.path())) {
        "convert its *.bin or *.pth to safetensors; "
    } else {
        "add them; "
    }
}

/// `owner/name`, which might also be a directory, but is none.
fn is_hub_name(given: &Path) -> bool {
    let parts: Vec<Component<'_>> = given.components().collect();
    let is_plain = |part: &Component<'_>| matches!(part, Component::Normal(_));
    parts.len() == 2 && parts.iter().all(is_plain) && !given.to_string_lossy().ends_with('/')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn used(given: &Path, needs_weights: bool) -> ModelUse<'_> {
        ModelUse { setting: "model.dir", given, needs_weights, without_weights: "set model.init_weights = true" }
    }

    #[test]
    fn what_is_wrong_with_a_directory_is_told_with_a_remedy() {
        type Make = fn(&Path);
        let cases: [(Make, &str, &str); 8] = [
            (|_| {}, "GR0908", "config.json is missing"),
            (|dir| fs::write(dir.join("config.json"), "{").unwrap(), "GR0908", "no JSON"),
            (|dir| fs::create_dir(dir.join("config.json")).unwrap(), "GR0907", "a directory"),
            (|dir| fs::create_dir(dir.join("chat_template.jinja")).unwrap(), "GR0907", "chat_template.jinja"),
            (|dir| std::os::unix::fs::symlink("/dev/zero", dir.join("tokenizer.json")).unwrap(), "GR0907", "a device"),
            (|_| {}, "GR0908", "add them; set model.init_weights = true"),
            (|dir| fs::write(dir.join("pytorch_model.bin"), "").unwrap(), "GR0908", "convert its *.bin"),
            (
                |dir| std::os::unix::fs::symlink("/dev/zero", dir.join("model.safetensors")).unwrap(),
                "GR0907",
                "model.safetensors",
            ),
        ];
        for (number, (make, code, words)) in cases.into_iter().enumerate() {
            let dir = tempfile::tempdir().unwrap();
            if number > 2 {
                fs::write(dir.path().join("config.json"), "{}").unwrap();
            }
            make(dir.path());
            let error = check_model(dir.path(), used(dir.path(), number > 4)).unwrap_err();
            assert!(error.code() == code && error.to_string().contains(words), "{number}: {error}");
        }
    }

    #[test]
    fn a_hubs_name_is_told_from_a_path() {
        for (given, is_hub) in
            [("Qwen/Qwen3-0.6B", true), ("model", false), ("/a/b", false), ("./a/b", false), ("../a", false)]
        {
            let error = check_model(&Path::new("/nowhere").join(given), used(Path::new(given), true)).unwrap_err();
            assert_eq!(error.to_string().contains("nothing is fetched from hubs"), is_hub, "{given}: {error}");
        }
    }

    #[test]
    fn a_sound_directory_tells_its_positions() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("config.json"), "{\"max_position_embeddings\": 1024}").unwrap();
        assert_eq!(check_model(dir.path(), used(dir.path(), false)), Ok(Some(1024)));
        fs::write(dir.path().join("config.json"), "{}").unwrap();
        fs::write(dir.path().join("model.safetensors"), "").unwrap();
        assert_eq!(check_model(dir.path(), used(dir.path(), true)), Ok(None));
    }
}
