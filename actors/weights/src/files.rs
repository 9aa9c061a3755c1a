//! A Hugging Face directory as files: safetensors by tensor, everything else as it is.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::SafeTensors;
use sha2::{Digest, Sha256};

use crate::WeightsError;

/// One tensor inside a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPlace {
    /// Its name.
    pub name: String,
    /// Its dtype as safetensors writes it, such as `BF16`.
    pub dtype: String,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Where its bytes lie in the file.
    pub bytes: Range<usize>,
}

/// One safetensors file, mapped.
pub struct TensorFile {
    /// Its name in the directory.
    pub name: String,
    map: Mmap,
    /// Its tensors, by their place in the file.
    pub tensors: Vec<TensorPlace>,
    /// Where the tensors' bytes begin; before that lies the header.
    pub data_start: usize,
}

impl std::fmt::Debug for TensorFile {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("TensorFile").field("name", &self.name).field("bytes", &self.map.len()).finish()
    }
}

impl TensorFile {
    fn open(path: &Path, name: String) -> Result<Self, WeightsError> {
        let file = File::open(path).map_err(|error| WeightsError::file(path, &error))?;
        // Safety: published and applied checkpoints are immutable: they are written beside their place and renamed.
        #[allow(unsafe_code)]
        let map = unsafe { Mmap::map(&file) }.map_err(|error| WeightsError::file(path, &error))?;
        let unusable = |reason: String| WeightsError::Checkpoint { path: path.to_owned(), reason };
        let (header_bytes, _) = SafeTensors::read_metadata(&map).map_err(|error| unusable(error.to_string()))?;
        let data_start = header_bytes + 8;
        let parsed = SafeTensors::deserialize(&map).map_err(|error| unusable(error.to_string()))?;
        let start = map.as_ptr() as usize;
        let mut tensors: Vec<TensorPlace> = parsed
            .iter()
            .map(|(name, view)| {
                let from = view.data().as_ptr() as usize - start;
                TensorPlace {
                    name: name.to_owned(),
                    dtype: format!("{:?}", view.dtype()),
                    shape: view.shape().to_vec(),
                    bytes: from..from + view.data().len(),
                }
            })
            .collect();
        tensors.sort_by(|one, other| (one.bytes.start, &one.name).cmp(&(other.bytes.start, &other.name)));
        Ok(Self { name, map, tensors, data_start })
    }

    /// The file's header: length and JSON.
    pub fn header(&self) -> &[u8] {
        &self.map[..self.data_start]
    }

    /// All bytes of the file.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// One tensor's bytes.
    pub fn tensor(&self, place: &TensorPlace) -> &[u8] {
        &self.map[place.bytes.clone()]
    }

    /// One tensor by its name.
    pub fn find(&self, name: &str) -> Option<&TensorPlace> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// A checkpoint's directory, opened.
#[derive(Debug)]
pub struct CheckpointFiles {
    /// The directory.
    pub dir: PathBuf,
    /// Its safetensors files, by name.
    pub tensor_files: Vec<TensorFile>,
    /// Its other files, by name: configuration, tokenizer, index.
    pub other_files: BTreeMap<String, PathBuf>,
}

impl CheckpointFiles {
    /// Opens a directory and checks that it is whole: every safetensors file can be read, and every file that an index
    /// names is there.
    pub fn open(dir: &Path) -> Result<Self, WeightsError> {
        let mut files = Self { dir: dir.to_owned(), tensor_files: Vec::new(), other_files: BTreeMap::new() };
        let mut names: Vec<String> = fs::read_dir(dir)
            .map_err(|error| WeightsError::file(dir, &error))?
            .filter_map(|entry| entry.ok().filter(|entry| entry.path().is_file())?.file_name().into_string().ok())
            .collect();
        names.sort();
        for name in names {
            let path = dir.join(&name);
            if name.ends_with(".safetensors") {
                files.tensor_files.push(TensorFile::open(&path, name)?);
            } else {
                files.other_files.insert(name, path);
            }
        }
        files.check_index()?;
        Ok(files)
    }

    fn check_index(&self) -> Result<(), WeightsError> {
        let unusable = |reason: String| WeightsError::Checkpoint { path: self.dir.clone(), reason };
        if self.tensor_files.is_empty() {
            return Err(unusable("it holds no *.safetensors file".to_owned()));
        }
        let Some(index) = self.other_files.get("model.safetensors.index.json") else { return Ok(()) };
        let text = fs::read(index).map_err(|error| WeightsError::file(index, &error))?;
        let parsed: serde_json::Value = serde_json::from_slice(&text).map_err(|error| unusable(error.to_string()))?;
        let named = parsed.get("weight_map").and_then(|map| map.as_object());
        for (tensor, file) in named.ok_or_else(|| unusable("its index has no weight_map".to_owned()))? {
            let place = self.tensor_files.iter().find(|known| Some(known.name.as_str()) == file.as_str());
            if place.is_none_or(|file| file.find(tensor).is_none()) {
                return Err(unusable(format!("its index says that {tensor} is in {file}, which it is not")));
            }
        }
        Ok(())
    }

    /// A safetensors file by its name.
    pub fn tensor_file(&self, name: &str) -> Option<&TensorFile> {
        self.tensor_files.iter().find(|file| file.name == name)
    }
}

/// The checksum of one tensor: xxh3, 128 bits, in hexadecimal.
pub(crate) fn tensor_hash(bytes: &[u8]) -> String {
    format!("{:032x}", twox_hash::XxHash3_128::oneshot(bytes))
}

/// The checksum of untrusted bytes: SHA-256 in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The checksum of all tensors: SHA-256 over their names, dtypes, shapes and checksums, in order of names.
pub fn root_hash<'a>(tensors: impl IntoIterator<Item = (&'a str, &'a str, &'a [usize], &'a str)>) -> String {
    let lines: std::collections::BTreeSet<String> =
        tensors.into_iter().map(|(name, dtype, shape, hash)| format!("{name} {dtype} {shape:?} {hash}\n")).collect();
    sha256(lines.into_iter().collect::<String>().as_bytes())
}

/// Writes a file and makes it durable.
pub(crate) fn write_synced(path: &Path, content: &[u8]) -> Result<(), WeightsError> {
    let write = || {
        fs::write(path, content)?;
        File::open(path)?.sync_all()
    };
    write().map_err(|error| WeightsError::file(path, &error))
}

/// Renames a finished directory into its place and makes that durable; an older one of the same name is replaced.
pub(crate) fn rename_synced(from: &Path, to: &Path) -> Result<(), WeightsError> {
    let rename = || {
        if to.exists() {
            fs::remove_dir_all(to)?;
        }
        fs::rename(from, to)?;
        to.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
    };
    rename().map_err(|error| WeightsError::file(to, &error))
}
