//! Batches of groups of rollouts.
