//! What browsers post: `application/x-www-form-urlencoded`.

use culvert_api_types::json_tree::JsonTree;
use culvert_domain::error::{Code, Error, Fault, Result};
use salvo::Request;
use salvo::http::{Mime, ParseError};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// Bytes of a form.
const LIMIT: usize = 256 * 1024;
/// Fields of a form: more than any has.
const FIELDS: usize = 256;
/// The field that holds the form's key.
pub(crate) const KEY: &str = "form_key";

/// The name of a field that stands in each row of a table.
pub(crate) fn row_field(name: &str, id: Uuid) -> String {
    format!("{name}-{id}")
}

/// An error that names the field of a row.
pub(crate) fn at_row(mut error: Error, name: &str, id: Uuid) -> Error {
    for fault in error.faults.iter_mut().filter(|fault| fault.field == name) {
        fault.field = row_field(name, id);
    }
    error
}

/// The fields of a form, each once.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Form {
    fields: Vec<(String, String)>,
}

impl Form {
    /// Reads a request's form.
    ///
    /// # Errors
    ///
    /// `payload_too_large`; `invalid_content_type` if it is no form; `validation_failed` if a field stands twice.
    pub(crate) async fn read(req: &mut Request) -> Result<Self> {
        let is_form = |mime: Mime| mime.essence_str() == "application/x-www-form-urlencoded";
        if !req.content_type().is_some_and(is_form) {
            return Err(Error::new(Code::InvalidContentType, "The dashboard takes forms alone."));
        }
        let bytes = match req.payload_with_max_size(LIMIT).await {
            Ok(bytes) => bytes.clone(),
            Err(ParseError::PayloadTooLarge) => return Err(Error::of(Code::PayloadTooLarge)),
            Err(error) => return Err(Error::new(Code::InvalidJson, format!("The form could not be read: {error}."))),
        };
        let mut fields: Vec<(String, String)> = Vec::new();
        for (name, value) in url::form_urlencoded::parse(&bytes) {
            if fields.len() == FIELDS {
                return Err(Error::new(Code::PayloadTooLarge, format!("A form has at most {FIELDS} fields.")));
            }
            if fields.iter().any(|(known, _)| *known == name) {
                return Err(Error::invalid(vec![Fault::new(name, "must stand once")]));
            }
            fields.push((name.into_owned(), value.into_owned()));
        }
        Ok(Self { fields })
    }

    pub(crate) fn find(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The names of its fields.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|(name, _)| name.as_str())
    }

    /// A field as typed; empty if it is not there.
    pub(crate) fn get(&self, name: &str) -> &str {
        self.find(name).unwrap_or_default()
    }

    /// A choice between yes and no.
    ///
    /// # Errors
    ///
    /// `validation_failed` if it is neither.
    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        match self.get(name) {
            "yes" => Ok(true),
            "no" => Ok(false),
            _ => Err(Error::invalid(vec![Fault::new(name, "must be yes or no")])),
        }
    }

    /// The same without the secrets, to be shown again.
    pub(crate) fn without_secrets(mut self) -> Self {
        let is_secret = |name: &str| name.contains("password") || [KEY, "link", "code", "secret"].contains(&name);
        self.fields.retain(|(name, _)| !is_secret(name));
        self
    }

    /// The fields but for the key, as the body of a request.
    pub(crate) fn tree(&self) -> JsonTree {
        let fields = self.fields.iter().filter(|(name, _)| name != KEY);
        JsonTree::Object(fields.map(|(name, value)| (name.clone(), JsonTree::Text(value.clone()))).collect())
    }

    /// The body of an API request from these fields. Those that are empty are left out, and numbers become numbers; what is
    /// none stays text, for which the reader of the request has a fault.
    pub(crate) fn body(&self, texts: &[&str], numbers: &[&str]) -> JsonTree {
        let filled = |name: &&&str| !self.get(name).trim().is_empty();
        let text = |name: &&str| ((*name).to_owned(), JsonTree::Text(self.get(name).trim().to_owned()));
        let number = |name: &&str| {
            let typed = self.get(name).trim();
            let value =
                typed.parse::<u64>().map_or_else(|_| JsonTree::Text(typed.into()), |n| JsonTree::Number(n.into()));
            ((*name).to_owned(), value)
        };
        let texts = texts.iter().filter(filled).map(text);
        JsonTree::Object(texts.chain(numbers.iter().filter(filled).map(number)).collect())
    }
}
