//! The forward pass of generation: rows of many requests in one pass, prompt and sampled tokens alike.
//!
//! A [`Row`] is one token of one request at its position. Rows of a request come in ascending order, and everything before
//! them must already be in the arena or earlier in the same call. There are two plans:
//!
//! * [`RowPlan::Fast`]: all rows in one pass; rows of the same request that follow one another attend in one call.
//! * [`RowPlan::Invariant`]: what a row yields depends on its own request's tokens only, bit for bit: not on its
//!   neighbours, not on how its prompt was cut or which prefix was cached. By construction: every pass has exactly
//!   [`INVARIANT_ROWS`] rows (padded with scratch), so each matrix product has the same shape always, and row `i` of a
//!   product does not depend on the other rows; attention is one call per row, whose shape depends on the row's position
//!   only, on operands that are aligned alike. This costs about a third of the speed with many requests (prompts more than
//!   decoding), and more for a lone one.

use tch::{Kind, Tensor};

use super::Network;
use super::arena::KeyValueArena;
use super::layer::AttentionInput;
use crate::error::PolicyError;

/// Rows of a pass under [`RowPlan::Invariant`]. Enough that the matrix library takes its general path, few enough that a
/// lone request wastes little.
pub const INVARIANT_ROWS: usize = 32;

/// libtorch's own allocations begin on such a line.
const CACHE_LINE_BYTES: usize = 64;

/// One token to compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Row {
    /// The slot of its request.
    pub slot: usize,
    /// Its place in the sequence, from 0.
    pub position: usize,
    /// The token.
    pub id: u32,
}

/// How rows are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowPlan {
    /// As many as there are.
    Fast,
    /// In passes of constant shape; see the module's description.
    Invariant,
}

/// Rows of one slot at consecutive positions.
struct Run {
    first: usize,
    count: usize,
    slot: usize,
    start: usize,
}

impl Network {
    /// Computes rows, keeps their keys and values in the arena and returns the logits (f32, `[wanted, vocab_size]`, on the
    /// network's device) of those rows whose index is in `wanted` (ascending); `None` when none is.
    ///
    /// # Errors
    /// [`PolicyError::Input`] for a row outside vocabulary, slots, slot length or context; [`PolicyError::Torch`].
    pub fn forward_rows(
        &self,
        arena: &mut KeyValueArena,
        rows: &[Row],
        wanted: &[usize],
        plan: RowPlan,
    ) -> Result<Option<Tensor>, PolicyError> {
        let _guard = tch::no_grad_guard();
        self.check_rows(arena, rows)?;
        let pass_rows = match plan {
            RowPlan::Fast => rows.len().max(1),
            RowPlan::Invariant => INVARIANT_ROWS,
        };
        let mut logits = Vec::new();
        for (number, pass) in rows.chunks(pass_rows).enumerate() {
            let first = number * pass_rows;
            let hidden = self.run_pass(arena, pass, pass_rows, plan)?;
            let inside = wanted.iter().filter(|&&index| index >= first && index < first + pass.len());
            let inside: Vec<i64> = inside.map(|index| (index - first) as i64).collect();
            if inside.is_empty() {
                continue;
            }
            let inside_index = Tensor::f_from_slice(&inside)?.f_to(self.device())?;
            let of_pass = match plan {
                RowPlan::Fast if inside.len() == pass.len() => self.logits(&hidden)?,
                RowPlan::Fast => self.logits(&hidden.f_index_select(0, &inside_index)?)?,
                RowPlan::Invariant => self.logits(&hidden)?.f_index_select(0, &inside_index)?,
            };
            logits.push(of_pass.f_to_kind(Kind::Float)?);
        }
        Ok(if logits.is_empty() { None } else { Some(Tensor::f_cat(&logits, 0)?) })
    }

    fn check_rows(&self, arena: &KeyValueArena, rows: &[Row]) -> Result<(), PolicyError> {
        let context = self.config.max_position_embeddings.min(arena.slot_length());
        for row in rows {
            if row.slot >= arena.slots() || row.position >= context || row.id as usize >= self.config.vocab_size {
                return Err(PolicyError::Input(format!("row {row:?} is outside slots, context or vocabulary")));
            }
        }
        Ok(())
    }

