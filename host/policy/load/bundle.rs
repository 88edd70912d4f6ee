//! The modules that are built into the host.

use crate::engine::kind::Kind;

/// Prefix by which a configuration names a built-in module: `builtin:plan-access`.
pub const PREFIX: &str = "builtin:";

macro_rules! shipped {
    ($($name:literal)*) => {
        /// Names of the built-in modules.
        pub const NAMES: &[&str] = &[$($name),*];

        const SHIPPED: &[&[u8]] = &[$(include_bytes!(concat!("../../../policies/dist/", $name, ".wasm"))),*];
    };
}

shipped! {
    "plan-access" "team-role" "validation"
    // Their settings are rules.
    "rules-plan-access" "rules-team-role" "rules-validation"
}

/// The bytes of the built-in module of this name.
pub fn find(name: &str) -> Option<&'static [u8]> {
    NAMES.iter().position(|shipped| *shipped == name).map(|index| SHIPPED[index])
}

/// The built-in module of a kind whose settings are rules, as a configuration names it.
pub fn of_rules(kind: Kind) -> String {
    format!("{PREFIX}rules-{kind}")
}
