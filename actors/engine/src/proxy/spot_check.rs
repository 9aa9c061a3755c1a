//! Whether an engine holds the weights that it says: a few numbers of a few small tensors, compared with the file.
//!
//! The label of an engine's weights is what it was told, not what it holds. So after a load the first rows of two small
//! tensors, others for each version, are asked for and compared with those in the checkpoint that was loaded. An engine may
//! hold them in a narrower type: a value that rounds to the engine's is the same. Only small tensors are asked for, since
//! SGLang turns the whole tensor into a list before it cuts off its first rows. Pure but for reading the file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use serde::Deserialize;

/// Tensors of more elements are not asked for.
const LARGEST_TENSOR_ELEMENTS: u64 = 1 << 22;
/// So many values of a tensor of one dimension.
const VALUES: u64 = 64;
/// Rows longer than this are not asked for.
const LONGEST_ROW: u64 = 1 << 15;
/// Tensors a check.
const TENSORS: u64 = 2;
/// The largest header that is read; the format's own limit.
const HEADER_LIMIT_BYTES: u64 = 100_000_000;

/// The first rows of a tensor, as a checkpoint's file holds them.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Excerpt {
    pub name: String,
    /// Rows of the first dimension.
    pub rows: u32,
    pub values: Vec<f32>,
}

#[derive(Debug, Deserialize)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

impl Entry {
    fn width(&self) -> Option<u64> {
        match self.dtype.as_str() {
            "F32" => Some(4),
            "BF16" | "F16" => Some(2),
            _ => None,
        }
    }

    /// Rows to ask for and the values in them; `None` where the tensor does not serve.
    fn extent(&self) -> Option<(u64, u64)> {
        let elements = self.shape.iter().try_fold(1_u64, |product, length| product.checked_mul(*length))?;
        let row = elements.checked_div(*self.shape.first()?)?;
        let rows = if self.shape.len() == 1 { VALUES.min(elements) } else { 1 };
        let serves = self.width().is_some() && (1..=LARGEST_TENSOR_ELEMENTS).contains(&elements) && row <= LONGEST_ROW;
        serves.then_some((rows, rows * row))
    }
}

/// The excerpts of a checkpoint's directory that belong to turn `turn` of the rotation; `Err` says why there are none.
pub(super) fn excerpts(dir: &Path, turn: u64) -> Result<Vec<Excerpt>, String> {
    let said = |error: std::io::Error| format!("{}: {error}", dir.display());
    let mut places = BTreeMap::new();
    for entry in std::fs::read_dir(dir).map_err(said)? {
        let path = entry.map_err(said)?.path();
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            let (start, entries) = read_header(&path)?;
            places.extend(entries.into_iter().map(|(name, entry)| (name, (path.clone(), start, entry))));
        }
    }
    places.retain(|_, (_, _, entry)| entry.extent().is_some());
    let count = places.len() as u64;
    if count == 0 {
        return Err(format!("{} holds no small tensor of floating-point numbers", dir.display()));
    }
    let chosen = (0..TENSORS.min(count)).map(|place| (turn.wrapping_mul(TENSORS).wrapping_add(place) % count) as usize);
    let chosen = chosen.filter_map(|place| places.iter().nth(place));
    chosen.map(|(name, (path, start, entry))| read_excerpt(path, *start, name, entry)).collect()
}

/// Where the tensors' bytes begin, and the tensors by name.
fn read_header(path: &Path) -> Result<(u64, BTreeMap<String, Entry>), String> {
    let said = |error: &dyn std::fmt::Display| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(|error| said(&error))?;
    let mut length = [0; 8];
    file.read_exact(&mut length).map_err(|error| said(&error))?;
    let length = u64::from_le_bytes(length);
    if length > HEADER_LIMIT_BYTES {
        return Err(said(&"its header is too long"));
    }
    let mut header = vec![0; length as usize];
    file.read_exact(&mut header).map_err(|error| said(&error))?;
    let mut table: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&header).map_err(|error| said(&error))?;
    table.remove("__metadata__");
    let entries = table.into_iter().map(|(name, entry)| Ok((name, serde_json::from_value(entry)?)));
    let entries: Result<_, serde_json::Error> = entries.collect();
    Ok((8 + length, entries.map_err(|error| said(&error))?))
}

