//! A version made from a checkpoint, and a checkpoint made from a version.

use std::fs;
use std::path::Path;

use greenroom_messages::WeightVersion;
use greenroom_messages::weights::WeightMode;

use crate::codec::{Encoding, decode, encode};
use crate::files::{CheckpointFiles, TensorFile, TensorPlace, tensor_hash, write_synced};
use crate::manifest::{FORMAT, FileEntry, Manifest, OtherEntry, TensorEntry, width_of};
use crate::{WeightsError, files};

/// What encoding a version gave.
pub(crate) struct EncodedVersion {
    pub(crate) manifest: Manifest,
    pub(crate) payload: Vec<u8>,
    /// Bytes of all tensors.
    pub(crate) bytes_full: u64,
    /// Fraction of words that changed.
    pub(crate) changed: f32,
}

/// Encodes a checkpoint as a version, against a base where there is one.
pub(crate) fn encode_version(
    source: &CheckpointFiles,
    base: Option<(&WeightVersion, &CheckpointFiles)>,
    version: &WeightVersion,
    level: i32,
) -> Result<EncodedVersion, WeightsError> {
    let mut payload = Vec::new();
    let (mut words, mut changed, mut bytes_full) = (0_u64, 0_u64, 0_u64);
    let mut entries = Vec::new();
    for file in &source.tensor_files {
        let header = append(&mut payload, file.header());
        let before = base.and_then(|(_, base)| base.tensor_file(&file.name));
        let mut tensors = Vec::new();
        for place in &file.tensors {
            let (entry, bytes, count) = encode_tensor(file, place, before, level, payload.len() as u64)?;
            payload.extend_from_slice(&bytes);
            bytes_full += entry.bytes as u64;
            words += (entry.bytes / width_of(&place.dtype)) as u64;
            changed += count;
            tensors.push(entry);
        }
        entries.push(FileEntry { name: file.name.clone(), bytes: file.bytes().len(), header, tensors });
    }
    let mut others = Vec::new();
    for (name, path) in &source.other_files {
        let content = fs::read(path).map_err(|error| WeightsError::file(path, &error))?;
        others.push(OtherEntry { name: name.clone(), place: append(&mut payload, &content) });
    }
    let mut manifest = Manifest {
        format: FORMAT,
        version: version.clone(),
        mode: if base.is_some() { WeightMode::Delta } else { WeightMode::Full },
        base: base.map(|(version, _)| version.clone()),
        payload_bytes: payload.len() as u64,
        payload_sha256: files::sha256(&payload),
        files: entries,
        others,
        root_hash: String::new(),
    };
    manifest.root_hash = manifest.computed_root_hash();
    let changed = if words == 0 { 0.0 } else { (changed as f64 / words as f64) as f32 };
    Ok(EncodedVersion { manifest, payload, bytes_full, changed })
}

fn encode_tensor(
    file: &TensorFile,
    place: &TensorPlace,
    before: Option<&TensorFile>,
    level: i32,
    payload_offset: u64,
) -> Result<(TensorEntry, Vec<u8>, u64), WeightsError> {
    let new = file.tensor(place);
    let old = before.and_then(|before| {
        let old = before.find(&place.name).filter(|old| old.dtype == place.dtype && old.bytes == place.bytes)?;
        Some(before.tensor(old))
    });
    let (encoding, bytes, changed) = encode(old, new, width_of(&place.dtype), level)
        .map_err(|error| WeightsError::Damaged { what: format!("tensor {}", place.name), reason: error.to_string() })?;
    let entry = TensorEntry {
        name: place.name.clone(),
        dtype: place.dtype.clone(),
        shape: place.shape.clone(),
        offset: place.bytes.start,
        bytes: new.len(),
        hash: tensor_hash(new),
        encoding,
        payload_offset,
        payload_bytes: bytes.len() as u64,
    };
    Ok((entry, bytes, changed))
}

fn append(payload: &mut Vec<u8>, bytes: &[u8]) -> (u64, u64) {
    let place = (payload.len() as u64, bytes.len() as u64);
    payload.extend_from_slice(bytes);
    place
}

