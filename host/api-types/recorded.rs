//! What the audit log keeps of a request's body: its fields, without what is secret.

use url::Url;

use crate::json_tree::JsonTree;

/// Bytes of a body that are kept. Of a longer one, only its length is.
const MOST: usize = 4096;
const MASK: &str = "***";

/// A body as canonical JSON, with passwords masked, and of addresses that may hold a secret only where they lead.
pub(crate) fn recorded(tree: &JsonTree) -> String {
    let text = masked("", tree).canonical();
    if text.len() <= MOST { text } else { format!("{{\"bytes\":{}}}", text.len()) }
}

fn masked(name: &str, tree: &JsonTree) -> JsonTree {
    match tree {
        JsonTree::Text(_) if name.contains("password") => JsonTree::Text(MASK.into()),
        JsonTree::Text(text) if name == "url" => JsonTree::Text(origin(text)),
        JsonTree::Object(fields) => {
            JsonTree::Object(fields.iter().map(|(name, value)| (name.clone(), masked(name, value))).collect())
        }
        JsonTree::List(items) => JsonTree::List(items.iter().map(|item| masked(name, item)).collect()),
        other => other.clone(),
    }
}

fn origin(text: &str) -> String {
    Url::parse(text).map_or_else(|_| MASK.into(), |url| format!("{}/{MASK}", url.origin().ascii_serialization()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_masked_and_long_bodies_are_left_out() {
        let kept = |body: &str| recorded(&JsonTree::parse(body.as_bytes()).unwrap());
        assert_eq!(
            kept(r#"{"url":"https://u:p@hooks.example/s3cret?t=1","name":"a","http_basic_auth_password":"pw"}"#),
            r#"{"http_basic_auth_password":"***","name":"a","url":"https://hooks.example/***"}"#
        );
        assert_eq!(kept(r#"{"url":"s3cret"}"#), r#"{"url":"***"}"#);
        assert_eq!(kept(&format!(r#"{{"name":"{}"}}"#, "a".repeat(5000))), r#"{"bytes":5011}"#);
    }
}
