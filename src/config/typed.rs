//! A tree of values as a typed configuration, with errors that a person can use: where, and what would be right there.
//!
//! Serde hands a deserializer's error type the place's expectations (a kind, a list of words, a list of keys) but renders
//! them as text in its own words; [`Wrong`] keeps them apart. Deserializing stops at the first wrong place; who wants all of
//! them takes that place out and tries again.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    self, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess, Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_json::Value;

/// One wrong place of a tree.
#[derive(Debug)]
pub(super) struct Wrong {
    /// The keys that lead to it; an entry of a list is `[n]`.
    pub(super) path: Vec<String>,
    /// What is wrong there.
    pub(super) what: What,
}

/// What is wrong with a place.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The value is of another kind, or outside of the kind's range. What would be right, in serde's words.
    Kind(String),
    /// The value is none of these words.
    Word(Vec<String>),
    /// The table has a key that it does not know.
    UnknownKey {
        /// The key.
        key: String,
        /// Those that it knows.
        known: Vec<String>,
    },
    /// The table lacks a key.
    MissingKey(String),
    /// Something else, in words that follow the key.
    Other(String),
}

impl Wrong {
    fn here(what: What) -> Self {
        Self { path: Vec::new(), what }
    }

    fn below(mut self, step: String) -> Self {
        self.path.insert(0, step);
        self
    }
}

fn owned(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl fmt::Display for Wrong {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {:?}", self.path.join("."), self.what)
    }
}

impl std::error::Error for Wrong {}

impl de::Error for Wrong {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::here(What::Other(format!("cannot be used: {message}")))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::here(What::Kind(expected.to_string()))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::here(What::Kind(expected.to_string()))
    }

    fn invalid_length(_: usize, expected: &dyn Expected) -> Self {
        Self::here(What::Kind(expected.to_string()))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::here(What::Word(owned(expected)))
    }

    fn unknown_field(key: &str, expected: &'static [&'static str]) -> Self {
        Self::here(What::UnknownKey { key: key.to_owned(), known: owned(expected) })
    }

    fn missing_field(key: &'static str) -> Self {
        Self::here(What::MissingKey(key.to_owned()))
    }
}

/// A value that somebody gave.
#[derive(Clone, Copy)]
pub(super) struct Given<'a>(pub(super) &'a Value);

impl<'de> Deserializer<'de> for Given<'de> {
    type Error = Wrong;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(truth) => visitor.visit_bool(*truth),
            Value::Number(number) => match (number.as_u64(), number.as_i64()) {
                (Some(number), _) => visitor.visit_u64(number),
                (_, Some(number)) => visitor.visit_i64(number),
                _ => visitor.visit_f64(number.as_f64().unwrap_or(f64::NAN)),
            },
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Array(values) => visitor.visit_seq(List { values, next: 0 }),
            Value::Object(table) => visitor.visit_map(Table { entries: table.iter(), value: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Wrong> {
        if self.0.is_null() { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Wrong> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Wrong> {
        let a_table = || Wrong::here(What::Kind(format!("a table with one of the keys {}", variants.join(", "))));
        match self.0 {
            Value::String(word) => {
                let unit: Result<_, Wrong> = visitor.visit_enum(word.as_str().into_deserializer());
                // a word that stands for a table needs what is in the table
                unit.map_err(|wrong| if matches!(wrong.what, What::Kind(_)) { a_table() } else { wrong })
            }
            Value::Object(table) if table.len() == 1 => {
                visitor.visit_enum(MapAccessDeserializer::new(Table { entries: table.iter(), value: None }))
            }
            Value::Object(_) => Err(a_table()),
            _ => Err(Wrong::here(What::Word(owned(variants)))),
        }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

struct Table<'a> {
    entries: serde_json::map::Iter<'a>,
    value: Option<(&'a String, &'a Value)>,
}

impl<'de> MapAccess<'de> for Table<'de> {
    type Error = Wrong;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Wrong> {
        self.value = self.entries.next();
        self.value.map(|(key, _)| seed.deserialize(key.as_str().into_deserializer())).transpose()
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Wrong> {
        let Some((key, value)) = self.value.take() else {
            return Err(Wrong::here(What::Other("has a value without a key".to_owned())));
        };
        seed.deserialize(Given(value)).map_err(|wrong| wrong.below(key.clone()))
    }
}

struct List<'a> {
    values: &'a [Value],
    next: usize,
}

impl<'de> SeqAccess<'de> for List<'de> {
    type Error = Wrong;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Wrong> {
        let place = self.next;
        self.next += 1;
        let value = self.values.get(place);
        value.map(|value| seed.deserialize(Given(value)).map_err(|wrong| wrong.below(format!("[{place}]")))).transpose()
    }
}
