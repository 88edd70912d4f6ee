//! The functions that conditions can call.

use std::collections::HashMap;
use std::sync::Arc;

use cel::extractors::This;
use cel::{Context, DeclarationError, Env, ExecutionError};
use culvert_policy_sdk::pattern::{self, Regex};
use culvert_policy_sdk::url::Url;

/// Their names, and how many values each takes, the one before its dot included.
pub(crate) const NAMES: [(&str, usize); 13] = [
    ("bool", 1),
    ("contains", 2),
    ("double", 1),
    ("endsWith", 2),
    ("glob", 2),
    ("host", 1),
    ("inDomain", 2),
    ("int", 1),
    ("lowerAscii", 1),
    ("matches", 2),
    ("size", 1),
    ("startsWith", 2),
    ("string", 1),
];

/// The regular expressions of all conditions, by their texts.
pub(crate) type Expressions = HashMap<String, Regex>;

/// The surroundings of every decision, made once.
///
/// # Errors
///
/// If a function is there already.
pub(crate) fn context(expressions: Expressions) -> Result<Context<'static, 'static>, DeclarationError> {
    let mut context = Context::with_env(Arc::new(Env::default().with_optional_support(false).with_stdlib()));
    context.add_function("matches", move |This(text): This<Arc<String>>, pattern: Arc<String>| {
        let expression = expressions.get(pattern.as_str());
        expression
            .map(|expression| expression.is_match(&text))
            .ok_or_else(|| ExecutionError::function_error("matches", "its pattern must be a text in quotes"))
    })?;
    context.add_function("glob", |This(text): This<Arc<String>>, glob: Arc<String>| {
        pattern::is_glob_match(&glob, &text)
    })?;
    context.add_function("inDomain", |This(host): This<Arc<String>>, domain: Arc<String>| {
        pattern::is_domain_or_below(&host, &domain)
    })?;
    context.add_function("lowerAscii", |This(text): This<Arc<String>>| Arc::new(text.to_ascii_lowercase()))?;
    // Empty for what is no URL: it lies in no domain.
    context.add_function("host", |This(url): This<Arc<String>>| {
        Arc::new(Url::parse(&url).map_or_else(String::new, |url| url.host.to_ascii_lowercase()))
    })?;
    Ok(context)
}
