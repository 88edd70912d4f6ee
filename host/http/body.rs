//! Request bodies: read once into a tree, then field by field, collecting every fault of shape.
//!
//! A derived deserializer stops at the first fault and says it in its own words. Here a field of
//! the wrong type is left out and its fault is kept, so that one answer names them all.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use uuid::Uuid;

use crate::gate::{Body, NoBody};
use culvert_domain::error::{Code, Error, Fault, MOST_FAULTS, Result};
use culvert_domain::field_path;
use culvert_domain::input::{
    AssignDomain, BindDevices, DevicePatch, MoveTunnel, NewExtraPort, NewFirewallRule, NewGeoipRule, NewTunnel,
    NewWebhook, Nullable, ReplaceFirewall, ReplaceGeoip, StartTunnel, TunnelPatch, VerifyDomain, WebhookPatch,
};
use culvert_domain::string_enum::StringEnum;

/// Items that one list is read with, at most: more than any may hold.
const MOST_ITEMS: usize = 250;
/// Unknown fields that are named, of the whole body, and as much of their names as is repeated.
const MOST_UNKNOWN: usize = 20;
const LONGEST_NAME: usize = 100;

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

    fn read<T>(&mut self, name: &str, read: impl FnOnce(&'t JsonTree) -> Result<T, String>) -> Option<T> {
        let value = self.take(name)?;
        read(value).map_err(|message| self.fault(name, message)).ok()
    }

    /// As `read`, where null says the same as leaving the field out.
    fn read_or_null<T>(&mut self, name: &str, read: impl FnOnce(&'t JsonTree) -> Result<T, String>) -> Option<T> {
        let read = |tree: &'t JsonTree| if *tree == JsonTree::Null { Ok(None) } else { read(tree).map(Some) };
        self.read(name, read).flatten()
    }

    /// As `read`, where null clears the field.
    fn read_or_clear<T>(&mut self, name: &str, read: impl FnOnce(&'t JsonTree) -> Result<T, String>) -> Nullable<T> {
        self.read(name, |tree| if *tree == JsonTree::Null { Ok(None) } else { read(tree).map(Some) })
    }

    /// A malformed item leaves a blank, so that the others keep their places.
    fn list<T: Default>(&mut self, name: &str, read: impl Fn(&'t JsonTree) -> Result<T, String>) -> Option<Vec<T>> {
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
    fn objects<T>(&mut self, name: &str, read: impl Fn(&mut FieldReader<'t>) -> T) -> Option<Vec<T>> {
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
    fn ignore(&mut self, names: &[&str]) {
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

fn text(tree: &JsonTree) -> Result<String, String> {
    match tree {
        JsonTree::Text(text) if text.contains('\0') => Err("must not contain U+0000".into()),
        JsonTree::Text(text) => Ok(text.clone()),
        _ => Err("must be a string".into()),
    }
}

fn flag(tree: &JsonTree) -> Result<bool, String> {
    match tree {
        JsonTree::Bool(flag) => Ok(*flag),
        _ => Err("must be true or false".into()),
    }
}

/// `1.0` is an integer as well (JSON Schema, validation section 6.1.1).
fn integer(tree: &JsonTree) -> Result<i64, String> {
    let whole = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    match tree {
        JsonTree::Number(number) => {
            number.as_i64().or_else(|| number.as_f64().and_then(whole)).ok_or_else(|| "must be an integer".into())
        }
        _ => Err("must be an integer".into()),
    }
}

fn id(tree: &JsonTree) -> Result<Uuid, String> {
    let id = text(tree).ok().filter(|text| text.len() == 36).and_then(|text| Uuid::parse_str(&text).ok());
    id.ok_or_else(|| "must be a UUID".into())
}

fn string_enum<W: StringEnum>(tree: &JsonTree) -> Result<W, String> {
    let word = text(tree).ok().and_then(|text| W::parse(&text));
    word.ok_or_else(|| format!("must be one of {}", W::list()))
}

fn list(tree: &JsonTree) -> Result<&[JsonTree], String> {
    match tree {
        JsonTree::List(items) => Ok(items),
        _ => Err("must be an array".into()),
    }
}

/// What a body is read into.
pub trait FromJsonTree: Sized {
    fn read(fields: &mut FieldReader<'_>) -> Self;
}

/// Reads a body; one that was not sent has no fields.
pub fn read<D: FromJsonTree>(tree: Option<&JsonTree>) -> Body<D> {
    let empty = JsonTree::Object(Vec::new());
    let mut fields = FieldReader::of(tree.unwrap_or(&empty), String::new());
    let draft = D::read(&mut fields);
    let (faults, unknown) = fields.finish();
    Body { draft, faults, unknown: unknown.into_faults() }
}

impl FromJsonTree for NoBody {
    fn read(_: &mut FieldReader<'_>) -> Self {
        NoBody
    }
}

/// What a tunnel is returned with and cannot be asked for.
const TUNNEL_MADE: [&str; 13] = [
    "id",
    "remote_port",
    "status",
    "runtime",
    "bindings",
    "node",
    "custom_domain",
    "public_address",
    "created_by",
    "created_at",
    "updated_at",
    "current_device",
    "authorized_devices",
];

impl FromJsonTree for NewTunnel {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&TUNNEL_MADE);
        Self {
            local_port: fields.read("local_port", integer),
            name: fields.read("name", text),
            protocol: fields.read("protocol", string_enum),
            local_host: fields.read("local_host", text),
            region: fields.read_or_null("region", text),
            country: fields.read_or_null("country", text),
            game_preset_id: fields.read_or_null("game_preset_id", id),
            subdomain: fields.read_or_null("subdomain", text),
            http_ssl_enabled: fields.read("http_ssl_enabled", flag),
            http_basic_auth_enabled: fields.read("http_basic_auth_enabled", flag),
            http_basic_auth_username: fields.read_or_null("http_basic_auth_username", text),
            http_basic_auth_password: fields.read_or_null("http_basic_auth_password", text),
            idle_timeout: fields.read_or_null("idle_timeout", integer),
            buffer_size: fields.read_or_null("buffer_size", integer),
            pro_network: fields.read("pro_network", flag),
            device_ids: fields.list("device_ids", id),
            extra_ports: fields.objects("extra_ports", NewExtraPort::read),
        }
    }
}

impl FromJsonTree for NewExtraPort {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&["id", "remote_port", "public_address"]);
        Self {
            local_port: fields.read("local_port", integer),
            label: fields.read_or_null("label", text),
            protocol: fields.read("protocol", string_enum),
        }
    }
}

/// What can be asked for with a new tunnel, and cannot be changed by `PATCH`.
const TUNNEL_FIXED: [&str; 6] = ["protocol", "subdomain", "region", "country", "game_preset_id", "extra_ports"];

impl FromJsonTree for TunnelPatch {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&TUNNEL_MADE);
        fields.ignore(&TUNNEL_FIXED);
        Self {
            name: fields.read("name", text),
            local_host: fields.read("local_host", text),
            local_port: fields.read("local_port", integer),
            http_ssl_enabled: fields.read("http_ssl_enabled", flag),
            http_basic_auth_enabled: fields.read("http_basic_auth_enabled", flag),
            http_basic_auth_username: fields.read_or_clear("http_basic_auth_username", text),
            http_basic_auth_password: fields.read_or_clear("http_basic_auth_password", text),
            idle_timeout: fields.read_or_clear("idle_timeout", integer),
            buffer_size: fields.read_or_clear("buffer_size", integer),
            pro_network: fields.read("pro_network", flag),
        }
    }
}

impl FromJsonTree for BindDevices {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&["unrestricted", "stopped_device_id"]);
        Self { device_ids: fields.list("device_ids", id) }
    }
}

impl FromJsonTree for StartTunnel {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        Self { device_id: fields.read("device_id", id), handoff: fields.read("handoff", flag) }
    }
}