    /// One pass over `rows`, padded to `pass_rows`.
    fn run_pass(
        &self,
        arena: &mut KeyValueArena,
        rows: &[Row],
        pass_rows: usize,
        plan: RowPlan,
    ) -> Result<Tensor, PolicyError> {
        let padding = pass_rows - rows.len();
        let column = |value: &dyn Fn(&Row) -> i64, filler: i64| -> Result<Tensor, PolicyError> {
            let values: Vec<i64> = rows.iter().map(value).chain(std::iter::repeat_n(filler, padding)).collect();
            Ok(Tensor::f_from_slice(&values)?.f_to(self.device())?)
        };
        let ids = column(&|row| i64::from(row.id), 0)?;
        let positions = column(&|row| row.position as i64, 0)?;
        let places = column(&|row| arena.row(row.slot, row.position), arena.scratch_row())?;
        let runs = find_runs(rows, plan);
        self.run(&ids, &positions, &mut |layer, heads| {
            arena.write(layer, &places, &heads.key, &heads.value)?;
            attend_cached(arena, layer, heads, &runs, padding)
        })
    }
}

fn find_runs(rows: &[Row], plan: RowPlan) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        match runs.last_mut() {
            Some(run) if plan == RowPlan::Fast && run.slot == row.slot && run.start + run.count == row.position => {
                run.count += 1;
            }
            _ => runs.push(Run { first: index, count: 1, slot: row.slot, start: row.position }),
        }
    }
    runs
}

/// `[rows, heads * head_dim]`, zero for padding.
fn attend_cached(
    arena: &KeyValueArena,
    layer: usize,
    heads: &AttentionInput,
    runs: &[Run],
    padding: usize,
) -> Result<Tensor, PolicyError> {
    let [rows, query_heads, head_dim] = [0, 1, 2].map(|dimension| heads.query.size()[dimension]);
    let key_heads = heads.key.size()[1];
    let grouped_shape = [rows, key_heads, query_heads / key_heads, head_dim];
    let query = heads.query.f_reshape(grouped_shape)?;
    let mut parts = Vec::with_capacity(runs.len() + 1);
    for run in runs {
        let (key, value) = arena.read(layer, run.slot, run.start + run.count)?;
        let of_run = align(query.f_narrow(0, run.first as i64, run.count as i64)?, &grouped_shape)?;
        parts.push(if run.count == 1 {
            attend_one(&of_run, &key, &value)?
        } else {
            attend_run(&of_run, &key, &value, run)?
        });
    }
    if padding > 0 {
        let mut shape = grouped_shape;
        shape[0] = padding as i64;
        parts.push(Tensor::f_zeros(shape, (query.kind(), query.device()))?);
    }
    let attended = if parts.len() == 1 { parts.remove(0) } else { Tensor::f_cat(&parts, 0)? };
    Ok(attended.f_reshape([rows, query_heads * head_dim])?)
}

/// The matrix library chooses its ways by the alignment of what it is given, and the last bits with them: a row that does
/// not begin on a cache line, as rows of odd widths may, is copied to where it does.
fn align(rows: Tensor, whole_shape: &[i64; 4]) -> Result<Tensor, PolicyError> {
    let row_bytes = whole_shape[1..].iter().product::<i64>() as usize * rows.kind().elt_size_in_bytes();
    if row_bytes.is_multiple_of(CACHE_LINE_BYTES) {
        return Ok(rows);
    }
    Ok(rows.f_to_device_(rows.device(), rows.kind(), false, true)?)
}

/// One row, `[1, key_heads, group, head_dim]`. All query heads of a group see the same keys, so that they can stand where
/// attention has its queries: one product of several rows instead of several of one row, which are slow.
fn attend_one(query: &Tensor, key: &Tensor, value: &Tensor) -> Result<Tensor, PolicyError> {
    Ok(Tensor::f_scaled_dot_product_attention(query, key, value, None::<&Tensor>, 0.0, false, None, false)?)
}

/// Several consecutive rows of a request, `[count, key_heads, group, head_dim]`, each seeing what lies before it.
fn attend_run(query: &Tensor, key: &Tensor, value: &Tensor, run: &Run) -> Result<Tensor, PolicyError> {
    let shape = query.size();
    let query = query.f_flatten(1, 2)?.f_transpose(0, 1)?.f_unsqueeze(0)?;
    let grouped = shape[2] > 1;
    let mask = if run.start > 0 { Some(causal_mask(run, &query)?) } else { None };
    let causal = run.start == 0;
    let attended = Tensor::f_scaled_dot_product_attention(&query, key, value, mask, 0.0, causal, None, grouped)?;
    Ok(attended.f_squeeze_dim(0)?.f_transpose(0, 1)?.f_reshape(shape)?)
}

/// `[count, start + count]`, true where a query may look: everything up to itself.
fn causal_mask(run: &Run, query: &Tensor) -> Result<Tensor, PolicyError> {
    let size = [run.count as i64, (run.start + run.count) as i64];
    Ok(Tensor::f_ones(size, (Kind::Bool, query.device()))?.f_tril(run.start as i64)?)
}
