//! Untrusted JSON: parsed strictly into a type, or as a generic value that keeps repeated fields,
//! so that they can be refused.

use crate::printable;
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error, MapAccess, SeqAccess, Visitor,
};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Number;
use std::fmt;

/// Reads text of up to `max_bytes`.
///
/// # Errors
///
/// The text is longer, or something else. The reason is the reader's message, with the position;
/// printable, and cut off if it is long.
pub(crate) fn read<T: DeserializeOwned>(text: &[u8], max_bytes: usize) -> Result<T, String> {
    const LONGEST: usize = 200;
    if text.len() > max_bytes {
        return Err(format!("it has {} bytes", text.len()));
    }
    serde_json::from_slice(text).map_err(|error| {
        printable::cut(&printable::replaced(&error.to_string()), LONGEST).to_owned()
    })
}

/// A JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Null,
    Bool(bool),
    Number(Number),
    Text(String),
    List(Vec<Value>),
    /// Fields in their order.
    Object(Vec<(String, Value)>),
}

impl Value {
    /// The value for an error message: as JSON, cut off if it is long, and nothing in it that a
    /// terminal would obey.
    pub(crate) fn shown(&self) -> String {
        const LONGEST: usize = 40;
        // Nothing in it fails to serialize.
        let text = printable::replaced(&serde_json::to_string(self).unwrap_or_default());
        match text.char_indices().nth(LONGEST) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text,
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(value) => value.serialize(serializer),
            Self::Text(value) => serializer.serialize_str(value),
            Self::List(values) => serializer.collect_seq(values),
            Self::Object(fields) => {
                let mut map = serializer.serialize_map(Some(fields.len()))?;
                for (name, value) in fields {
                    map.serialize_entry(name, value)?;
                }
                map.end()
            }
        }
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("not a finite number"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::Text(value.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element()? {
            values.push(value);
        }
        Ok(Value::List(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = map.next_entry()? {
            fields.push(field);
        }
        Ok(Value::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}

    #[test]
    fn text_is_read_up_to_its_limit_and_refused_in_few_printable_words() {
        assert_eq!(read::<u8>(b"17", 2), Ok(17));
        assert_eq!(read::<u8>(b"017", 2), Err("it has 3 bytes".to_owned()));
        let text = format!(r#"{{"\u001b{}":0}}"#, "ü".repeat(500));
        let reason = read::<Nothing>(text.as_bytes(), 2000).unwrap_err();
        assert!(reason.starts_with("unknown field `\u{fffd}ü"), "{reason}");
        assert!((199..=200).contains(&reason.len()), "{reason}");
        assert!(reason.chars().all(printable::is_printable), "{reason}");
    }

    #[test]
    fn what_is_read_is_what_is_shown() {
        for text in [r#"{"a":1,"a":[null,true,-2,0.5,"x"]}"#, "17", "[]", r#""é""#, "{}"] {
            assert_eq!(serde_json::from_str::<Value>(text).unwrap().shown(), text);
        }
        assert_eq!(Value::Text("1".repeat(3000)).shown().len(), 43);
        assert_eq!(
            Value::Text("a\u{9b}2\u{202e}b\u{1b}".into()).shown(),
            "\"a\u{fffd}2\u{fffd}b\\u001b\""
        );
    }
}
