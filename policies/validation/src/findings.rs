//! What was found wrong so far: one violation a field and rule, none on a field that is faulted.

use crate::culvert::policy::types::Violation;

pub struct Findings<'a> {
    faulted: &'a [String],
    violations: Vec<Violation>,
}

impl<'a> Findings<'a> {
    pub fn new(faulted: &'a [String]) -> Self {
        Self { faulted, violations: Vec::new() }
    }

    pub fn add(&mut self, field: &str, rule: &str, message: &str) {
        let known = self.violations.iter().any(|v| v.field == field && v.rule == rule);
        if !self.is_faulted(field) && !known {
            self.violations.push(Violation { field: field.into(), message: message.into(), rule: rule.into() });
        }
    }

    /// Adds the violation unless the check holds.
    pub fn check(&mut self, holds: bool, field: &str, rule: &str, message: &str) {
        if !holds {
            self.add(field, rule, message);
        }
    }

    /// Whether the field, or what it lies in, was malformed.
    pub fn is_faulted(&self, field: &str) -> bool {
        self.faulted.iter().any(|faulted| {
            field.strip_prefix(faulted.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        })
    }

    pub fn require<T>(&mut self, field: &str, value: Option<&T>) {
        self.check(value.is_some(), field, "required", "is required");
    }

    /// A change that names no field changes nothing, and is a mistake. One that names only
    /// malformed fields is wrong already.
    pub fn require_any(&mut self, any: bool) {
        if self.faulted.is_empty() {
            self.check(any, "body", "empty-change", "at least one field is required");
        }
    }

    pub fn into_violations(self) -> Vec<Violation> {
        self.violations
    }
}
