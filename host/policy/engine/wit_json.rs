//! The contract's records as JSON with the names of WIT.
//!
//! Names of fields, cases and enum values are in kebab-case. A case with a payload is an object with
//! one field, and an absent option is null. serde knows only the Rust names of the types generated in
//! `bindings`; this module replaces them with WIT's names, for any serializer.

use serde::ser::{Error, Impossible, Serialize, SerializeMap, SerializeSeq, SerializeStruct, Serializer};
use serde_json::Value;

/// Serializes a value of the contract with the names of WIT.
pub struct WitJson<'a, T: ?Sized>(pub &'a T);

impl<T: Serialize + ?Sized> Serialize for WitJson<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Renaming(serializer))
    }
}

/// Converts a value of the contract to JSON.
pub fn to_wit_json(value: &impl Serialize) -> Value {
    serde_json::to_value(WitJson(value)).unwrap_or_else(|error| Value::String(error.to_string()))
}

/// Converts a Rust name to kebab-case: both `TunnelCreate` and `tunnel_create` become `tunnel-create`.
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

/// Fails for a type that the contract does not use.
fn none<T, E: Error>(what: &str) -> Result<T, E> {
    Err(E::custom(format_args!("{what} is no type of the contract")))
}

struct Renaming<S>(S);

/// Serializes a list.
struct Items<S>(S);

/// Serializes a record.
struct Fields<S>(S);

macro_rules! as_they_are {
    ($($method:ident $ty:ty)*) => {
        $(fn $method(self, value: $ty) -> Result<S::Ok, S::Error> { self.0.$method(value) })*
    };
}

impl<S: Serializer> Serializer for Renaming<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Items<S::SerializeSeq>;
    type SerializeStruct = Fields<S::SerializeMap>;
    type SerializeTuple = Impossible<S::Ok, S::Error>;
    type SerializeTupleStruct = Impossible<S::Ok, S::Error>;
    type SerializeTupleVariant = Impossible<S::Ok, S::Error>;
    type SerializeMap = Impossible<S::Ok, S::Error>;
    type SerializeStructVariant = Impossible<S::Ok, S::Error>;

    as_they_are! {
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
        serialize_char char
        serialize_str &str
        serialize_bytes &[u8]
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&WitJson(value))
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit()
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit()
    }

    fn serialize_unit_variant(self, _: &'static str, _: u32, name: &'static str) -> Result<S::Ok, S::Error> {
        self.0.serialize_str(&kebab(name))
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<S::Ok, S::Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let mut one = self.0.serialize_map(Some(1))?;
        one.serialize_entry(&kebab(name), &WitJson(value))?;
        one.end()
    }

    fn serialize_seq(self, length: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.0.serialize_seq(length).map(Items)
    }

    fn serialize_struct(self, _: &'static str, length: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.0.serialize_map(Some(length)).map(Fields)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self::SerializeTuple, S::Error> {
        none("a tuple")
    }

    fn serialize_tuple_struct(self, name: &'static str, _: usize) -> Result<Self::SerializeTupleStruct, S::Error> {
        none(name)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        none(name)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        none("a map")
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        none(name)
    }
}

impl<S: SerializeSeq> SerializeSeq for Items<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_element<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), S::Error> {
        self.0.serialize_element(&WitJson(value))
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}

impl<S: SerializeMap> SerializeStruct for Fields<S> {
    type Ok = S::Ok;
    type Error = S::Error;

    fn serialize_field<T: Serialize + ?Sized>(&mut self, name: &'static str, value: &T) -> Result<(), S::Error> {
        self.0.serialize_entry(&kebab(name), &WitJson(value))
    }

    fn end(self) -> Result<S::Ok, S::Error> {
        self.0.end()
    }
}
