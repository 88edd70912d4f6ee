//! The macro that makes a component of a policy.

/// Makes a policy the component of its crate.
///
/// ```ignore
/// culvert_policy_sdk::policy! {
///     Policy: "team-role", wit: "../../wit",
///     settings: "../settings.schema.json",
///     facts: [facts::NOW],
///     rules: { "night": "Tunnels do not start at night" },
///     codes: { "closed_at_night": "Tunnels start between 6 and 22 o'clock." },
/// }
/// ```
///
/// `Policy` is what the settings are read into, by `serde::Deserialize`. It has the decisions of its world as functions
/// with `&self`: `entitlements` and `check`, `check`, or `validate`. Name and version are those of the crate, and the
/// summary is its description. `settings` names a JSON Schema, seen from the source file; without it there are no
/// settings. `facts` and `codes` can be left out.
///
/// In the longer form, `policy!(Policy: "team-role", wit: "../../wit", facts: [facts::NOW])`, `Policy` also has the
/// functions `describe() -> Description` and `configure(settings) -> Result<Self, Vec<Problem>>`.
///
/// The macro brings the world's types into the crate as `culvert::policy::types` and
/// `exports::culvert::policy::…`, natively as well, so that rules are tested without a sandbox. In the short form, `deny`
/// makes a verdict, `violation` a violation, `nothing` an entitlement that includes nothing.
#[macro_export]
macro_rules! policy {
    (
        $policy:ident: $world:tt, wit: $wit:literal,
        $(settings: $schema:literal,)?
        $(facts: [$($fact:expr),* $(,)?],)?
        rules: { $($rule:literal: $summary:literal),* $(,)? }
        $(, codes: { $($code:literal: $text:literal),* $(,)? })? $(,)?
    ) => {
        $crate::policy!(@decisions $world, $policy);
        $crate::policy!(@helpers $world);
        $crate::policy!(@module $world, $wit, $policy, {
            culvert::policy::types::Description {
                name: env!("CARGO_PKG_NAME").into(),
                version: env!("CARGO_PKG_VERSION").into(),
                summary: env!("CARGO_PKG_DESCRIPTION").into(),
                rules: vec![$(culvert::policy::types::Rule { id: $rule.into(), summary: $summary.into() }),*],
                codes: vec![$($(culvert::policy::types::Code { code: $code.into(), text: $text.into() }),*)?],
                settings_schema: $crate::facts::declare(
                    $crate::policy!(@schema $($schema)?),
                    &[$($($fact.name()),*)?],
                ),
            }
        }, |policy: $policy| Ok(policy));
    };
    ($policy:ident: $world:tt, wit: $wit:literal $(, facts: [$($fact:expr),* $(,)?])? $(,)?) => {
        $crate::policy!(@decisions $world, $policy);
        $crate::policy!(@module $world, $wit, $policy, {
            let mut description = <$policy>::describe();
            description.settings_schema =
                $crate::facts::declare(&description.settings_schema, &[$($($fact.name()),*)?]);
            description
        }, <$policy>::configure);
    };
    (@schema) => { r#"{"type":"object","additionalProperties":false}"# };
    (@schema $schema:literal) => { include_str!($schema) };
    (@decisions "plan-access", $policy:ident) => {
        impl exports::culvert::policy::plans::Guest for Exported {
            fn entitlements(plan: String) -> Option<exports::culvert::policy::plans::Entitlement> {
                CONFIGURED.get().entitlements(&plan)
            }
            fn check(ask: exports::culvert::policy::plans::Ask) -> culvert::policy::types::Verdict {
                CONFIGURED.get().check(&ask)
            }
        }
    };
    (@decisions "team-role", $policy:ident) => {
        impl exports::culvert::policy::roles::Guest for Exported {
            fn check(ask: exports::culvert::policy::roles::Ask) -> culvert::policy::types::Verdict {
                CONFIGURED.get().check(&ask)
            }
        }
    };
    (@decisions "validation", $policy:ident) => {
        impl exports::culvert::policy::inputs::Guest for Exported {
            fn validate(
                input: exports::culvert::policy::inputs::Input,
                facts: exports::culvert::policy::inputs::Facts,
            ) -> Vec<culvert::policy::types::Violation> {
                CONFIGURED.get().validate(&input, &facts)
            }
        }
    };
    (@helpers "validation") => {
        /// A violation of a field, by a rule.
        #[allow(dead_code)]
        fn violation(field: &str, rule: &str, message: impl Into<String>) -> culvert::policy::types::Violation {
            culvert::policy::types::Violation { field: field.into(), message: message.into(), rule: rule.into() }
        }
    };
    (@helpers "plan-access") => {
        $crate::policy!(@helpers "team-role");

        /// An entitlement that includes nothing: `Entitlement { api_access: true, ..nothing() }`.
        #[allow(dead_code)]
        fn nothing() -> exports::culvert::policy::plans::Entitlement {
            exports::culvert::policy::plans::Entitlement {
                api_access: false,
                remote_actions: Vec::new(),
                tunnel_limit: Some(0),
                bandwidth_limit_bytes: Some(0),
                premium_network: false,
                custom_domains: false,
                extra_ports_per_tunnel: Some(0),
                webhook_endpoints: Some(0),
            }
        }
    };
    (@helpers "team-role") => {
        /// A denial with a code, by a rule.
        #[allow(dead_code)]
        fn deny(code: &str, rule: &str, detail: impl Into<String>) -> culvert::policy::types::Verdict {
            let (code, detail, rule) = (code.into(), detail.into(), rule.into());
            culvert::policy::types::Verdict::Deny(culvert::policy::types::Denial { code, detail, rule })
        }
    };
    (@module $world:literal, $wit:literal, $policy:ident, $describe:block, $configure:expr) => {
        $crate::wit_bindgen::generate!({
            path: $wit,
            world: $world,
            runtime_path: "::culvert_policy_sdk::wit_bindgen::rt",
        });

        static CONFIGURED: $crate::Configured<$policy> = $crate::Configured::new();

        struct Exported;

        impl $crate::facts::Attribute for culvert::policy::types::Attribute {
            fn name(&self) -> &str {
                &self.name
            }
            fn value(&self) -> &str {
                &self.value
            }
        }

        impl exports::culvert::policy::module::Guest for Exported {
            fn describe() -> culvert::policy::types::Description {
                $describe
            }
            fn configure(settings: String) -> Result<(), Vec<culvert::policy::types::Problem>> {
                $crate::notes::keep_panics();
                let settings = $crate::Settings::parse(&settings)
                    .map_err(|message| vec![culvert::policy::types::Problem { path: String::new(), message }])?;
                let configured: Result<_, Vec<culvert::policy::types::Problem>> = ($configure)(settings);
                CONFIGURED.set(configured?);
                Ok(())
            }
        }

        #[cfg(target_arch = "wasm32")]
        export!(Exported);

        /// What the authors' tools read.
        mod debugging {
            $crate::wit_bindgen::generate!({
                inline: "package culvert:debug@1.0.0; \
                         interface debug { enable: func(); text: func() -> string; } \
                         world debugging { export debug; }",
                runtime_path: "::culvert_policy_sdk::wit_bindgen::rt",
            });

            struct Exported;

            impl exports::culvert::debug::debug::Guest for Exported {
                fn enable() {
                    $crate::notes::enable_debugging();
                }
                fn text() -> String {
                    $crate::notes::text()
                }
            }

            #[cfg(target_arch = "wasm32")]
            export!(Exported);
        }
    };
}
