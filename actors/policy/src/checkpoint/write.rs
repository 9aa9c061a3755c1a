//! Writing a Hugging Face directory, atomically.
//!
//! Everything is written into a sibling directory, every file is synced, then the sibling takes the final name: by a rename
//! where nothing is there, by an exchange of the two names where a checkpoint is already. A crash leaves the old directory
//! or the new one under the name, and at worst a `.…partial` sibling, which the next save of the same name removes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};

use safetensors::{Dtype, View};
use serde_json::{Map, Value, json};
use tch::{Device, Kind, Tensor};

use crate::error::PolicyError;
use crate::model::{ModelConfig, Parameters};

/// Files that belong to a model beside its weights, copied from where it came from.
const COMPANIONS: &[&str] = &[
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
];

/// How to save.
#[derive(Debug, Clone)]
pub struct SaveOptions {
    /// Kind of the numbers in the files: `BFloat16`, `Half` or `Float`.
    pub kind: Kind,
    /// A file grows to at most this many bytes of tensors (but holds at least one tensor).
    pub max_shard_bytes: u64,
    /// Where tokenizer, chat template and `generation_config.json` are copied from, if anywhere.
    pub companions_from: Option<PathBuf>,
}

impl Default for SaveOptions {
    fn default() -> Self {
        Self { kind: Kind::BFloat16, max_shard_bytes: 5_000_000_000, companions_from: None }
    }
}

/// A tensor as safetensors wants to see it; its bytes are made when they are written.
struct Stored<'a> {
    tensor: &'a Tensor,
    kind: Kind,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl View for &Stored<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        // The trait has no way to report an error: an empty slice makes the file too short, which `save` then refuses.
        Cow::Owned(bytes_of(self.tensor, self.kind).unwrap_or_default())
    }

    fn data_len(&self) -> usize {
        self.bytes()
    }
}

impl Stored<'_> {
    fn bytes(&self) -> usize {
        self.tensor.numel() * self.kind.elt_size_in_bytes()
    }
}

/// The little-endian bytes of a tensor in a kind.
fn bytes_of(tensor: &Tensor, kind: Kind) -> Result<Vec<u8>, tch::TchError> {
    let stored = tensor.f_detach()?.f_to_device_(Device::Cpu, kind, false, false)?.f_contiguous()?;
    let mut bytes = vec![0; stored.numel() * kind.elt_size_in_bytes()];
    stored.f_copy_data_u8(&mut bytes, stored.numel())?;
    Ok(bytes)
}