fn read_excerpt(path: &Path, start: u64, name: &str, entry: &Entry) -> Result<Excerpt, String> {
    let said = |error: &dyn std::fmt::Display| format!("{}: {name}: {error}", path.display());
    let (Some((rows, count)), Some(width)) = (entry.extent(), entry.width()) else {
        return Err(said(&"it does not serve"));
    };
    let mut bytes = vec![0; (count * width) as usize];
    let mut file = File::open(path).map_err(|error| said(&error))?;
    file.seek(SeekFrom::Start(start + entry.data_offsets.0)).map_err(|error| said(&error))?;
    file.read_exact(&mut bytes).map_err(|error| said(&error))?;
    let values = match entry.dtype.as_str() {
        "F32" => bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        "BF16" => halves(&bytes).map(|bits| f32::from_bits(u32::from(bits) << 16)).collect(),
        _ => halves(&bytes).map(f16_to_f32).collect(),
    };
    Ok(Excerpt { name: name.to_owned(), rows: rows as u32, values })
}

fn halves(bytes: &[u8]) -> impl Iterator<Item = u16> {
    bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_le_bytes(*bytes))
}

fn f16_to_f32(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, mantissa) = (i32::from(bits >> 10 & 0x1f), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => mantissa * 2.0_f32.powi(-24),
        0x1f if mantissa == 0.0 => f32::INFINITY,
        0x1f => f32::NAN,
        _ => (1.0 + mantissa / 1024.0) * 2.0_f32.powi(exponent - 15),
    }
}

/// Rounds to so many bits of mantissa, halves to even; exponents are not limited.
fn rounded(value: f32, mantissa_bits: u32) -> f32 {
    let dropped = 23 - mantissa_bits;
    let bits = value.to_bits();
    let half = (1 << (dropped - 1)) - 1 + (bits >> dropped & 1);
    f32::from_bits(bits.wrapping_add(half) >> dropped << dropped)
}

