//! Settings held against the JSON Schema that a module declares for them (draft 2020-12).

use jsonschema::error::ValidationErrorKind;
use jsonschema::{Draft, ValidationError, Validator};
use serde_json::Value;

use crate::engine::bindings::types::Problem;
use culvert_domain::field_path;

/// A module's schema, read.
///
/// # Errors
///
/// One line that says what is wrong with the schema.
pub fn compile(schema: &str) -> Result<Validator, String> {
    let schema: Value = serde_json::from_str(schema).map_err(|error| error.to_string())?;
    if !schema.is_object() {
        return Err("it is no JSON object".into());
    }
    jsonschema::options().with_draft(Draft::Draft202012).build(&schema).map_err(|error| error.to_string())
}

/// What does not fit, each with its path into the settings.
pub fn problems(schema: &Validator, settings: &Value) -> Vec<Problem> {
    let problem =
        |error: ValidationError<'_>| Problem { path: dotted(error.instance_path().as_str()), message: message(&error) };
    schema.iter_errors(settings).map(problem).collect()
}

/// The validator cuts the list of allowed values short; here it is what one has to know.
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

/// `/plans/free/limits/0` (RFC 6901) is `plans.free.limits[0]`.
fn dotted(pointer: &str) -> String {
    field_path::along(pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")))
}
