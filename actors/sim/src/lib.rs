//! Simulated engine, sandbox, trainer: the same messages in virtual time
