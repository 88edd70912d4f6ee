//! A request of the API as a command and as code. The key is taken from the environment, and never written out.

use serde_json::Value;

/// One request.
pub(crate) struct Sample<'a> {
    pub method: &'a str,
    pub url: &'a str,
    pub body: Option<&'a Value>,
    pub idempotent: bool,
}

impl Sample<'_> {
    /// A command for a POSIX shell.
    pub(crate) fn curl(&self) -> String {
        let mut lines = vec![format!("curl -X {} {}", self.method, quoted(self.url))];
        lines.push("-H \"Authorization: Bearer $CULVERT_KEY\"".into());
        if self.idempotent {
            lines.push("-H \"Idempotency-Key: $(openssl rand -hex 16)\"".into());
        }
        if let Some(body) = self.body {
            lines.push("-H 'Content-Type: application/json'".into());
            lines.push(format!("-d {}", quoted(&body.to_string())));
        }
        lines.join(" \\\n  ")
    }

    /// Python, with the package `requests`.
    pub(crate) fn python(&self) -> String {
        let mut code = String::from("import os, uuid, requests\n\nanswer = requests.request(\n");
        code += &format!("    \"{}\",\n    {},\n", self.method, Value::from(self.url));
        code += "    headers={\"Authorization\": f\"Bearer {os.environ['CULVERT_KEY']}\"";
        code += if self.idempotent { ", \"Idempotency-Key\": str(uuid.uuid4())},\n" } else { "},\n" };
        if let Some(body) = self.body {
            code += &format!("    json={},\n", literal(body));
        }
        code + ")\nanswer.raise_for_status()\nprint(answer.json()[\"data\"])"
    }

    /// TypeScript, with the `fetch` of Node and of browsers.
    pub(crate) fn typescript(&self) -> String {
        let mut code =
            format!("const answer = await fetch({}, {{\n  method: \"{}\",\n", Value::from(self.url), self.method);
        code += "  headers: {\n    Authorization: `Bearer ${process.env.CULVERT_KEY}`,\n";
        if self.idempotent {
            code += "    \"Idempotency-Key\": crypto.randomUUID(),\n";
        }
        if let Some(body) = self.body {
            code += &format!("    \"Content-Type\": \"application/json\",\n  }},\n  body: JSON.stringify({body}),\n");
        } else {
            code += "  },\n";
        }
        code + "});\nif (!answer.ok) throw new Error((await answer.json()).code);\nconst { data } = await answer.json();"
    }
}

/// Text in a shell's quotes.
pub(crate) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A JSON value as Python writes it.
fn literal(value: &Value) -> String {
    let list = |items: Vec<String>, open: char, close: char| format!("{open}{}{close}", items.join(", "));
    match value {
        Value::Null => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Array(items) => list(items.iter().map(literal).collect(), '[', ']'),
        Value::Object(fields) => {
            let field =
                |(name, value): (&String, &Value)| format!("{}: {}", Value::from(name.as_str()), literal(value));
            list(fields.iter().map(field).collect(), '{', '}')
        }
        other => other.to_string(),
    }
}
