//! The tokenizer and the chat template of a model: how messages become token ids.
//!
//! * [`Tokenizer`] — a Hugging Face `tokenizer.json`, with the ids that end a turn read from the model's directory.
//! * [`TextStream`] — token ids back to text as they arrive, never half a character.
//! * [`ChatTemplate`] — a Hugging Face chat template, rendered as `transformers` renders it.
//!
//! Invariants: nothing here is random; the same directory gives the same ids on every machine. All three are cheap to share
//! behind an `Arc` and safe to use from several threads. A missing or damaged file is an error that names the file and the
//! remedy; nothing here panics on a file's content.

mod error;
mod model_files;
mod stream;
mod template;
mod tokenizer;

pub use error::{ERRORS, TokensError};
pub use stream::TextStream;
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;
