//! The local provider keeps its promises, for root and for an ordinary user alike: run the binary as both.

mod escape;
mod exec;
mod files;
mod life;
mod plain;
mod support;
