//! Pages of the codes that failures in messages carry.

use greenroom_core::ErrorPage;

/// The pages of this crate's codes.
pub const ERRORS: &[ErrorPage] = &[ErrorPage {
    code: "GR0101",
    cause: "an identifier read from a file or a peer has another shape than expected",
    remedy: "the message shows the text; the file was written by another version or damaged",
}];
