//! Values of CEL from those of the contract and from JSON.
//!
//! By hand, because `cel::to_value` makes unsigned numbers, which CEL does not add to others, of counts.

use std::collections::HashMap;
use std::sync::Arc;

use cel::Value;
use cel::objects::{Key, Map};

/// What a condition can see. What is absent is null.
pub trait ToValue {
    fn to_value(&self) -> Value;
}

impl ToValue for str {
    fn to_value(&self) -> Value {
        Value::String(Arc::new(self.into()))
    }
}

impl ToValue for String {
    fn to_value(&self) -> Value {
        self.as_str().to_value()
    }
}

impl ToValue for bool {
    fn to_value(&self) -> Value {
        Value::Bool(*self)
    }
}

macro_rules! numbers {
    ($($type:ty)*) => {
        $(impl ToValue for $type {
            fn to_value(&self) -> Value {
                Value::Int(i64::try_from(*self).unwrap_or(i64::MAX))
            }
        })*
    };
}

numbers!(i64 u32 u64);

impl ToValue for Value {
    fn to_value(&self) -> Value {
        self.clone()
    }
}

impl<T: ToValue + ?Sized> ToValue for &T {
    fn to_value(&self) -> Value {
        (**self).to_value()
    }
}

impl<T: ToValue> ToValue for Option<T> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null, ToValue::to_value)
    }
}

impl<T: ToValue> ToValue for Vec<T> {
    fn to_value(&self) -> Value {
        Value::List(Arc::new(self.iter().map(ToValue::to_value).collect()))
    }
}

impl ToValue for serde_json::Value {
    fn to_value(&self) -> Value {
        use serde_json::Value as Json;
        match self {
            Json::Null => Value::Null,
            Json::Bool(value) => Value::Bool(*value),
            Json::Number(number) => number.as_i64().map_or_else(|| float(number), Value::Int),
            Json::String(text) => text.to_value(),
            Json::Array(items) => items.to_value(),
            Json::Object(fields) => map(fields.iter().map(|(name, value)| (name.as_str(), value.to_value()))),
        }
    }
}

fn float(number: &serde_json::Number) -> Value {
    number.as_f64().map_or(Value::Null, Value::Float)
}

/// A value with fields.
pub fn map<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    let key = |name: &str| Key::String(Arc::new(name.into()));
    let map: HashMap<_, _> = fields.into_iter().map(|(name, value)| (key(name), value)).collect();
    Value::Map(Map { map: Arc::new(map) })
}
