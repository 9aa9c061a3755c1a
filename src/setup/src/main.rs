//! Sets up what greenroom needs.
fn main() {}
