//! The default team-role policy: what owners, admins and members of a Team may do.

mod rules;

use culvert::policy::types::{Code, Description, Problem, Rule, Verdict};
use exports::culvert::policy::roles::Ask;
use serde::Deserialize;

culvert_policy_sdk::policy!(Policy: "team-role", wit: "../../wit");

struct Policy;

/// There are none: roles are what they are.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {}

impl Policy {
    fn describe() -> Description {
        Description {
            name: "team-role".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: "What owners, admins and members of a Team may do".into(),
            rules: rules::RULES.map(|(id, summary)| Rule { id: id.into(), summary: summary.into() }).into(),
            codes: rules::CODES.map(|(code, text)| Code { code: code.into(), text: text.into() }).into(),
            settings_schema: r#"{"type":"object","additionalProperties":false,"properties":{}}"#.into(),
        }
    }

    fn configure(_: Settings) -> Result<Self, Vec<Problem>> {
        Ok(Self)
    }

    fn check(&self, ask: &Ask) -> Verdict {
        match rules::judge(ask) {
            Some(denial) => Verdict::Deny(denial),
            None => Verdict::Allow,
        }
    }
}
