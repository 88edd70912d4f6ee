//! Validation of settings against the JSON Schema (draft 2020-12) that a module declares for them.

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, ValidationError, Validator};
use serde_json::Value;

use crate::engine::bindings::types::Problem;
use culvert_domain::field_path;

/// Why a text is no JSON Schema.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("it is no JSON object")]
    NoObject,
    #[error(transparent)]
    Schema(Box<ValidationError<'static>>),
}

/// Parses the text of a module's schema.
///
/// # Errors
///
/// If the text is no JSON object.
pub fn parse(schema: &str) -> Result<Value, SchemaError> {
    let schema: Value = serde_json::from_str(schema)?;
    if schema.is_object() { Ok(schema) } else { Err(SchemaError::NoObject) }
}

/// Compiles a module's schema.
///
/// # Errors
///
/// If the object is no JSON Schema.
pub fn compile(schema: &Value) -> Result<Validator, SchemaError> {
    let built = jsonschema::options().with_draft(Draft::Draft202012).build(schema);
    built.map_err(|error| SchemaError::Schema(Box::new(error)))
}

/// All violations of the schema, each with its path into the settings.
pub fn problems(schema: &Validator, settings: &Value) -> Vec<Problem> {
    let problem =
        |error: ValidationError<'_>| Problem { path: dotted(error.instance_path().as_str()), message: message(&error) };
    schema.iter_errors(settings).map(problem).collect()
}

/// The message for a violation. The validator shortens the list of allowed values; here it is complete,
/// because the author of the settings needs it.
fn message(error: &ValidationError<'_>) -> String {
    match error.kind() {
        ValidationErrorKind::Enum { options } => {
            let options: Vec<_> = options.as_array().into_iter().flatten().map(Value::to_string).collect();
            format!("{} is none of {}", error.instance(), options.join(", "))
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            format!(
                "there is no setting {}",
                unexpected.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
            )
        }
        ValidationErrorKind::FalseSchema => format!("{} is not allowed here", error.instance()),
        _ => error.to_string(),
    }
}

/// Converts a JSON Pointer (RFC 6901): `/plans/free/limits/0` becomes `plans.free.limits[0]`.
fn dotted(pointer: &str) -> String {
    field_path::along(pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")))
}
