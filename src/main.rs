//! The `greenroom` binary.
fn main() {}
