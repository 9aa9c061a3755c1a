//! One episode.
