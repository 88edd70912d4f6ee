//! The records of the contract as JSON in the contract's own names: fields, cases and words in
//! kebab-case, a case with a payload as an object of one field, nothing as null.
//!
//! serde knows the Rust names of what `bindings` generates; this puts WIT's in their place.

use std::fmt;

use serde::ser::{self, Impossible, Serialize, SerializeSeq, SerializeStruct, Serializer};
use serde_json::{Map, Value};

/// A value of the contract.
pub fn of(value: &impl Serialize) -> Value {
    value.serialize(Plain).unwrap_or_else(|error| Value::String(error.to_string()))
}

/// `TunnelCreate` and `tunnel_create` are `tunnel-create`.
fn kebab(name: &str) -> String {
    let mut kebab = String::with_capacity(name.len() + 4);
    for (at, letter) in name.trim_end_matches('_').char_indices() {
        match letter {
            '_' => kebab.push('-'),
            _ if letter.is_ascii_uppercase() => {
                if at > 0 {
                    kebab.push('-');
                }
                kebab.push(letter.to_ascii_lowercase());
            }
            _ => kebab.push(letter),
        }
    }
    kebab
}

/// The contract has none of the type.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotOfTheContract(String);

impl ser::Error for NotOfTheContract {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

fn none<T>(what: &str) -> Result<T, NotOfTheContract> {
    Err(NotOfTheContract(format!("{what} is no type of the contract")))
}

struct Plain;

/// A list or a record on its way.
struct Items(Vec<Value>);
struct Fields(Map<String, Value>);

macro_rules! scalars {
    ($($method:ident $ty:ty)*) => {
        $(fn $method(self, value: $ty) -> Result<Value, NotOfTheContract> { Ok(value.into()) })*
    };
}

impl Serializer for Plain {
    type Ok = Value;
    type Error = NotOfTheContract;
    type SerializeSeq = Items;
    type SerializeStruct = Fields;
    type SerializeTuple = Impossible<Value, NotOfTheContract>;
    type SerializeTupleStruct = Impossible<Value, NotOfTheContract>;
    type SerializeTupleVariant = Impossible<Value, NotOfTheContract>;
    type SerializeMap = Impossible<Value, NotOfTheContract>;
    type SerializeStructVariant = Impossible<Value, NotOfTheContract>;

    scalars! {
        serialize_bool bool
        serialize_i8 i8
        serialize_i16 i16
        serialize_i32 i32
        serialize_i64 i64
        serialize_u8 u8
        serialize_u16 u16
        serialize_u32 u32
        serialize_u64 u64
        serialize_f32 f32
        serialize_f64 f64
        serialize_str &str
    }

    fn serialize_char(self, value: char) -> Result<Value, NotOfTheContract> {
        Ok(value.to_string().into())
    }

    fn serialize_bytes(self, value: &[u8]) -> Result<Value, NotOfTheContract> {
        Ok(value.into())
    }

    fn serialize_none(self) -> Result<Value, NotOfTheContract> {
        Ok(Value::Null)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<Value, NotOfTheContract> {
        value.serialize(self)
    }

    fn serialize_unit(self) -> Result<Value, NotOfTheContract> {
        Ok(Value::Null)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<Value, NotOfTheContract> {
        Ok(Value::Null)
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, name: &'static str) -> Result<Value, NotOfTheContract> {
        Ok(kebab(name).into())
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<Value, NotOfTheContract> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<Value, NotOfTheContract> {
        Ok(Value::Object(Map::from_iter([(kebab(name), value.serialize(self)?)])))
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Items, NotOfTheContract> {
        Ok(Items(Vec::with_capacity(length.unwrap_or_default())))
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Fields, NotOfTheContract> {
        Ok(Fields(Map::new()))
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, NotOfTheContract> {
        none("a tuple")
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleStruct, NotOfTheContract> {
        none(name)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, NotOfTheContract> {
        none(name)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, NotOfTheContract> {
        none("a map")
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, NotOfTheContract> {
        none(name)
    }
}

impl SerializeSeq for Items {
    type Ok = Value;
    type Error = NotOfTheContract;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), NotOfTheContract> {
        self.0.push(value.serialize(Plain)?);
        Ok(())
    }

    fn end(self) -> Result<Value, NotOfTheContract> {
        Ok(Value::Array(self.0))
    }
}

impl SerializeStruct for Fields {
    type Ok = Value;
    type Error = NotOfTheContract;

    fn serialize_field<T: Serialize + ?Sized>(
        &mut self,
        name: &'static str,
        value: &T,
    ) -> Result<(), NotOfTheContract> {
        self.0.insert(kebab(name), value.serialize(Plain)?);
        Ok(())
    }

    fn end(self) -> Result<Value, NotOfTheContract> {
        Ok(Value::Object(self.0))
    }
}