/// Builds the checkpoint of a version in `out` (an empty directory), from its payload and, for a delta, the base's files.
/// Every tensor is checked; on error `out` is incomplete and to be thrown away.
pub(crate) fn build_checkpoint(
    manifest: &Manifest,
    payload: &[u8],
    base: Option<&CheckpointFiles>,
    out: &Path,
) -> Result<(), WeightsError> {
    for file in &manifest.files {
        let before = base.and_then(|base| base.tensor_file(&file.name));
        let content = build_file(manifest, file, payload, before)?;
        write_synced(&inside(out, &file.name, manifest)?, &content)?;
    }
    for other in &manifest.others {
        let content = part(manifest, payload, other.place)?;
        write_synced(&inside(out, &other.name, manifest)?, content)?;
    }
    Ok(())
}

fn build_file(
    manifest: &Manifest,
    file: &FileEntry,
    payload: &[u8],
    before: Option<&TensorFile>,
) -> Result<Vec<u8>, WeightsError> {
    let mut content = vec![0; file.bytes];
    let header = part(manifest, payload, file.header)?;
    let damaged = |what: &str, reason: String| WeightsError::Damaged {
        what: format!("{what} of {} in {}", file.name, manifest.version),
        reason,
    };
    let room = content.get_mut(..header.len()).ok_or_else(|| damaged("the header", "it is too long".to_owned()))?;
    room.copy_from_slice(header);
    for tensor in &file.tensors {
        let what = format!("tensor {}", tensor.name);
        let end = tensor.offset.checked_add(tensor.bytes);
        let room = end.and_then(|end| content.get_mut(tensor.offset..end));
        let room = room.ok_or_else(|| damaged(&what, "it lies outside its file".to_owned()))?;
        if tensor.encoding != Encoding::Raw {
            let old = before.and_then(|before| before.bytes().get(tensor.offset..tensor.offset + tensor.bytes));
            room.copy_from_slice(old.ok_or_else(|| damaged(&what, "its base is not at hand".to_owned()))?);
        }
        let bytes = part(manifest, payload, (tensor.payload_offset, tensor.payload_bytes))?;
        decode(tensor.encoding, bytes, room, width_of(&tensor.dtype)).map_err(|reason| damaged(&what, reason))?;
        if tensor_hash(room) != tensor.hash {
            return Err(damaged(&what, "its checksum is another one than its manifest promises".to_owned()));
        }
    }
    Ok(content)
}

/// Whether a checkpoint is exactly what a manifest promises.
pub(crate) fn verify_checkpoint(manifest: &Manifest, checkpoint: &CheckpointFiles) -> Result<(), WeightsError> {
    let differs = |what: String| WeightsError::Damaged {
        what: format!("{what} in {}", checkpoint.dir.display()),
        reason: format!("it is not what the manifest of {} promises", manifest.version),
    };
    for file in &manifest.files {
        let held = checkpoint.tensor_file(&file.name).ok_or_else(|| differs(file.name.clone()))?;
        for tensor in &file.tensors {
            let bytes = held.bytes().get(tensor.offset..tensor.offset + tensor.bytes);
            if bytes.is_none_or(|bytes| tensor_hash(bytes) != tensor.hash) {
                return Err(differs(format!("tensor {}", tensor.name)));
            }
        }
    }
    let missing = manifest.others.iter().find(|other| !checkpoint.other_files.contains_key(&other.name));
    missing.map_or(Ok(()), |other| Err(differs(other.name.clone())))
}

fn part<'a>(manifest: &Manifest, payload: &'a [u8], (offset, bytes): (u64, u64)) -> Result<&'a [u8], WeightsError> {
    let range = offset as usize..offset.saturating_add(bytes) as usize;
    payload.get(range).ok_or_else(|| WeightsError::Damaged {
        what: format!("the manifest of {}", manifest.version),
        reason: "it names bytes outside its payload".to_owned(),
    })
}

/// The path of a plain file name inside a directory; a name that would lead elsewhere is refused.
fn inside(dir: &Path, name: &str, manifest: &Manifest) -> Result<std::path::PathBuf, WeightsError> {
    let plain = Path::new(name).file_name().is_some_and(|file| file == name);
    let refused = || WeightsError::Damaged {
        what: format!("the manifest of {}", manifest.version),
        reason: format!("{name:?} is no plain file name"),
    };
    if plain { Ok(dir.join(name)) } else { Err(refused()) }
}
