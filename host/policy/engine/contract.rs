//! Checks of a response beyond its types: rules and codes must be declared, texts are limited in size.

use serde_json::Value;

use crate::engine::bindings::types::Description;

/// Most bytes in a detail or a message.
const TEXT_LIMIT: usize = 2_000;
/// Most bytes in a field's path.
const FIELD_LIMIT: usize = 200;
/// Most violations in one response.
const VIOLATION_LIMIT: usize = 1_000;

/// Description of what is wrong with a response, in one line.
pub type ContractViolation = String;

/// Checks a denial.
///
/// # Errors
///
/// If the code or the rule is not declared, or the detail is empty or too long.
pub fn denial(declared: &Description, code: &str, detail: &str, rule: &str) -> Result<(), ContractViolation> {
    if !declared.codes.iter().any(|declared| declared.code == code) {
        return Err(format!("it denies with the undeclared code {}", excerpt(code)));
    }
    check_rule(declared, rule)?;
    check_text("detail", detail)
}

/// Checks the number of violations in a response.
///
/// # Errors
///
/// If there are more violations than one response may have.
pub fn violations(count: usize) -> Result<(), ContractViolation> {
    if count <= VIOLATION_LIMIT {
        return Ok(());
    }
    Err(format!("it finds {count} violations; {VIOLATION_LIMIT} may be"))
}

/// Checks one violation.
///
/// # Errors
///
/// If the field's path is empty, too long or contains a control character, the rule is not declared, or the
/// message is empty or too long.
pub fn violation(declared: &Description, field: &str, message: &str, rule: &str) -> Result<(), ContractViolation> {
    if field.is_empty() || field.len() > FIELD_LIMIT || field.chars().any(char::is_control) {
        return Err(format!("a violation names the field {}", excerpt(field)));
    }
    check_rule(declared, rule)?;
    check_text("message", message)
}

/// Checks a response given as JSON in the contract's own names.
///
/// # Errors
///
/// As [`denial`], [`violations`] and [`violation`].
pub fn plain(declared: &Description, answer: &Value) -> Result<(), ContractViolation> {
    let text = |value: &Value, field: &str| value[field].as_str().unwrap_or_default().to_owned();
    if let Some(found) = answer.as_array() {
        violations(found.len())?;
        return found.iter().try_for_each(|found| {
            violation(declared, &text(found, "field"), &text(found, "message"), &text(found, "rule"))
        });
    }
    match &answer["deny"] {
        Value::Object(_) => {
            let denied = &answer["deny"];
            denial(declared, &text(denied, "code"), &text(denied, "detail"), &text(denied, "rule"))
        }
        _ => Ok(()),
    }
}

fn check_rule(declared: &Description, rule: &str) -> Result<(), ContractViolation> {
    if declared.rules.iter().any(|declared| declared.id == rule) {
        return Ok(());
    }
    Err(format!("it decides by the undeclared rule {}", excerpt(rule)))
}

fn check_text(name: &str, text: &str) -> Result<(), ContractViolation> {
    if !text.is_empty() && text.len() <= TEXT_LIMIT {
        return Ok(());
    }
    Err(format!("a {name} has {} bytes; 1 to {TEXT_LIMIT} are allowed", text.len()))
}

fn excerpt(text: &str) -> String {
    format!("{:?}", text.chars().take(80).collect::<String>())
}