/// Writes configuration, weights and companions as `directory`, replacing a checkpoint that is there. Returns the bytes of
/// the weight files.
///
/// # Errors
/// [`PolicyError::File`] when the system refuses; [`PolicyError::Input`] for a kind that is not stored. The old content of
/// `directory` is then untouched.
pub fn save(
    directory: &Path,
    config: &ModelConfig,
    parameters: &Parameters,
    options: &SaveOptions,
) -> Result<u64, PolicyError> {
    let _guard = tch::no_grad_guard();
    let (Some(parent), Some(name)) = (directory.parent(), directory.file_name()) else {
        return Err(PolicyError::Input(format!("{} is no name for a checkpoint", directory.display())));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    fs::create_dir_all(parent).map_err(|error| failed("create", parent, &error))?;
    let partial = parent.join(format!(".{}.partial", name.to_string_lossy()));
    if partial.exists() {
        fs::remove_dir_all(&partial).map_err(|error| failed("remove", &partial, &error))?;
    }
    fs::create_dir(&partial).map_err(|error| failed("create", &partial, &error))?;
    let bytes = fill(&partial, config, parameters, options)?;
    publish(&partial, directory, parent)?;
    Ok(bytes)
}

fn failed(action: &'static str, path: &Path, error: &dyn std::fmt::Display) -> PolicyError {
    PolicyError::File { action, path: path.to_owned(), reason: error.to_string() }
}

fn fill(
    partial: &Path,
    config: &ModelConfig,
    parameters: &Parameters,
    options: &SaveOptions,
) -> Result<u64, PolicyError> {
    if let Some(source) = &options.companions_from {
        for name in COMPANIONS {
            let from = source.join(name);
            if from.is_file() {
                let to = partial.join(name);
                fs::copy(&from, &to).map_err(|error| failed("copy", &from, &error))?;
                sync(&to)?;
            }
        }
    }
    let (dtype, dtype_name) = match options.kind {
        Kind::BFloat16 => (Dtype::BF16, "bfloat16"),
        Kind::Half => (Dtype::F16, "float16"),
        Kind::Float => (Dtype::F32, "float32"),
        other => return Err(PolicyError::Input(format!("weights are not stored as {other:?}; use bf16, f16 or f32"))),
    };
    write_json(&partial.join("config.json"), &config_value(config, dtype_name))?;
    let shards = cut_into_shards(parameters, options, dtype);
    let mut weight_map = Map::new();
    let mut total_bytes = 0;
    let count = shards.len();
    for (number, shard) in shards.iter().enumerate() {
        let name = match count {
            1 => "model.safetensors".to_owned(),
            _ => format!("model-{:05}-of-{count:05}.safetensors", number + 1),
        };
        total_bytes += write_shard(&partial.join(&name), shard)?;
        weight_map.extend(shard.iter().map(|(tensor, _)| ((*tensor).to_owned(), Value::from(name.as_str()))));
    }
    if count > 1 {
        let index = json!({"metadata": {"total_size": total_bytes}, "weight_map": weight_map});
        write_json(&partial.join("model.safetensors.index.json"), &index)?;
    }
    sync(partial)?;
    Ok(total_bytes)
}

/// `config.json` as it was read, with the kind of the numbers brought up to date under the name it had.
fn config_value(config: &ModelConfig, dtype_name: &str) -> Value {
    let mut map = config.json.clone();
    let key = if map.contains_key("dtype") { "dtype" } else { "torch_dtype" };
    map.insert(key.to_owned(), Value::from(dtype_name));
    Value::Object(map)
}

type Shard<'a> = Vec<(&'a str, Stored<'a>)>;

fn cut_into_shards<'a>(parameters: &'a Parameters, options: &SaveOptions, dtype: Dtype) -> Vec<Shard<'a>> {
    let mut shards: Vec<Shard<'a>> = vec![Vec::new()];
    let mut filled = 0;
    for (name, tensor) in parameters.iter() {
        let bytes = (tensor.numel() * options.kind.elt_size_in_bytes()) as u64;
        if filled > 0 && filled + bytes > options.max_shard_bytes {
            shards.push(Vec::new());
            filled = 0;
        }
        filled += bytes;
        let shape = tensor.size().iter().map(|&length| length as usize).collect();
        if let Some(shard) = shards.last_mut() {
            shard.push((name, Stored { tensor, kind: options.kind, dtype, shape }));
        }
    }
    shards
}

fn write_shard(path: &Path, shard: &Shard<'_>) -> Result<u64, PolicyError> {
    let format: std::collections::HashMap<String, String> = [("format".to_owned(), "pt".to_owned())].into();
    let views: BTreeMap<&str, &Stored<'_>> = shard.iter().map(|(name, stored)| (*name, stored)).collect();
    let bytes: u64 = views.values().map(|stored| stored.bytes() as u64).sum();
    safetensors::serialize_to_file(views, Some(format), path).map_err(|error| failed("write", path, &error))?;
    sync(path)?;
    // Reading the header back catches a short write, of whatever cause, before the name is given.
    super::header::WeightFile::open(path)?;
    Ok(bytes)
}

fn write_json(path: &Path, value: &Value) -> Result<(), PolicyError> {
    let mut text = serde_json::to_string_pretty(value).map_err(|error| failed("write", path, &error))?;
    text.push('\n');
    fs::write(path, text).map_err(|error| failed("write", path, &error))?;
    sync(path)
}

fn sync(path: &Path) -> Result<(), PolicyError> {
    File::open(path).and_then(|file| file.sync_all()).map_err(|error| failed("sync", path, &error))
}

/// Gives the complete directory its name.
fn publish(partial: &Path, directory: &Path, parent: &Path) -> Result<(), PolicyError> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    if directory.exists() {
        match renameat_with(CWD, partial, CWD, directory, RenameFlags::EXCHANGE) {
            Ok(()) => {}
            // File systems that cannot exchange (NFS): two renames, and for a moment only the sibling has the old one.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::OPNOTSUPP) => {
                let aside = partial.with_extension("replaced");
                fs::rename(directory, &aside).map_err(|error| failed("rename", directory, &error))?;
                fs::rename(partial, directory).map_err(|error| failed("rename", directory, &error))?;
                sync(parent)?;
                return fs::remove_dir_all(&aside).map_err(|error| failed("remove", &aside, &error));
            }
            Err(error) => return Err(failed("exchange", directory, &error)),
        }
        sync(parent)?;
        // What bears the partial name now is the old checkpoint.
        fs::remove_dir_all(partial).map_err(|error| failed("remove", partial, &error))?;
        return Ok(());
    }
    fs::rename(partial, directory).map_err(|error| failed("rename", directory, &error))?;
    sync(parent)
}
