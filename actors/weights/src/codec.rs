//! Tensors as bytes: whole, or as what changed since a base; lossless.
//!
//! A tensor is a row of words of 1, 2, 4 or 8 bytes (its dtype's width). The sparse form lists the changed words: the
//! number of unchanged words before each, in a variable number of bytes, then the XOR of old and new word, one plane of
//! bytes after the other, because the high bytes of a small change are nearly always zero. The dense form is the XOR of
//! all words, in planes; raw is the words themselves, in planes. All three are compressed with zstd; [`encode`] takes the
//! smallest that applies. Decoding checks every length and never reads or writes outside.

use std::io::Read;

use serde::{Deserialize, Serialize};

/// How a tensor's bytes are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encoding {
    /// The same as in the base; no bytes at all.
    Same,
    /// The changed words only.
    Sparse,
    /// The XOR of all words with the base.
    Dense,
    /// The words themselves; needs no base.
    Raw,
}

/// Above this fraction of changed words a list of them is not smaller than all of them.
const SPARSE_LIMIT: f64 = 0.25;

/// Encodes `new`, against `base` of the same length where there is one. `width` is the word's size in bytes.
/// Returns the encoding, its bytes, and how many words changed (all, without a base).
pub fn encode(base: Option<&[u8]>, new: &[u8], width: usize, level: i32) -> std::io::Result<(Encoding, Vec<u8>, u64)> {
    let words = (new.len() / width) as u64;
    let Some(base) = base.filter(|base| base.len() == new.len()) else {
        return Ok((Encoding::Raw, zstd::bulk::compress(&planes(new, width), level)?, words));
    };
    if base == new {
        return Ok((Encoding::Same, Vec::new(), 0));
    }
    let changed: Vec<usize> =
        (0..new.len() / width).filter(|word| base[word * width..][..width] != new[word * width..][..width]).collect();
    let (encoding, plain) = if changed.len() as f64 <= SPARSE_LIMIT * words as f64 {
        (Encoding::Sparse, sparse(base, new, width, &changed))
    } else {
        let difference: Vec<u8> = base.iter().zip(new).map(|(old, new)| old ^ new).collect();
        (Encoding::Dense, planes(&difference, width))
    };
    let bytes = zstd::bulk::compress(&plain, level)?;
    let raw = zstd::bulk::compress(&planes(new, width), level)?;
    let count = changed.len() as u64;
    Ok(if raw.len() < bytes.len() { (Encoding::Raw, raw, count) } else { (encoding, bytes, count) })
}

/// Decodes a tensor into `tensor`, which holds the base's bytes before (anything for [`Encoding::Raw`]) and the new ones
/// after. On error `tensor` may be partly changed: decode into a copy.
pub fn decode(encoding: Encoding, bytes: &[u8], tensor: &mut [u8], width: usize) -> Result<(), String> {
    if width == 0 || !tensor.len().is_multiple_of(width) {
        return Err(format!("{} bytes are no row of words of {width}", tensor.len()));
    }
    match encoding {
        Encoding::Same if bytes.is_empty() => Ok(()),
        Encoding::Same => Err("an unchanged tensor has no bytes".to_owned()),
        Encoding::Raw => {
            let plain = decompress(bytes, tensor.len())?;
            expect_length(&plain, tensor.len())?;
            for (place, value) in tensor.iter_mut().enumerate() {
                *value = plain[plane_index(place, width, plain.len())];
            }
            Ok(())
        }
        Encoding::Dense => {
            let plain = decompress(bytes, tensor.len())?;
            expect_length(&plain, tensor.len())?;
            for (place, value) in tensor.iter_mut().enumerate() {
                *value ^= plain[plane_index(place, width, plain.len())];
            }
            Ok(())
        }
        Encoding::Sparse => apply_sparse(&decompress(bytes, sparse_bound(tensor.len(), width))?, tensor, width),
    }
}

/// The most bytes that a sparse list can take: per word its planes and the longest gap, and the count.
fn sparse_bound(tensor_bytes: usize, width: usize) -> usize {
    8 + (tensor_bytes / width) * (width + 10)
}

fn sparse(base: &[u8], new: &[u8], width: usize, changed: &[usize]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(8 + changed.len() * (width + 1));
    plain.extend_from_slice(&(changed.len() as u64).to_le_bytes());
    let mut next = 0;
    for word in changed {
        push_number(&mut plain, (word - next) as u64);
        next = word + 1;
    }
    for plane in 0..width {
        plain.extend(changed.iter().map(|word| base[word * width + plane] ^ new[word * width + plane]));
    }
    plain
}

