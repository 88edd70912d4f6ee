//! Open sets of words: those that this program knows, and whatever a newer one adds. Closed sets are the domain's
//! `string_enum!`. (The crate `strum` was considered: it has a default variant for parsing, but none that serde
//! and `Display` share.)

/// Defines an enum with a variant for each known word, and `Other` for every other one. Its text is the word, in
/// `Display`, in JSON and in the store.
#[macro_export]
macro_rules! open_enum {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident $word:literal,)* }) => {
        #[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
        #[serde(from = "String", into = "String")]
        $(#[$about])*
        pub enum $name {
            $($(#[$doc])* $variant,)*
            /// A word that this version does not know.
            Other(String),
        }

        impl $name {
            pub fn as_str(&self) -> &str {
                match self {
                    $(Self::$variant => $word,)*
                    Self::Other(word) => word,
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($word => Self::$variant,)*
                    _ => Self::Other(word),
                }
            }
        }

        impl From<$name> for String {
            fn from(word: $name) -> Self {
                word.to_string()
            }
        }

        impl PartialEq<&str> for $name {
            fn eq(&self, word: &&str) -> bool {
                self.as_str() == *word
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

pub use open_enum;
