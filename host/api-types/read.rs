//! Request bodies: read once into a tree, then field by field, collecting every fault of shape.
//!
//! A derived deserializer stops at the first fault and says it in its own words. Here a field of
//! the wrong type is left out and its fault is kept, so that one answer names them all.

use schemars::{Schema, SchemaGenerator};
use uuid::Uuid;

use crate::json_tree::JsonTree;
use crate::recorded::recorded;
use culvert_domain::error::{Fault, MOST_FAULTS, Result};
use culvert_domain::field_path;
use culvert_domain::string_enum::StringEnum;

/// Items that one list is read with, at most: more than any may hold.
const MOST_ITEMS: usize = 250;

/// Unknown fields that are named, of the whole body.
const MOST_UNKNOWN: usize = 20;
/// Characters of their names that are repeated.
const LONGEST_NAME: usize = 100;

/// Reads the fields of one object, and remembers which ones it was asked for.
pub struct FieldReader<'t> {
    path: String,
    fields: Vec<(&'t str, &'t JsonTree)>,
    faults: Vec<Fault>,
    unknown: Unknown,
}

/// Fields that no request has. They are for the client to see, and for no policy: nothing is missing
/// because of them.
#[derive(Debug, Default)]
struct Unknown {
    named: Vec<Fault>,
    more: usize,
}

impl Unknown {
    fn add(&mut self, field: impl FnOnce() -> String) {
        if self.named.len() < MOST_UNKNOWN {
            self.named.push(Fault::new(field(), "is not a field of this request"));
        } else {
            self.more += 1;
        }
    }

    fn absorb(&mut self, other: Self) {
        other.named.into_iter().for_each(|fault| self.add(|| fault.field));
        self.more += other.more;
    }

    fn into_faults(self) -> Vec<Fault> {
        let Self { mut named, more } = self;
        if more > 0 {
            named.push(Fault::new("body", format!("and {more} more unknown fields")));
        }
        named
    }
}

impl<'t> FieldReader<'t> {
    fn of(tree: &'t JsonTree, path: String) -> Self {
        let fields = match tree {
            JsonTree::Object(fields) => fields.iter().map(|(name, value)| (name.as_str(), value)).collect(),
            _ => Vec::new(),
        };
        Self { path, fields, faults: Vec::new(), unknown: Unknown::default() }
    }

    fn path(&self, name: &str) -> String {
        field_path::field(&self.path, name)
    }

    fn take(&mut self, name: &str) -> Option<&'t JsonTree> {
        let index = self.fields.iter().position(|(known, _)| *known == name)?;
        Some(self.fields.swap_remove(index).1)
    }

    fn fault(&mut self, name: &str, message: impl Into<String>) {
        if self.faults.len() < MOST_FAULTS {
            let field = self.path(name);
            self.faults.push(Fault::new(field, message));
        }
    }

    pub(crate) fn read<T>(&mut self, name: &str, read: impl FnOnce(&'t JsonTree) -> Result<T, String>) -> Option<T> {
        let value = self.take(name)?;
        read(value).map_err(|message| self.fault(name, message)).ok()
    }

    /// As `read`, where null says the same as leaving the field out.
    pub(crate) fn read_or_null<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&'t JsonTree) -> Result<T, String>,
    ) -> Option<T> {
        let read = |tree: &'t JsonTree| if *tree == JsonTree::Null { Ok(None) } else { read(tree).map(Some) };
        self.read(name, read).flatten()
    }

    /// As `read`, where null clears the field.
    pub(crate) fn read_or_clear<T>(
        &mut self,
        name: &str,
        read: impl FnOnce(&'t JsonTree) -> Result<T, String>,
    ) -> Nullable<T> {
        self.read(name, |tree| if *tree == JsonTree::Null { Ok(None) } else { read(tree).map(Some) })
    }

    /// A malformed item leaves a blank, so that the others keep their places.
    pub(crate) fn list<T: Default>(
        &mut self,
        name: &str,
        read: impl Fn(&'t JsonTree) -> Result<T, String>,
    ) -> Option<Vec<T>> {
        let items = self.items(name)?;
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            values.push(read(item).unwrap_or_else(|message| {
                self.fault(&format!("{name}[{index}]"), message);
                T::default()
            }));
        }
        Some(values)
    }

    /// Too many items are not faulted one by one: the answer would be longer than the request.
    fn items(&mut self, name: &str) -> Option<&'t [JsonTree]> {
        let items = self.read(name, list)?;
        if items.len() > MOST_ITEMS {
            self.fault(name, format!("must have at most {MOST_ITEMS} items"));
            return None;
        }
        Some(items)
    }

    /// A list of objects. One that is none counts as an empty one, so that the others keep their
    /// places.
    pub(crate) fn objects<T>(&mut self, name: &str, read: impl Fn(&mut FieldReader<'t>) -> T) -> Option<Vec<T>> {
        let items = self.items(name)?;
        let mut values = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let path = format!("{name}[{index}]");
            if !matches!(item, JsonTree::Object(_)) {
                self.fault(&path, "must be an object");
            }
            let mut fields = FieldReader::of(item, self.path(&path));
            values.push(read(&mut fields));
            let (faults, unknown) = fields.finish();
            let left = MOST_FAULTS.saturating_sub(self.faults.len());
            self.faults.extend(faults.into_iter().take(left));
            self.unknown.absorb(unknown);
        }
        Some(values)
    }

    /// Fields that the API returns and does not take: what was read can be put back.
    pub(crate) fn ignore(&mut self, names: &[&str]) {
        self.fields.retain(|(name, _)| !names.contains(name));
    }

    /// Whatever nobody asked for is unknown.
    fn finish(self) -> (Vec<Fault>, Unknown) {
        let Self { path, fields, faults, mut unknown } = self;
        for (name, _) in fields {
            let short = || name.chars().take(LONGEST_NAME).collect::<String>();
            unknown.add(|| field_path::field(&path, &short()));
        }
        (faults, unknown)
    }
}