impl FromJsonTree for DevicePatch {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&["id", "owner_id", "platform", "version", "online", "capabilities", "last_seen_at"]);
        Self { name: fields.read("name", text), remote_control_enabled: fields.read("remote_control_enabled", flag) }
    }
}

impl FromJsonTree for VerifyDomain {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        Self { domain: fields.read("domain", text) }
    }
}

impl FromJsonTree for AssignDomain {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&["status", "cname_target", "verified_at", "last_checked_at", "error", "certificate"]);
        Self { domain: fields.read("domain", text) }
    }
}

impl FromJsonTree for ReplaceFirewall {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        Self { rules: fields.objects("rules", NewFirewallRule::read) }
    }
}

impl FromJsonTree for NewFirewallRule {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&["id", "created_at"]);
        Self {
            rule_type: fields.read("rule_type", string_enum),
            ip_address: fields.read_or_null("ip_address", text),
            ip_cidr: fields.read_or_null("ip_cidr", text),
            description: fields.read_or_null("description", text),
        }
    }
}

impl FromJsonTree for ReplaceGeoip {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&["enforced"]);
        Self { rules: fields.objects("rules", NewGeoipRule::read) }
    }
}

impl FromJsonTree for NewGeoipRule {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        Self { country_code: fields.read("country_code", text), action: fields.read("action", string_enum) }
    }
}

impl FromJsonTree for MoveTunnel {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        Self { node_id: fields.read("node_id", id) }
    }
}

impl FromJsonTree for NewWebhook {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&["id", "last_delivery", "created_at", "updated_at"]);
        Self {
            url: fields.read("url", text),
            events: fields.list("events", text),
            description: fields.read_or_null("description", text),
        }
    }
}

impl FromJsonTree for WebhookPatch {
    fn read(fields: &mut FieldReader<'_>) -> Self {
        fields.ignore(&["id", "last_delivery", "created_at", "updated_at"]);
        Self {
            url: fields.read("url", text),
            events: fields.list("events", text),
            description: fields.read_or_clear("description", text),
            status: fields.read("status", string_enum),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn unparseable_body_is_refused_with_matching_error_code() {
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
    fn whole_numbers_in_any_json_notation_are_integers() {
        let number = |text: &str| serde_json::from_str::<JsonTree>(text).map(|tree| integer(&tree)).unwrap();
        assert_eq!(number("80.0"), Ok(80));
        assert_eq!(number("8e1"), Ok(80));
        for none in ["80.5", "1e300", "18446744073709551615", "\"80\"", "true"] {
            assert!(number(none).is_err(), "{none}");
        }
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
