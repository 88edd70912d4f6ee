//! Closed sets of words, as the API and the store spell them.

/// An enum whose variants are words: in JSON, in the store, on the command line.
pub trait Word: Copy + Sized + 'static {
    const ALL: &'static [Self];

    fn word(self) -> &'static str;

    fn parse(word: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|known| known.word() == word)
    }

    /// All of them, for a message that says what is allowed.
    fn list() -> String {
        Self::ALL.iter().map(|known| known.word()).collect::<Vec<_>>().join(", ")
    }
}

/// Defines such an enum, with `Display`, `FromStr`, `Serialize` and a JSON Schema.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, schemars::JsonSchema)]
        pub enum $name {
            $($(#[$doc])* #[schemars(rename = $word)] $variant,)*
        }

        impl $crate::domain::word::Word for $name {
            const ALL: &'static [Self] = &[$(Self::$variant),*];

            fn word(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad($crate::domain::word::Word::word(*self))
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            fn from_str(word: &str) -> Result<Self, String> {
                use $crate::domain::word::Word;
                Self::parse(word).ok_or_else(|| format!("must be one of {}", Self::list()))
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str($crate::domain::word::Word::word(*self))
            }
        }
    };
}

pub(crate) use words;