pub(crate) fn text(tree: &JsonTree) -> Result<String, String> {
    match tree {
        JsonTree::Text(text) if text.contains('\0') => Err("must not contain U+0000".into()),
        JsonTree::Text(text) => Ok(text.clone()),
        _ => Err("must be a string".into()),
    }
}

pub(crate) fn flag(tree: &JsonTree) -> Result<bool, String> {
    match tree {
        JsonTree::Bool(flag) => Ok(*flag),
        _ => Err("must be true or false".into()),
    }
}

/// `1.0` is an integer as well (JSON Schema, validation section 6.1.1).
pub(crate) fn integer(tree: &JsonTree) -> Result<i64, String> {
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    match tree {
        JsonTree::Number(number) => {
            number.as_i64().or_else(|| number.as_f64().and_then(whole)).ok_or_else(|| "must be an integer".into())
        }
        _ => Err("must be an integer".into()),
    }
}

pub(crate) fn id(tree: &JsonTree) -> Result<Uuid, String> {
    let id = text(tree).ok().filter(|text| text.len() == 36).and_then(|text| Uuid::parse_str(&text).ok());
    id.ok_or_else(|| "must be a UUID".into())
}

pub(crate) fn string_enum<W: StringEnum>(tree: &JsonTree) -> Result<W, String> {
    let word = text(tree).ok().and_then(|text| W::parse(&text));
    word.ok_or_else(|| format!("must be one of {}", W::list()))
}

fn list(tree: &JsonTree) -> Result<&[JsonTree], String> {
    match tree {
        JsonTree::List(items) => Ok(items),
        _ => Err("must be an array".into()),
    }
}

/// A body as it was parsed, with the faults found in parsing.
#[derive(Clone, Debug, Default)]
pub struct Body<D> {
    pub draft: D,
    pub faults: Vec<Fault>,
    /// Faults for fields that the request does not define.
    pub unknown: Vec<Fault>,
    /// What the audit log keeps of it; empty where nothing was sent.
    pub recorded: String,
}

impl<D> From<D> for Body<D> {
    /// What needed no parsing.
    fn from(draft: D) -> Self {
        Self { draft, faults: Vec::new(), unknown: Vec::new(), recorded: String::new() }
    }
}

/// A request without a body.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBody;

/// A field that a change may also clear: absent, null, or a value.
pub type Nullable<T> = Option<Option<T>>;

/// What a body is read into.
pub trait FromJsonTree: Sized {
    /// The body's schema; `None` where a request has no body.
    const SCHEMA: Option<fn(&mut SchemaGenerator) -> Schema>;

    fn read(fields: &mut FieldReader<'_>) -> Self;
}

/// Reads a body; one that was not sent has no fields.
pub fn read<D: FromJsonTree>(tree: Option<&JsonTree>) -> Body<D> {
    let empty = JsonTree::Object(Vec::new());
    let mut fields = FieldReader::of(tree.unwrap_or(&empty), String::new());
    let draft = D::read(&mut fields);
    let (faults, unknown) = fields.finish();
    Body { draft, faults, unknown: unknown.into_faults(), recorded: tree.map(recorded).unwrap_or_default() }
}

impl FromJsonTree for NoBody {
    const SCHEMA: Option<fn(&mut SchemaGenerator) -> Schema> = None;

    fn read(_: &mut FieldReader<'_>) -> Self {
        NoBody
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::requests::NewTunnel;

    fn faults(body: &str) -> Vec<String> {
        let tree = JsonTree::parse(body.as_bytes()).unwrap();
        let Body { faults, unknown, .. } = read::<NewTunnel>(Some(&tree));
        let mut faults: Vec<_> = faults.into_iter().chain(unknown).map(|f| f.field).collect();
        faults.sort();
        faults
    }

    #[test]
    fn malformed_body_reports_every_faulty_field_at_once() {
        let body = r#"{"local_port":"80","name":null,"protocol":"TCP","device_ids":["x"],"colour":1,
            "extra_ports":[{"local_port":1.5},7,{"local_port":1,"id":"kept out"}],"region":null,"subdomain":"a\u0000b"}"#;
        let expected = [
            "colour",
            "device_ids[0]",
            "extra_ports[0].local_port",
            "extra_ports[1]",
            "local_port",
            "name",
            "protocol",
            "subdomain",
        ];
        assert_eq!(faults(body), expected);
    }

    #[test]
    fn whole_numbers_in_any_json_notation_are_integers() {
        let number = |text: &str| serde_json::from_str::<JsonTree>(text).map(|tree| integer(&tree)).unwrap();
        assert_eq!(number("80.0"), Ok(80));
        assert_eq!(number("8e1"), Ok(80));
        for none in ["80.5", "1e300", "18446744073709551615", "\"80\"", "true"] {
            assert!(number(none).is_err(), "{none}");
        }
    }
}
