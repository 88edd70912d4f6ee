//! JSON as a tree, with the keys of an object in their order. A key that stands twice is refused.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use culvert_domain::error::{Code, Error, Result};

/// JSON (RFC 8259), but for objects with a key that stands twice.
#[derive(Clone, Debug, PartialEq)]
pub enum JsonTree {
    Null,
    Bool(bool),
    Number(serde_json::Number),
    Text(String),
    List(Vec<JsonTree>),
    Object(Vec<(String, JsonTree)>),
}

impl JsonTree {
    /// Parses a request's body.
    ///
    /// # Errors
    ///
    /// If the bytes are no valid JSON, an object has the same key twice, or the value is no object.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let tree: Self = serde_json::from_slice(bytes)
            .map_err(|error| Error::new(Code::InvalidJson, format!("The body is not valid JSON: {error}.")))?;
        match tree {
            JsonTree::Object(_) => Ok(tree),
            _ => Err(Error::of(Code::InvalidJsonObject)),
        }
    }

    /// The same text for every spelling of the same value: no spaces, keys in order, and numbers as
    /// JCS writes them (RFC 8785, section 3.2.2.3), so that `7`, `7.0` and `70e-1` are one.
    pub fn canonical(&self) -> String {
        let mut text = String::new();
        self.append_to(&mut text);
        text
    }

    fn append_to(&self, text: &mut String) {
        match self {
            JsonTree::Null => text.push_str("null"),
            JsonTree::Bool(flag) => text.push_str(if *flag { "true" } else { "false" }),
            JsonTree::Number(number) => text.push_str(&canonical_number(number)),
            JsonTree::Text(value) => text.push_str(&quoted(value)),
            JsonTree::List(items) => {
                for (index, item) in items.iter().enumerate() {
                    text.push(if index == 0 { '[' } else { ',' });
                    item.append_to(text);
                }
                text.push_str(if items.is_empty() { "[]" } else { "]" });
            }
            JsonTree::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
                for (index, (name, value)) in fields.iter().enumerate() {
                    text.push(if index == 0 { '{' } else { ',' });
                    text.push_str(&quoted(name));
                    text.push(':');
                    value.append_to(text);
                }
                text.push_str(if fields.is_empty() { "{}" } else { "}" });
            }
        }
    }
}

/// Whole numbers without a fraction; others as they are, for one number has one shortest text.
fn canonical_number(number: &serde_json::Number) -> String {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    match number.as_f64().filter(|float| number.is_f64() && float.fract() == 0.0 && float.abs() <= EXACT) {
        Some(whole) => format!("{}", whole as i64),
        None => number.to_string(),
    }
}

fn quoted(text: &str) -> String {
    // Writing a text into a text does not fail.
    serde_json::to_string(text).unwrap_or_default()
}

impl<'de> Deserialize<'de> for JsonTree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonTreeVisitor)
    }
}

struct JsonTreeVisitor;

impl<'de> Visitor<'de> for JsonTreeVisitor {
    type Value = JsonTree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<JsonTree, E> {
        Ok(JsonTree::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<JsonTree, E> {
        Ok(JsonTree::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<JsonTree, E> {
        Ok(JsonTree::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<JsonTree, E> {
        Ok(JsonTree::Number(number.into()))
    }

    fn visit_f64<E: de::Error>(self, number: f64) -> Result<JsonTree, E> {
        serde_json::Number::from_f64(number).map(JsonTree::Number).ok_or_else(|| E::custom("a number out of range"))
    }

    fn visit_str<E>(self, text: &str) -> Result<JsonTree, E> {
        Ok(JsonTree::Text(text.into()))
    }

    fn visit_string<E>(self, text: String) -> Result<JsonTree, E> {
        Ok(JsonTree::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<JsonTree, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(JsonTree::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<JsonTree, A::Error> {
        let mut names = std::collections::HashSet::new();
        let mut fields = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, JsonTree>()? {
            if !names.insert(name.clone()) {
                return Err(de::Error::custom(format_args!("the key {} stands twice in one object", quoted(&name))));
            }
            fields.push((name, value));
        }
        Ok(JsonTree::Object(fields))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unparsable_body_is_refused_with_matching_error_code() {
        for (body, code) in [
            ("", Code::InvalidJson),
            ("{", Code::InvalidJson),
            (r#"{"a":1,"a":2}"#, Code::InvalidJson),
            (r#"{"a":{"b":1,"b":1}}"#, Code::InvalidJson),
            ("[]", Code::InvalidJsonObject),
            ("null", Code::InvalidJsonObject),
            ("\"\\ud800\"", Code::InvalidJson),
            ("{\"a\":1e999}", Code::InvalidJson),
        ] {
            assert_eq!(JsonTree::parse(body.as_bytes()).unwrap_err().code, code, "{body}");
        }
        assert_eq!(JsonTree::parse(&[b'{', b'"', 0xff, b'"', b':', b'1', b'}']).unwrap_err().code, Code::InvalidJson);
        assert_eq!(JsonTree::parse("[".repeat(200_000).as_bytes()).unwrap_err().code, Code::InvalidJson);
    }

    #[test]
    fn equal_json_values_have_same_canonical_text() {
        let one: JsonTree = serde_json::from_str(r#"{ "b": [1, "ä\n"], "a": {"y": null, "x": true} }"#).unwrap();
        let other: JsonTree = serde_json::from_str(r#"{"a":{"x":true,"y":null},"b":[1,"\u00e4\n"]}"#).unwrap();
        assert_eq!(one.canonical(), other.canonical());
        let number = |text: &str| serde_json::from_str::<JsonTree>(text).unwrap().canonical();
        for seven in ["7", "7.0", "70e-1", "0.7e1", "7E0"] {
            assert_eq!(number(seven), "7");
        }
        assert_eq!((number("-0.0"), number("7.5"), number("1e300")), ("0".into(), "7.5".into(), "1e+300".into()));
    }
}
