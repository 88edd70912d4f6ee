//! Patterns for names: globs, suffixes of domains, and, with the feature `regex`, regular expressions.

/// Whether a text matches a glob: `*` stands for any letters, `?` for one.
pub fn is_glob_match(glob: &str, text: &str) -> bool {
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    // Where to go on if what follows the last star does not match: the star, and the text that it has taken.
    let (mut g, mut t, mut star) = (0, 0, None);
    while t < text.len() {
        match glob.get(g) {
            Some('*') => {
                star = Some((g, t));
                g += 1;
            }
            Some('?') => (g, t) = (g + 1, t + 1),
            Some(letter) if *letter == text[t] => (g, t) = (g + 1, t + 1),
            _ => {
                let Some((at, taken)) = star else { return false };
                star = Some((at, taken + 1));
                (g, t) = (at + 1, taken + 1);
            }
        }
    }
    glob[g..].iter().all(|letter| *letter == '*')
}

/// Whether a host name is a domain or lies below it, in any case and with or without the trailing dot.
pub fn is_domain_or_below(host: &str, domain: &str) -> bool {
    let plain = |name: &str| name.trim_end_matches('.').to_ascii_lowercase();
    let (host, domain) = (plain(host), plain(domain));
    let above = host.strip_suffix(domain.as_str());
    !domain.is_empty() && above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
}

/// A regular expression, compiled once in `configure`. As a setting it is a text.
#[cfg(feature = "regex")]
#[derive(Clone, Debug)]
pub struct Regex(regex_lite::Regex);

#[cfg(feature = "regex")]
impl Regex {
    /// # Errors
    ///
    /// If the text is no regular expression.
    pub fn new(pattern: &str) -> Result<Self, regex_lite::Error> {
        regex_lite::Regex::new(pattern).map(Self)
    }

    /// Whether the expression matches anywhere in the text; `^` and `$` bind it to the ends.
    pub fn is_match(&self, text: &str) -> bool {
        self.0.is_match(text)
    }
}

#[cfg(feature = "regex")]
impl<'de> serde::Deserialize<'de> for Regex {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let pattern = String::deserialize(deserializer)?;
        Self::new(&pattern).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glob_matches_the_whole_text() {
        for (glob, text) in [("*", ""), ("prod-*", "prod-db"), ("*-db", "prod-db"), ("a*b*c", "a-b-b-c"), ("?b", "äb")]
        {
            assert!(is_glob_match(glob, text), "{glob} {text}");
        }
        for (glob, text) in [("", "a"), ("prod-*", "a prod-db"), ("*-db", "prod-db2"), ("?", ""), ("a*b", "a")] {
            assert!(!is_glob_match(glob, text), "{glob} {text}");
        }
        assert!(!is_glob_match(&"*a".repeat(50), &"a".repeat(49)), "many stars end in time");
    }

    #[test]
    fn domain_holds_what_lies_below_it_and_no_more() {
        assert!(is_domain_or_below("example.com", "example.com"));
        assert!(is_domain_or_below("a.b.Example.com.", "example.com"));
        assert!(!is_domain_or_below("badexample.com", "example.com"));
        assert!(!is_domain_or_below("example.com", "a.example.com") && !is_domain_or_below("example.com", ""));
    }

    #[cfg(feature = "regex")]
    #[test]
    fn expression_is_read_from_settings() {
        let regex: Regex = serde_json::from_str(r#""^[a-z]+-[0-9]{2}$""#).unwrap();
        assert!(regex.is_match("web-01") && !regex.is_match("web-1") && !regex.is_match("a web-01"));
        assert!(serde_json::from_str::<Regex>(r#""[a""#).is_err());
    }
}
