//! What conditions are asked about.

use cel::Value;

/// A request that a module is asked about.
pub trait Question {
    /// What conditions can name, beside the facts: `caller.plan`.
    const NAMES: &'static [&'static str];

    /// The value of one of [`Question::NAMES`]; none for another name.
    fn value(&self, name: &str) -> Option<Value>;

    /// The JSON text of a fact; none where the host has not told it.
    fn fact(&self, name: &str) -> Option<&str>;
}

/// Implements [`Question`] with a name and an expression for each value.
#[macro_export]
macro_rules! question {
    ($type:ty, |$question:ident| attributes: $attributes:expr, { $($name:literal => $value:expr,)* }) => {
        impl $crate::Question for $type {
            const NAMES: &'static [&'static str] = &[$($name),*];

            fn value(&self, name: &str) -> Option<$crate::Value> {
                let $question = self;
                match name {
                    $($name => Some($crate::ToValue::to_value(&$value)),)*
                    _ => None,
                }
            }

            fn fact(&self, name: &str) -> Option<&str> {
                let $question = self;
                let attribute = $attributes.iter().find(|attribute| attribute.name == name)?;
                Some(&attribute.value)
            }
        }
    };
}
