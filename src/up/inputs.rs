//! What a run was begun with, by content: it goes on only with the same.
//!
//! A batch is a position in a file of tasks, and a checkpoint is the child of a model. With other tasks or images, another
//! agent, model or tokenizer the history would go on as if nothing had happened, and mean nothing. Files may be moved: what counts
//! is what is in them. `inputs.json` in the run's directory holds paths and fingerprints; a run that has none (begun by an
//! older program) gets it when it is resumed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use greenroom_sandbox::ImageSpec;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{data, model};
use crate::StartError;
use crate::config::Config;
use crate::files::{self, Limit};

/// The file's name in the run's directory.
pub(crate) const FILE: &str = "inputs.json";

/// Weights are compared by their headers and by so many samples of each file: they may be larger than can be read at a start.
const SAMPLES: u64 = 64;
const SAMPLE_BYTES: u64 = 64 << 10;
/// Of an image every name, size and mode counts, and so many bytes of content, in order of names: some are as large as a
/// machine.
const IMAGE_BYTES: u64 = 64 << 20;
/// How images are named.
const IMAGE: &str = "image ";
/// The kinds of inputs that are kept: a run that was begun before there were the later ones is not asked for them.
const KINDS: u32 = 2;

/// One input: where it was, and what was in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Input {
    path: PathBuf,
    fingerprint: String,
}

/// What a run is begun with; see the module's page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Inputs {
    seed: u64,
    #[serde(default)]
    kinds: u32,
    inputs: BTreeMap<String, Input>,
}

impl Inputs {
    /// Those that a configuration names, with the images that its tasks need.
    ///
    /// # Errors
    /// [`StartError::File`] when one cannot be read.
    pub(crate) fn of(config: &Config, images: &[ImageSpec]) -> Result<Self, StartError> {
        let mut all = Self::of_every_node(config)?;
        let mut put = |key: &str, path: PathBuf, fingerprint: String| {
            all.inputs.insert(key.to_owned(), Input { path, fingerprint });
        };
        if let Some(demonstrations) = &config.data.demonstrations {
            let demonstrations = config.path(demonstrations);
            let fingerprint = data_fingerprint("data.demonstrations", &demonstrations)?;
            put("data.demonstrations", demonstrations, fingerprint);
        }
        if let Some(agent) = &config.agent.file {
            let agent = config.path(agent);
            let fingerprint = data_fingerprint("agent.file", &agent)?;
            put("agent.file", agent, fingerprint);
        }
        for image in images {
            let Some(dir) = &image.source_dir else { continue };
            let key = format!("{IMAGE}{}", image.name);
            let print = image_fingerprint(dir).map_err(|error| StartError::file(&key, dir, error.to_string()))?;
            put(&key, dir.clone(), print);
        }
        Ok(all)
    }

    /// The same, with the images where they are: a controller of several nodes need not have them.
    ///
    /// # Errors
    /// [`StartError::File`] when one cannot be read, or what is wrong with the tasks.
    pub(crate) fn of_run(config: &Config) -> anyhow::Result<Self> {
        let images = data::images(config, &data::datasets(config)?).unwrap_or_default();
        Ok(Self::of(config, &images)?)
    }

    /// What every node of a run must have: tasks and model.
    ///
    /// # Errors
    /// [`StartError::File`] when one cannot be read.
    pub(crate) fn of_every_node(config: &Config) -> Result<Self, StartError> {
        let mut inputs = BTreeMap::new();
        let mut put = |key: &str, path: PathBuf, fingerprint: String| {
            inputs.insert(key.to_owned(), Input { path, fingerprint });
        };
        let train = config.path(&config.data.train);
        let fingerprint = data_fingerprint("data.train", &train)?;
        put("data.train", train, fingerprint);
        if let Some(held_out) = &config.data.held_out {
            let held_out = config.path(held_out);
            let fingerprint = data_fingerprint("data.held_out", &held_out)?;
            put("data.held_out", held_out, fingerprint);
        }
        let dir = config.path(&config.model.dir);
        put("model.dir", dir.clone(), model_fingerprint(&dir, config.model.init_weights)?);
        put("model.dir (tokenizer)", dir.clone(), files_fingerprint(&dir, model::TOKENIZER_FILES)?);
        Ok(Self { seed: config.seed, kinds: KINDS, inputs })
    }