/// Whether what an engine answered is what the file holds, in the file's type or a narrower one; `Err` says what differs.
pub(super) fn compare(excerpt: &Excerpt, answered: &[f64]) -> Result<(), String> {
    let name = &excerpt.name;
    if answered.len() != excerpt.values.len() {
        let (found, expected) = (answered.len(), excerpt.values.len());
        return Err(format!("the engine has {found} values in the first rows of {name} where the file has {expected}"));
    }
    let alike = |read: fn(f32) -> f32| {
        excerpt.values.iter().zip(answered).position(|(value, found)| {
            let (value, found) = (read(*value), *found as f32);
            value != found && !(value.is_nan() && found.is_nan())
        })
    };
    // as it is, as bfloat16, as float16: below its smallest normal number float16 keeps fewer digits, to 2^-24
    let as_f16 = |value: f32| {
        if value.abs() < 2.0_f32.powi(-14) {
            (value * 2.0_f32.powi(24)).round_ties_even() * 2.0_f32.powi(-24)
        } else {
            rounded(value, 10)
        }
    };
    let Some(place) = alike(|value| value) else { return Ok(()) };
    if alike(|value| rounded(value, 7)).is_none() || alike(as_f16).is_none() {
        return Ok(());
    }
    let (found, expected) = (answered[place], excerpt.values[place]);
    Err(format!("value {place} of {name} is {found} at the engine and {expected} in the file that it was told to load"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes a safetensors file of these tensors: name, dtype, shape, bytes.
    fn write(path: &Path, tensors: &[(&str, &str, &[u64], Vec<u8>)]) {
        let (mut table, mut data) = (serde_json::Map::new(), Vec::new());
        table.insert("__metadata__".to_owned(), serde_json::json!({ "format": "pt" }));
        for (name, dtype, shape, bytes) in tensors {
            let offsets = [data.len(), data.len() + bytes.len()];
            let entry = serde_json::json!({ "dtype": dtype, "shape": shape, "data_offsets": offsets });
            table.insert((*name).to_owned(), entry);
            data.extend_from_slice(bytes);
        }
        let header = serde_json::to_vec(&table).unwrap();
        let file = [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat();
        std::fs::write(path, file).unwrap();
    }

    fn f32_bytes(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn two_small_tensors_are_read_and_others_for_each_version() {
        let dir = tempfile::tempdir().unwrap();
        let bf16 = [0x3f80_u16, 0xbf80, 0x4000].map(u16::to_le_bytes).concat();
        let f16 = [0x3c00_u16, 0x0001].map(u16::to_le_bytes).concat();
        write(
            &dir.path().join("model-1.safetensors"),
            &[
                ("a.matrix", "F32", &[2, 3], f32_bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])),
                ("b.norm", "BF16", &[3], bf16),
                ("counts", "I64", &[1], vec![0; 8]),
            ],
        );
        write(&dir.path().join("model-2.safetensors"), &[("c.half", "F16", &[2], f16)]);
        std::fs::write(dir.path().join("config.json"), "{}").unwrap();
        let matrix = Excerpt { name: "a.matrix".into(), rows: 1, values: vec![1.0, 2.0, 3.0] };
        let norm = Excerpt { name: "b.norm".into(), rows: 3, values: vec![1.0, -1.0, 2.0] };
        let half = Excerpt { name: "c.half".into(), rows: 2, values: vec![1.0, 2.0_f32.powi(-24)] };
        assert_eq!(excerpts(dir.path(), 0).unwrap(), [matrix.clone(), norm.clone()]);
        assert_eq!(excerpts(dir.path(), 1).unwrap(), [half.clone(), matrix]);
        assert_eq!(excerpts(dir.path(), 2).unwrap(), [norm, half]);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(excerpts(dir.path(), 0).unwrap_err().contains("no small tensor"));
        assert!(excerpts(&dir.path().join("gone"), 0).unwrap_err().contains("gone"));
        for bytes in [&b"short"[..], &[255; 16], &[4, 0, 0, 0, 0, 0, 0, 0, b'n', b'o', b'p', b'e']] {
            std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
            assert!(excerpts(dir.path(), 0).unwrap_err().contains("model.safetensors"));
        }
    }

    #[test]
    fn an_engine_may_hold_a_narrower_type_and_nothing_else() {
        let excerpt = Excerpt { name: "w".into(), rows: 1, values: vec![0.1, -1.0, 1e-6, 0.0] };
        let rows = [
            ("the very values", vec![f64::from(0.1_f32), -1.0, f64::from(1e-6_f32), 0.0], true),
            ("as bfloat16", vec![0.100_097_656_25, -1.0, 9.983_778e-7_f32.into(), 0.0], true),
            ("as float16", vec![0.099_975_585_937_5, -1.0, 17.0 * 2.0_f64.powi(-24), -0.0], true),
            ("one value of an older version", vec![f64::from(0.1_f32), -1.0, f64::from(1.1e-6_f32), 0.0], false),
            ("the types mixed", vec![0.100_097_656_25, -1.0, f64::from(1e-6_f32), 0.0], false),
            ("not a number", vec![f64::NAN, -1.0, f64::from(1e-6_f32), 0.0], false),
            ("too few", vec![f64::from(0.1_f32)], false),
        ];
        for (name, answered, is_same) in rows {
            assert_eq!(compare(&excerpt, &answered).is_ok(), is_same, "{name}: {:?}", compare(&excerpt, &answered));
        }
        let said = compare(&excerpt, &[0.1, -1.0, 1e-6, 5.0]).unwrap_err();
        assert!(said.contains("value 0 of w") || said.contains("value 3 of w"), "{said}");
    }
}
