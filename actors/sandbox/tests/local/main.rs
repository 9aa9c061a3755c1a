//! The local provider keeps its promises, for root and for an ordinary user alike: run the binary as both.

#![allow(clippy::unwrap_used, clippy::panic)] // a failing test panics

mod calls;
mod escape;
mod exec;
mod files;
mod life;
mod plain;
mod pool;
mod support;
