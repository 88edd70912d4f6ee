//! The names that a condition can use: those of the question, and the facts.

use culvert_policy_sdk::facts;
use culvert_policy_sdk::time::{Offset, Time};
use serde_json::Value as Json;

use crate::question::Question;
use crate::value::ToValue;
use cel::Value;

/// Facts that are times: a condition names a part of them.
const TIMES: [&str; 3] = ["now", "key.created_at", "tunnel.created_at"];
/// Parts of a time.
const PARTS: [&str; 9] = ["unix", "date", "time", "year", "month", "day", "hour", "minute", "weekday"];
/// Facts with fields of their own.
const OBJECTS: [&str; 1] = ["tunnel.rules"];

/// A name that a condition uses, and where its value comes from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Name {
    /// A part of the question itself.
    Question(&'static str),
    Fact(&'static str),
    /// A part of a fact that is a time.
    Part(&'static str, &'static str),
}

impl Name {
    /// Finds the name that a dotted path begins with.
    ///
    /// # Errors
    ///
    /// A sentence that says which names there are.
    pub(crate) fn find<Q: Question>(path: &[&str]) -> Result<Self, String> {
        for length in (1..=path.len()).rev() {
            let (name, rest) = (path[..length].join("."), &path[length..]);
            if let Some(known) = Q::NAMES.iter().find(|known| **known == name) {
                return no_field(&name, rest).map(|()| Self::Question(known));
            }
            if let Some(known) = facts::ALL.iter().find(|known| **known == name) {
                return if TIMES.contains(known) { part(known, rest) } else { fact(known, rest) };
            }
        }
        Err(unknown::<Q>(path))
    }

    /// As a condition writes it.
    pub(crate) fn text(&self) -> String {
        match self {
            Self::Question(name) | Self::Fact(name) => (*name).into(),
            Self::Part(name, part) => format!("{name}.{part}"),
        }
    }

    /// The fact that it needs.
    pub(crate) fn fact(&self) -> Option<&'static str> {
        match self {
            Self::Question(_) => None,
            Self::Fact(name) | Self::Part(name, _) => Some(name),
        }
    }

    pub(crate) fn value(&self, question: &impl Question, zone: Offset) -> Value {
        let fact = |name| question.fact(name).and_then(|json| serde_json::from_str::<Json>(json).ok());
        match self {
            Self::Question(name) => question.value(name).unwrap_or(Value::Null),
            Self::Fact(name) => fact(name).to_value(),
            Self::Part(name, part) => {
                let time = fact(name).and_then(|json| json.as_str()?.parse().ok());
                time.map_or(Value::Null, |time| part_of(time, part, zone))
            }
        }
    }
}

fn fact(known: &'static str, rest: &[&str]) -> Result<Name, String> {
    if !OBJECTS.contains(&known) {
        no_field(known, rest)?;
    }
    Ok(Name::Fact(known))
}

fn part(known: &'static str, rest: &[&str]) -> Result<Name, String> {
    let part = rest.first().and_then(|first| PARTS.iter().find(|part| *part == first));
    let part = part.ok_or_else(|| format!("`{known}` is a time; name a part of it: {}", list(known, PARTS.iter())))?;
    no_field(&format!("{known}.{part}"), &rest[1..]).map(|()| Name::Part(known, part))
}

fn no_field(name: &str, rest: &[&str]) -> Result<(), String> {
    match rest.first() {
        Some(field) => Err(format!("`{name}` has no field `{field}`")),
        None => Ok(()),
    }
}

fn list<'a>(first: &str, parts: impl Iterator<Item = &'a &'static str>) -> String {
    parts.map(|part| format!("{first}.{part}")).collect::<Vec<_>>().join(", ")
}

/// Says which names begin as an unknown one, or which beginnings there are.
fn unknown<Q: Question>(path: &[&str]) -> String {
    let all = || Q::NAMES.iter().chain(facts::ALL).copied();
    let path_text = path.join(".");
    let first = path.first().copied().unwrap_or_default();
    let mut near: Vec<_> = all().filter(|name| name.split('.').next() == Some(first)).collect();
    if near.is_empty() {
        near = all().map(|name| name.split('.').next().unwrap_or(name)).collect();
    }
    near.sort_unstable();
    near.dedup();
    format!("there is no `{path_text}`; there are {}", near.join(", "))
}

fn part_of(time: Time, part: &str, zone: Offset) -> Value {
    let (date, of_day) = (time.date(zone), time.time_of_day(zone));
    match part {
        "unix" => time.0.to_value(),
        "date" => date.to_string().to_value(),
        "time" => format!("{:02}:{:02}", of_day.hour(), of_day.minute()).to_value(),
        "year" => date.year.to_value(),
        "month" => date.month.to_value(),
        "day" => date.day.to_value(),
        "hour" => of_day.hour().to_value(),
        "minute" => of_day.minute().to_value(),
        _ => time.weekday(zone).name().to_value(),
    }
}
