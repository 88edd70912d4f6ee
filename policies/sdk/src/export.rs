//! The macro that makes a component of a policy.

/// Makes a policy the component of its crate.
///
/// ```ignore
/// culvert_policy_sdk::policy!(Policy: "plan-access", wit: "../../wit");
/// ```
///
/// `Policy` has the functions
/// - `describe() -> Description`,
/// - `configure(Self::Settings) -> Result<Self, Vec<Problem>>`, with `Settings` given by
///   `type`: any `serde::Deserialize` (the macro calls it through [`Settings`](crate::Settings)),
/// - and the decisions of its world, each with `&self`: `entitlements` and `check`, `check`, or
///   `validate`.
///
/// The macro brings the world's types into the crate as `culvert::policy::types` and
/// `exports::culvert::policy::…`, natively as well, so that rules are tested without a sandbox.
#[macro_export]
macro_rules! policy {
    ($policy:ty: "plan-access", wit: $wit:literal) => {
        $crate::policy!(@module $policy, "plan-access", $wit);

        impl exports::culvert::policy::plans::Guest for Exported {
            fn entitlements(plan: String) -> Option<exports::culvert::policy::plans::Entitlement> {
                CONFIGURED.get().entitlements(&plan)
            }
            fn check(ask: exports::culvert::policy::plans::Ask) -> culvert::policy::types::Verdict {
                CONFIGURED.get().check(&ask)
            }
        }
    };
    ($policy:ty: "team-role", wit: $wit:literal) => {
        $crate::policy!(@module $policy, "team-role", $wit);

        impl exports::culvert::policy::roles::Guest for Exported {
            fn check(ask: exports::culvert::policy::roles::Ask) -> culvert::policy::types::Verdict {
                CONFIGURED.get().check(&ask)
            }
        }
    };
    ($policy:ty: "validation", wit: $wit:literal) => {
        $crate::policy!(@module $policy, "validation", $wit);

        impl exports::culvert::policy::inputs::Guest for Exported {
            fn validate(
                input: exports::culvert::policy::inputs::Input,
                facts: exports::culvert::policy::inputs::Facts,
            ) -> Vec<culvert::policy::types::Violation> {
                CONFIGURED.get().validate(&input, &facts)
            }
        }
    };
    (@module $policy:ty, $world:literal, $wit:literal) => {
        $crate::wit_bindgen::generate!({
            path: $wit,
            world: $world,
            runtime_path: "::culvert_policy_sdk::wit_bindgen::rt",
        });

        static CONFIGURED: $crate::Configured<$policy> = $crate::Configured::new();

        struct Exported;

        impl exports::culvert::policy::module::Guest for Exported {
            fn describe() -> culvert::policy::types::Description {
                <$policy>::describe()
            }
            fn configure(settings: String) -> Result<(), Vec<culvert::policy::types::Problem>> {
                let settings = $crate::Settings::parse(&settings)
                    .map_err(|message| vec![culvert::policy::types::Problem { path: String::new(), message }])?;
                CONFIGURED.set(<$policy>::configure(settings)?);
                Ok(())
            }
        }

        #[cfg(target_arch = "wasm32")]
        export!(Exported);
    };
}
