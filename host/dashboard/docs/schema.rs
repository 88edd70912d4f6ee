//! JSON schemas in words.

use maud::{Markup, html};
use serde_json::Value;

/// The fields of a record, or what a simpler value is.
pub(crate) fn fields(schema: &Value) -> Markup {
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().map(text).collect();
    html! {
        @if let Some(about) = schema["description"].as_str() { p { (super::book::inline(about)) } }
        @match schema["properties"].as_object() {
            Some(properties) => div.scroll role="region" aria-label="Fields" tabindex="0" { table {
                thead { tr { th { "Field" } th { "Value" } th { "Meaning" } } }
                tbody { @for (name, property) in properties {
                    tr {
                        td { code { (name) } @if required.contains(&name.as_str()) { " *" } }
                        td.long { (kind(property)) }
                        td.long { (super::book::inline(text(&property["description"]))) }
                    }
                } }
            } },
            None => p { (kind(schema)) },
        }
    }
}

/// What a value is, in a few words.
pub(crate) fn kind(schema: &Value) -> Markup {
    if let Some(name) = schema["$ref"].as_str().and_then(|reference| reference.rsplit('/').next()) {
        return html! { a href={ "#schema-" (name) } { (name) } };
    }
    for choice in ["anyOf", "oneOf", "allOf"] {
        if let Some(choices) = schema[choice].as_array() {
            return html! {
                @for (index, choice) in choices.iter().enumerate() { @if index > 0 { " or " } (kind(choice)) }
            };
        }
    }
    if let Some(words) = schema["enum"].as_array() {
        return html! { @for word in words { code { (text(word)) } " " } };
    }
    if let Some(word) = schema["const"].as_str() {
        return html! { code { (word) } };
    }
    let kinds: Vec<&str> = match &schema["type"] {
        Value::Array(kinds) => kinds.iter().map(text).collect(),
        one => vec![text(one)],
    };
    html! {
        (kinds.join(" or "))
        @if kinds.contains(&"array") { " of " (kind(&schema["items"])) }
        @if let Some(format) = schema["format"].as_str() { " (" (format) ")" }
        @for (word, key) in [("at least", "minimum"), ("at most", "maximum"), ("shortest", "minLength"), ("longest", "maxLength")] {
            @if !schema[key].is_null() { ", " (word) " " (schema[key].to_string()) }
        }
        @if !schema["default"].is_null() { ", default " code { (schema["default"].to_string()) } }
    }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