    /// Whether the run in this directory was begun with these. False where only the seed is another one, which the run's
    /// database refuses in its own words.
    ///
    /// # Errors
    /// [`StartError::OtherInputs`] (GR0910), naming each with the saved and the given one.
    pub(crate) fn check(&self, directory: &Path) -> Result<bool, StartError> {
        let path = directory.join(FILE);
        if !path.exists() {
            return Ok(true);
        }
        let text = files::read_text("the run's", &path, Limit::SMALL)?;
        let saved: Self = serde_json::from_str(&text)
            .map_err(|error| StartError::file("the run's", &path, format!("it is damaged: {error}")))?;
        let keys: std::collections::BTreeSet<&String> = saved.inputs.keys().chain(self.inputs.keys()).collect();
        let has_images = saved.inputs.keys().any(|key| key.starts_with(IMAGE));
        let is_known = |key: &&String| match key.starts_with(IMAGE) {
            true => has_images,
            false => saved.kinds >= KINDS || saved.inputs.contains_key(*key) || is_of_first_kind(key),
        };
        let keys = keys.into_iter().filter(is_known);
        let pairs = keys.map(|key| (key, saved.inputs.get(key), self.inputs.get(key)));
        let differences: Vec<String> = pairs.filter_map(|(key, saved, given)| difference(key, saved, given)).collect();
        if differences.is_empty() { Ok(saved.seed == self.seed) } else { Err(StartError::OtherInputs { differences }) }
    }

