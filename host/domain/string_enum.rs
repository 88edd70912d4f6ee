//! Closed sets of words, as the API and the store spell them.

/// An enum whose variants are words: in JSON, in the store, on the command line.
pub trait StringEnum: Copy + Sized + 'static {
    const ALL: &'static [Self];

    fn as_str(self) -> &'static str;

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.as_str() == word)
    }

    /// All of them, for a message that says what is allowed.
    fn list() -> String {
        Self::ALL.iter().map(|known| known.as_str()).collect::<Vec<_>>().join(", ")
    }
}

/// Defines such an enum, with `Display`, `FromStr`, `Serialize` and a JSON Schema.
#[macro_export]
macro_rules! string_enum {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident $word:literal,)* }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, schemars::JsonSchema)]
        $(#[$about])*
        pub enum $name {
            $($(#[$doc])* #[schemars(rename = $word)] $variant,)*
        }

        impl $crate::string_enum::StringEnum for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),*];

            fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad($crate::string_enum::StringEnum::as_str(*self))
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                use $crate::string_enum::StringEnum;
                Self::parse(word).ok_or_else(|| format!("must be one of {}", Self::list()))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($crate::string_enum::StringEnum::as_str(*self))
            }
        }
    };
}

pub use string_enum;