fn apply_sparse(plain: &[u8], tensor: &mut [u8], width: usize) -> Result<(), String> {
    let (count, mut rest) = plain.split_first_chunk::<8>().ok_or("the list has no count")?;
    let count = usize::try_from(u64::from_le_bytes(*count)).map_err(|_| "the count is too large")?;
    let words = tensor.len() / width;
    if count > words {
        return Err(format!("{count} changes in {words} words"));
    }
    let mut places = Vec::with_capacity(count);
    let mut next = 0_usize;
    for _ in 0..count {
        let gap = usize::try_from(take_number(&mut rest)?).map_err(|_| "a gap is too large")?;
        let word = next.checked_add(gap).filter(|word| *word < words).ok_or("a change lies outside the tensor")?;
        places.push(word);
        next = word + 1;
    }
    expect_length(rest, count * width)?;
    for (plane, differences) in rest.chunks(count.max(1)).enumerate() {
        for (word, difference) in places.iter().zip(differences) {
            tensor[word * width + plane] ^= difference;
        }
    }
    Ok(())
}

/// All first bytes of the words, then all second bytes, and so on.
fn planes(bytes: &[u8], width: usize) -> Vec<u8> {
    (0..width).flat_map(|plane| bytes.iter().skip(plane).step_by(width).copied()).collect()
}

fn plane_index(place: usize, width: usize, length: usize) -> usize {
    (place % width) * (length / width) + place / width
}

fn push_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(rest: &mut &[u8]) -> Result<u64, String> {
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first().ok_or("the list ends in the middle of a gap")?;
        *rest = after;
        number |= u64::from(byte & 0x7f).checked_shl(shift).ok_or("a gap is too large")?;
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err("a gap is too large".to_owned())
}

fn expect_length(bytes: &[u8], expected: usize) -> Result<(), String> {
    if bytes.len() == expected { Ok(()) } else { Err(format!("{} bytes instead of {expected}", bytes.len())) }
}

/// Decompresses at most `limit` bytes: a damaged payload must not fill the memory.
fn decompress(bytes: &[u8], limit: usize) -> Result<Vec<u8>, String> {
    let decoder = zstd::stream::read::Decoder::new(bytes).map_err(|error| error.to_string())?;
    let mut plain = Vec::new();
    decoder.take(limit as u64 + 1).read_to_end(&mut plain).map_err(|error| error.to_string())?;
    if plain.len() > limit { Err(format!("more than {limit} bytes")) } else { Ok(plain) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(base: Option<&[u8]>, new: &[u8], width: usize) -> (Encoding, usize) {
        let (encoding, bytes, _) = encode(base, new, width, 1).unwrap();
        let mut tensor = base.map_or_else(|| vec![0xAA; new.len()], <[u8]>::to_vec);
        decode(encoding, &bytes, &mut tensor, width).unwrap();
        assert_eq!(tensor, new);
        (encoding, bytes.len())
    }

    #[test]
    fn each_form_is_used_where_it_is_smallest() {
        let mut random = greenroom_core::Seed::new(1).random();
        let base: Vec<u8> = (0..80_000).map(|_| rand::Rng::random(&mut random)).collect();
        let mut few = base.clone();
        for word in (0..40_000).step_by(100) {
            few[word * 2] ^= 1;
        }
        let many: Vec<u8> = base.chunks(2).flat_map(|word| [word[0] ^ 1, word[1]]).collect();
        let constant = vec![0; base.len()];
        assert_eq!(round_trip(Some(&base), &base, 2).0, Encoding::Same);
        assert_eq!(round_trip(None, &base, 2).0, Encoding::Raw);
        assert_eq!(round_trip(Some(&base), &constant, 2).0, Encoding::Raw);
        let (encoding, bytes) = round_trip(Some(&base), &few, 2);
        assert_eq!(encoding, Encoding::Sparse);
        assert!(bytes < base.len() / 50, "1 % of changes took {bytes} of {} bytes", base.len());
        assert_eq!(round_trip(Some(&base), &many, 2).0, Encoding::Dense);
    }

    proptest! {
        #[test]
        fn every_change_reads_back(
            width in prop::sample::select(vec![1_usize, 2, 4, 8]),
            base in prop::collection::vec(any::<u64>(), 0..200),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u64>()), 0..50),
        ) {
            let mut new = base.clone();
            for (place, value) in changes {
                if !new.is_empty() {
                    let place = place.index(new.len());
                    new[place] = value;
                }
            }
            let bytes = |words: &[u64]| -> Vec<u8> { words.iter().flat_map(|word| word.to_le_bytes()).collect() };
            round_trip(Some(&bytes(&base)), &bytes(&new), width);
            round_trip(None, &bytes(&new), width);
        }

        #[test]
        fn damaged_bytes_are_an_error_or_another_tensor_but_never_a_crash(
            mut payload in prop::collection::vec(any::<u8>(), 0..300),
            encoding in prop::sample::select(vec![Encoding::Same, Encoding::Sparse, Encoding::Dense, Encoding::Raw]),
            compressed in any::<bool>(),
        ) {
            if compressed {
                payload = zstd::bulk::compress(&payload, 1).unwrap();
            }
            let _ = decode(encoding, &payload, &mut [0; 64], 4);
        }
    }
}