    /// The content of the file.
    pub(crate) fn to_text(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

/// Whether inputs of this name were kept from the beginning.
fn is_of_first_kind(key: &str) -> bool {
    key.starts_with("model.dir") || ["data.train", "data.held_out"].contains(&key)
}

fn difference(key: &str, saved: Option<&Input>, given: Option<&Input>) -> Option<String> {
    let short = |input: &Input| input.fingerprint.chars().take(12).collect::<String>();
    let named = |input: Option<&Input>| {
        input.map_or_else(|| "none".to_owned(), |input| format!("{} ({})", input.path.display(), short(input)))
    };
    match (saved, given) {
        (Some(saved), Some(given)) if saved.fingerprint == given.fingerprint => None,
        (Some(saved), Some(given)) if saved.path == given.path => Some(format!(
            "{key}: {} has changed since the run was begun ({} then, {} now)",
            saved.path.display(),
            short(saved),
            short(given)
        )),
        _ => Some(format!("{key}: saved is {}, given is {}", named(saved), named(given))),
    }
}

fn hex(hash: Sha256) -> String {
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn data_fingerprint(setting: &str, path: &Path) -> Result<String, StartError> {
    files::check(setting, path, Limit::LARGE)?;
    let mut hash = Sha256::new();
    whole(path, &mut hash).map_err(|error| StartError::file(setting, path, error.to_string()))?;
    Ok(hex(hash))
}

/// Files of a directory by name and content; those that are not there count as such.
fn files_fingerprint(dir: &Path, names: &[&str]) -> Result<String, StartError> {
    let mut hash = Sha256::new();
    for name in names {
        let path = dir.join(name);
        hash.update(name.as_bytes());
        hash.update([u8::from(path.exists())]);
        if path.exists() {
            whole(&path, &mut hash).map_err(|error| StartError::file("model.dir", &path, error.to_string()))?;
        }
    }
    Ok(hex(hash))
}

/// What an image's directory holds; what cannot be read of it is found out when a sandbox is made of it.
fn image_fingerprint(dir: &Path) -> std::io::Result<String> {
    let (mut hash, mut left) = (Sha256::new(), IMAGE_BYTES);
    add_tree(dir, Path::new(""), &mut hash, &mut left)?;
    Ok(hex(hash))
}

fn add_tree(dir: &Path, below: &Path, hash: &mut Sha256, left: &mut u64) -> std::io::Result<()> {
    let mut names: Vec<_> =
        std::fs::read_dir(dir)?.map(|entry| entry.map(|entry| entry.file_name())).collect::<Result<_, _>>()?;
    names.sort();
    for name in names {
        let (path, below) = (dir.join(&name), below.join(&name));
        let about = std::fs::symlink_metadata(&path)?;
        hash.update(below.as_os_str().as_encoded_bytes());
        hash.update([0]);
        hash.update((about.permissions().mode() & 0o100).to_le_bytes());
        if about.is_symlink() {
            hash.update(std::fs::read_link(&path)?.as_os_str().as_encoded_bytes());
        } else if about.is_dir() {
            // one that may not be read is told of by whoever makes a sandbox of it
            let _ = add_tree(&path, &below, hash, left);
        } else if about.is_file() {
            hash.update(about.len().to_le_bytes());
            if let Ok(file) = File::open(&path) {
                *left -= std::io::copy(&mut file.take(*left), hash)?;
            }
        }
    }
    Ok(())
}

/// The model's shape and, unless they are made anew, its weights.
fn model_fingerprint(dir: &Path, makes_weights: bool) -> Result<String, StartError> {
    let mut hash = Sha256::new();
    hash.update(files_fingerprint(dir, &["config.json"])?);
    hash.update([u8::from(makes_weights)]);
    for path in if makes_weights { Vec::new() } else { model::weight_files(dir) } {
        hash.update(path.file_name().unwrap_or_default().as_encoded_bytes());
        sampled(&path, &mut hash).map_err(|error| StartError::file("model.dir", &path, error.to_string()))?;
    }
    Ok(hex(hash))
}

fn whole(path: &Path, hash: &mut Sha256) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    hash.update(file.metadata()?.len().to_le_bytes());
    std::io::copy(&mut file, hash).map(drop)
}

/// The length, the beginning (where the header is), the end, and what lies evenly between.
fn sampled(path: &Path, hash: &mut Sha256) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    if length <= SAMPLES * SAMPLE_BYTES {
        return whole(path, hash);
    }
    hash.update(length.to_le_bytes());
    let last = length - SAMPLE_BYTES;
    for sample in 0..SAMPLES {
        let place = u128::from(last) * u128::from(sample) / u128::from(SAMPLES - 1);
        file.seek(SeekFrom::Start(place as u64))?;
        std::io::copy(&mut (&mut file).take(SAMPLE_BYTES), hash)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn world() -> (tempfile::TempDir, Config) {
        let dir = tempfile::tempdir().unwrap();
        let model = dir.path().join("model");
        fs::create_dir(&model).unwrap();
        for (name, content) in [("config.json", "{}"), ("tokenizer.json", "{}"), ("model.safetensors", "weights")] {
            fs::write(model.join(name), content).unwrap();
        }
        fs::write(dir.path().join("tasks.jsonl"), "tasks").unwrap();
        fs::write(dir.path().join("more.jsonl"), "tasks").unwrap();
        for name in ["toss.jsonl", "agent.yaml"] {
            fs::write(dir.path().join(name), name).unwrap();
        }
        fs::create_dir_all(dir.path().join("image/deep")).unwrap();
        fs::write(dir.path().join("image/deep/file"), "content").unwrap();
        let mut config = Config::default();
        config.data.root = Some(dir.path().to_owned());
        (config.data.demonstrations, config.agent.file) = (Some("toss.jsonl".into()), Some("agent.yaml".into()));
        (config.data.train, config.model.dir) = ("tasks.jsonl".into(), "model".into());
        (dir, config)
    }

    fn images(config: &Config) -> [ImageSpec; 1] {
        [ImageSpec::new("calc", Some(config.path(Path::new("image"))))]
    }

    #[test]
    fn a_run_of_an_older_program_is_not_asked_for_what_it_did_not_keep() {
        let (dir, config) = world();
        let mut saved = Inputs::of(&config, &[]).unwrap();
        saved.kinds = 0;
        saved.inputs.retain(|key, _| is_of_first_kind(key));
        fs::write(dir.path().join(FILE), saved.to_text()).unwrap();
        assert!(Inputs::of(&config, &images(&config)).unwrap().check(dir.path()).unwrap());
    }

    #[test]
    fn the_same_content_is_the_same_input_and_every_other_is_named() {
        let change =
            |name: &'static str| move |root: &Path, _: &mut Config| fs::write(root.join(name), "other").unwrap();
        type Change = Box<dyn Fn(&Path, &mut Config)>;
        let cases: [(Change, &str); 12] = [
            (Box::new(|_, _| {}), ""),
            (Box::new(|_, config| config.data.train = "more.jsonl".into()), ""),
            (Box::new(change("tasks.jsonl")), "data.train: "),
            (
                Box::new(|_, config| config.data.held_out = Some("more.jsonl".into())),
                "data.held_out: saved is none, given is ",
            ),
            (Box::new(change("toss.jsonl")), "data.demonstrations: "),
            (Box::new(change("agent.yaml")), "agent.file: "),
            (Box::new(|_, config| config.agent.file = None), "agent.file: saved is "),
            (Box::new(change("image/deep/file")), "image calc: "),
            (Box::new(change("model/model.safetensors")), "model.dir: "),
            (Box::new(change("model/config.json")), "model.dir: "),
            (Box::new(change("model/tokenizer.json")), "model.dir (tokenizer): "),
            (Box::new(change("model/chat_template.jinja")), "model.dir (tokenizer): "),
        ];
        for (number, (change, words)) in cases.iter().enumerate() {
            let (dir, mut config) = world();
            fs::write(dir.path().join(FILE), Inputs::of(&config, &images(&config)).unwrap().to_text()).unwrap();
            change(dir.path(), &mut config);
            match Inputs::of(&config, &images(&config)).unwrap().check(dir.path()) {
                Ok(same_seed) => assert!(same_seed && words.is_empty(), "case {number} is not refused"),
                Err(StartError::OtherInputs { differences }) => {
                    assert!(differences.len() == 1 && differences[0].starts_with(words), "{number}: {differences:?}");
                }
                Err(other) => panic!("{number}: {other}"),
            }
        }
    }

    #[test]
    fn another_seed_is_seen_and_weights_that_are_made_anew_do_not_count() {
        let (dir, mut config) = world();
        config.model.init_weights = true;
        fs::write(dir.path().join(FILE), Inputs::of(&config, &images(&config)).unwrap().to_text()).unwrap();
        fs::write(dir.path().join("model/model.safetensors"), "other").unwrap();
        assert!(Inputs::of(&config, &images(&config)).unwrap().check(dir.path()).unwrap());
        config.seed = 7;
        assert!(!Inputs::of(&config, &images(&config)).unwrap().check(dir.path()).unwrap());
    }

    #[test]
    fn large_weights_are_compared_from_beginning_to_end() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("w");
        let mut content = vec![0_u8; (SAMPLES * SAMPLE_BYTES) as usize + 4_000_001];
        let print = |content: &[u8]| {
            fs::write(&path, content).unwrap();
            let mut hash = Sha256::new();
            sampled(&path, &mut hash).unwrap();
            hex(hash)
        };
        let before = print(&content);
        for place in [0, content.len() - 1] {
            content[place] = 1;
            assert_ne!(print(&content), before, "{place}");
            content[place] = 0;
        }
        content.push(0);
        assert_ne!(print(&content), before, "the length counts");
    }
}
