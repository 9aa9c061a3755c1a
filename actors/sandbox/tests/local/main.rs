//! The local provider keeps its promises, for root and for an ordinary user alike.
mod exec;
mod support;
