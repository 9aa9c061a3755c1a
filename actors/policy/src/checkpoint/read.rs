//! Reading a Hugging Face directory.
//!
//! Which files count: those named by `model.safetensors.index.json` if it exists, else every `*.safetensors` of the
//! directory (as SGLang's loader does, except that a tensor found twice is an error here). Extra tensors are errors too, but
//! for the few that old tools wrote and nobody reads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tch::{Device, Kind};

use super::header::WeightFile;
use super::sizes;
use crate::error::PolicyError;
use crate::model::{ModelConfig, Parameters};

const INDEX: &str = "model.safetensors.index.json";

/// How much was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadReport {
    /// Number of tensors.
    pub tensors: usize,
    /// Their size in the files, bytes.
    pub bytes: u64,
}

/// Reads configuration and weights of a directory; weights are brought to `kind` on `device`.
///
/// # Errors
/// [`PolicyError::File`], [`PolicyError::Config`] or [`PolicyError::Checkpoint`], naming file and tensor.
pub fn load(directory: &Path, device: Device, kind: Kind) -> Result<(ModelConfig, Parameters), PolicyError> {
    let config = load_config(directory)?;
    let (parameters, _) = load_parameters(directory, &config, device, kind)?;
    Ok((config, parameters))
}

/// Reads `config.json`, and the end-of-text ids of `generation_config.json` if it exists.
///
/// # Errors
/// [`PolicyError::File`] or [`PolicyError::Config`].
pub fn load_config(directory: &Path) -> Result<ModelConfig, PolicyError> {
    let path = directory.join("config.json");
    let mut config = ModelConfig::from_json(&read_json(&path)?, &path)?;
    let generation = directory.join("generation_config.json");
    if generation.is_file() {
        config.add_generation_config(&read_json(&generation)?, &generation)?;
    }
    Ok(config)
}

/// Reads the weights of a directory for a known configuration. Names, shapes, types and file sizes of the whole
/// checkpoint are checked before the first tensor is read.
///
/// # Errors
/// [`PolicyError::File`] or [`PolicyError::Checkpoint`], naming file and tensor.
pub fn load_parameters(
    directory: &Path,
    config: &ModelConfig,
    device: Device,
    kind: Kind,
) -> Result<(Parameters, ReadReport), PolicyError> {
    let mut files = open_files(directory)?;
    let places = find_tensors(directory, &files)?;
    check_tensors(directory, config, &files, &places)?;
    let mut entries = Vec::with_capacity(places.len());
    let mut report = ReadReport { tensors: 0, bytes: 0 };
    for spec in config.tensors() {
        let file = &mut files[places[&spec.name]];
        report.tensors += 1;
        report.bytes += file.info(&spec.name).map_or(0, |info| (info.data_offsets.1 - info.data_offsets.0) as u64);
        let tensor = file.tensor(&spec.name, kind, device)?;
        entries.push((spec.name, tensor));
    }
    Ok((Parameters::from_ordered(entries), report))
}

pub(crate) fn read_json(path: &Path) -> Result<Value, PolicyError> {
    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    serde_json::from_str(&text)
        .map_err(|error| PolicyError::Config { path: path.to_owned(), reason: format!("broken JSON: {error}") })
}

fn unreadable(path: &Path, error: &std::io::Error) -> PolicyError {
    PolicyError::File { action: "read", path: path.to_owned(), reason: error.to_string() }
}

fn open_files(directory: &Path) -> Result<Vec<WeightFile>, PolicyError> {
    let paths = match read_index(directory)? {
        Some(index) => {
            let names: BTreeSet<&String> = index.values().collect();
            names.into_iter().map(|name| directory.join(name)).collect()
        }
        None => list_weight_files(directory)?,
    };
    paths.iter().map(|path| WeightFile::open(path)).collect()
}

fn list_weight_files(directory: &Path) -> Result<Vec<PathBuf>, PolicyError> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(directory).map_err(|error| unreadable(directory, &error))? {
        let path = entry.map_err(|error| unreadable(directory, &error))?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        let reason = "holds neither *.safetensors nor an index of them".to_owned();
        return Err(PolicyError::Checkpoint { path: directory.to_owned(), reason });
    }
    Ok(paths)
}

/// Tensor name to file name, from the index; `None` when there is none.
fn read_index(directory: &Path) -> Result<Option<BTreeMap<String, String>>, PolicyError> {
    let path = directory.join(INDEX);
    if !path.exists() {
        return Ok(None);
    }
    let wrong = |reason: String| PolicyError::Checkpoint { path: path.clone(), reason };
    let value = read_json(&path)?;
    let map = value.get("weight_map").and_then(Value::as_object);
    let map = map.ok_or_else(|| wrong("`weight_map` is missing or not an object".to_owned()))?;
    let mut index = BTreeMap::new();
    for (tensor, file) in map {
        let plain = file.as_str().filter(|name| !name.contains('/') && name.ends_with(".safetensors"));
        let name =
            plain.ok_or_else(|| wrong(format!("tensor `{tensor}` is said to be in {file}, which is no file name")))?;
        index.insert(tensor.clone(), name.to_owned());
    }
    Ok(Some(index))
}

/// Tensor name to number of the file that holds it; checked against the index if there is one.
fn find_tensors(directory: &Path, files: &[WeightFile]) -> Result<BTreeMap<String, usize>, PolicyError> {
    let mut places: BTreeMap<String, usize> = BTreeMap::new();
    for (number, file) in files.iter().enumerate() {
        for name in file.names() {
            if let Some(other) = places.insert(name.clone(), number) {
                let reason = format!("tensor `{name}` is also in {}", files[other].path().display());
                return Err(PolicyError::Checkpoint { path: file.path().to_owned(), reason });
            }
        }
    }
    for (name, file_name) in read_index(directory)?.unwrap_or_default() {
        let path = directory.join(&file_name);
        if places.get(&name).is_none_or(|&number| files[number].path() != path) {
            let reason = format!("tensor `{name}` is missing, though the index says it is here");
            return Err(PolicyError::Checkpoint { path, reason });
        }
    }
    Ok(places)
}

fn check_tensors(
    directory: &Path,
    config: &ModelConfig,
    files: &[WeightFile],
    places: &BTreeMap<String, usize>,
) -> Result<(), PolicyError> {
    sizes::check(&directory.join("config.json"), config, files, places)?;
    let mut expected = BTreeSet::new();
    for spec in config.tensors() {
        let Some(&number) = places.get(&spec.name) else {
            let reason = format!("tensor `{}` is missing", spec.name);
            return Err(PolicyError::Checkpoint { path: directory.to_owned(), reason });
        };
        let file = &files[number];
        file.kind(&spec.name)?;
        let shape: Vec<i64> =
            file.info(&spec.name).map(|info| info.shape.iter().map(|&n| n as i64).collect()).unwrap_or_default();
        if shape != spec.shape {
            let reason = format!("tensor `{}` has shape {shape:?}, the model needs {:?}", spec.name, spec.shape);
            return Err(PolicyError::Checkpoint { path: file.path().to_owned(), reason });
        }
        expected.insert(spec.name);
    }
    for (name, &number) in places {
        let ignored = name.ends_with("rotary_emb.inv_freq") || (config.tie_word_embeddings && name == "lm_head.weight");
        if !expected.contains(name) && !ignored {
            let reason = format!("tensor `{name}` is not part of the model that config.json describes");
            return Err(PolicyError::Checkpoint { path: files[number].path().to_owned(), reason });
        }
    }
    Ok(())
}
