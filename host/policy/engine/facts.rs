//! Facts: what modules can ask to be told beside the request itself.
//!
//! A module lists the facts that it wants in its settings schema, under [`KEYWORD`]. It gets just these, as
//! `attributes` of the request, each with a JSON text as its value. A fact that does not apply is null.

use serde_json::Value;

use crate::engine::bindings::types::Attribute;
use culvert_domain::policy_fact::{PolicyFact, PolicyFacts};
use culvert_domain::string_enum::StringEnum;

/// The keyword of a settings schema that lists the facts that a module wants.
pub const KEYWORD: &str = "x-culvert-facts";

/// The facts of one request.
#[derive(Clone, Debug, Default)]
pub struct FactValues(Vec<(PolicyFact, String)>);

impl FactValues {
    pub fn insert(&mut self, fact: PolicyFact, value: &Value) {
        self.0.push((fact, value.to_string()));
    }

    /// The facts that a module wants, as it gets them.
    pub fn attributes(&self, wanted: PolicyFacts) -> Vec<Attribute> {
        let given = self.0.iter().filter(|(fact, _)| wanted.contains(*fact));
        given.map(|(fact, value)| Attribute { name: fact.as_str().into(), value: value.clone() }).collect()
    }
}

/// The facts that a settings schema asks for; none without the keyword.
///
/// # Errors
///
/// If the keyword's value is no list of names of facts.
pub fn wanted(schema: &Value) -> Result<PolicyFacts, String> {
    let Some(listed) = schema.get(KEYWORD) else { return Ok(PolicyFacts::NONE) };
    let no_list = || format!("`{KEYWORD}` is a list of names of facts");
    let names = listed.as_array().ok_or_else(no_list)?;
    names.iter().map(|name| name.as_str().ok_or_else(no_list).and_then(parse)).collect()
}

/// The fact of this name.
///
/// # Errors
///
/// If there is none: a message that lists the facts that there are.
pub fn parse(name: &str) -> Result<PolicyFact, String> {
    PolicyFact::parse(name).ok_or_else(|| format!("there is no fact `{name}`; there are {}", PolicyFact::list()))
}
