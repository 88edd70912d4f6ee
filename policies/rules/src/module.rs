//! The macro that makes a policy module of rules.

/// Makes a module of rules: `Policy` with `describe`, `configure` and `rules`, by `policy!`. The crate adds the decision.
#[macro_export]
macro_rules! rules_policy {
    ($world:tt, question: $question:ty) => {
        $crate::sdk::policy!(Policy: $world, wit: "../../wit");

        struct Policy {
            rules: $crate::RuleSet,
        }

        impl Policy {
            fn describe() -> culvert::policy::types::Description {
                use culvert::policy::types::{Code, Description, Rule};
                // Before `configure` there are no rules.
                let configured = CONFIGURED.find().map(|policy| &policy.rules);
                let rules = || configured.into_iter().flat_map($crate::RuleSet::rules);
                let mut codes: Vec<Code> = Vec::new();
                for rule in rules().filter(|rule| !rule.code.is_empty()) {
                    if codes.iter().all(|code| code.code != rule.code) {
                        codes.push(Code { code: rule.code.clone(), text: rule.message.clone() });
                    }
                }
                let facts = configured.map($crate::RuleSet::facts).unwrap_or_default();
                Description {
                    name: configured.and_then(|rules| rules.name.clone()).unwrap_or(concat!("rules-", $world).into()),
                    version: env!("CARGO_PKG_VERSION").into(),
                    summary: env!("CARGO_PKG_DESCRIPTION").into(),
                    rules: rules().map(|rule| Rule { id: rule.name.clone(), summary: rule.message.clone() }).collect(),
                    codes,
                    settings_schema: $crate::sdk::facts::declare(include_str!("../settings.schema.json"), &facts),
                }
            }

            fn configure(settings: $crate::Settings) -> Result<Self, Vec<culvert::policy::types::Problem>> {
                use culvert::policy::types::Problem;
                let problem = |problem: $crate::Problem| Problem { path: problem.path, message: problem.message };
                match $crate::RuleSet::configure::<$question>(settings) {
                    Ok(rules) => Ok(Self { rules }),
                    Err(problems) => Err(problems.into_iter().map(problem).collect()),
                }
            }
        }
    };
}

/// Lets conditions see what every world has of its caller.
#[macro_export]
macro_rules! caller {
    () => {
        impl $crate::ToValue for culvert::policy::types::Scope {
            fn to_value(&self) -> $crate::Value {
                match self {
                    Self::Personal => "personal",
                    Self::Team => "team",
                }
                .to_value()
            }
        }

        impl $crate::ToValue for culvert::policy::types::Role {
            fn to_value(&self) -> $crate::Value {
                match self {
                    Self::Owner => "owner",
                    Self::Admin => "admin",
                    Self::Member => "member",
                }
                .to_value()
            }
        }
    };
}
