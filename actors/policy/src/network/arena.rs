//! Keys and values of running requests: one tensor each per layer, cut into slots of equal length.
//!
//! Layout `[(slots + 1) * slot_length, key_value_heads * head_dim]`, so that new rows of any requests are written with one
//! indexed copy, and a slot's first `n` rows are a strided view without a copy. The slot after the last is scratch: padding
//! rows write there and nobody reads it. Memory is not touched before use: on the CPU an unused slot costs address space
//! only. Slots begin on cache lines, so that the matrix library treats them all alike.

use tch::{Device, Kind, Tensor};

use crate::error::PolicyError;
use crate::model::ModelConfig;

/// Sixteen rows are whole cache lines, whatever the (even) width of a row and the kind of its numbers.
const SLOT_ROWS_MULTIPLE: usize = 16;

/// Keys and values, by layer.
#[derive(Debug)]
pub struct KeyValueArena {
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    slots: usize,
    slot_length: usize,
    /// Rows from one slot to the next.
    slot_rows: usize,
    heads: i64,
    head_dim: i64,
}

impl KeyValueArena {
    /// An arena of `slots` sequences of up to `slot_length` tokens.
    ///
    /// # Errors
    /// [`PolicyError::Torch`] when the memory is not to be had.
    pub fn new(
        config: &ModelConfig,
        slots: usize,
        slot_length: usize,
        kind: Kind,
        device: Device,
    ) -> Result<Self, PolicyError> {
        let (heads, head_dim) = (config.num_key_value_heads as i64, config.head_dim as i64);
        let slot_rows = slot_length.next_multiple_of(SLOT_ROWS_MULTIPLE);
        let shape = [((slots + 1) * slot_rows) as i64, heads * head_dim];
        let make = || -> Result<Vec<Tensor>, PolicyError> {
            (0..config.num_hidden_layers).map(|_| Ok(Tensor::f_empty(shape, (kind, device))?)).collect()
        };
        Ok(Self { keys: make()?, values: make()?, slots, slot_length, slot_rows, heads, head_dim })
    }

    /// Number of slots, scratch not counted.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// The most tokens a slot holds.
    #[must_use]
    pub fn slot_length(&self) -> usize {
        self.slot_length
    }

    /// The row of the arena that holds a position of a slot.
    pub(crate) fn row(&self, slot: usize, position: usize) -> i64 {
        (slot * self.slot_rows + position) as i64
    }

    /// The row that padding writes to.
    pub(crate) fn scratch_row(&self) -> i64 {
        self.row(self.slots, 0)
    }

    /// Writes `key` and `value` (`[T, key_value_heads, head_dim]`) of a layer into the given rows.
    pub(crate) fn write(
        &mut self,
        layer: usize,
        rows: &Tensor,
        key: &Tensor,
        value: &Tensor,
    ) -> Result<(), PolicyError> {
        let flat = [-1, self.heads * self.head_dim];
        let _ = self.keys[layer].f_index_copy_(0, rows, &key.f_reshape(flat)?)?;
        let _ = self.values[layer].f_index_copy_(0, rows, &value.f_reshape(flat)?)?;
        Ok(())
    }

    /// The first `length` keys and values of a slot, each a view `[1, key_value_heads, length, head_dim]`.
    pub(crate) fn read(&self, layer: usize, slot: usize, length: usize) -> Result<(Tensor, Tensor), PolicyError> {
        let width = self.heads * self.head_dim;
        let size = [1, self.heads, length as i64, self.head_dim];
        let strides = [0, self.head_dim, width, 1];
        let offset = self.row(slot, 0) * width;
        let view = |whole: &Tensor| whole.f_as_strided(size, strides, offset);
        Ok((view(&self.keys[layer])?, view(&self.values[layer])?))
    }

    /// Copies the first `length` tokens of one slot into another.
    ///
    /// # Errors
    /// [`PolicyError::Input`] for a slot or length that does not exist.
    pub fn copy_prefix(&mut self, from: usize, to: usize, length: usize) -> Result<(), PolicyError> {
        if from >= self.slots || to >= self.slots || length > self.slot_length {
            return Err(PolicyError::Input(format!("cannot copy {length} tokens of slot {from} to slot {to}")));
        }
        if from == to || length == 0 {
            return Ok(());
        }
        let (source, target) = (self.row(from, 0), self.row(to, 0));
        for whole in self.keys.iter().chain(&self.values) {
            let prefix = whole.f_narrow(0, source, length as i64)?;
            whole.f_narrow(0, target, length as i64)?.f_copy_(&prefix)?;
        }
        Ok(())
    }
}
