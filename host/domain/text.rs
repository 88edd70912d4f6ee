//! Text that people write and others read: names, labels, descriptions.

/// The host's own bound on the length of such a text, whatever the policies say.
pub const LONGEST: usize = 255;

/// Whether a text is what it looks like: without control characters, without what reverses the
/// direction of what stands around it, without what is invisible but for the joiners that scripts and
/// emoji need, and without separators of lines.
pub fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| c.is_control() || is_deceptive(c))
}

/// Format characters (Unicode, general category Cf) and separators of lines and paragraphs.
fn is_deceptive(c: char) -> bool {
    matches!(
        c,
        '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
    )
}

/// What is wrong with a text, if something is.
pub fn fault(text: &str) -> Option<&'static str> {
    if text.chars().count() > LONGEST {
        Some("must have at most 255 characters")
    } else if !is_plain(text) {
        Some("must not hold control, bidirectional, invisible or line separator characters")
    } else {
        None
    }
}

/// What somebody says of themselves, as much of it as is kept: so many characters, with a space for
/// each that is not plain.
pub fn cleaned(text: &str, longest: usize) -> String {
    let plain = |c: char| if c.is_control() || is_deceptive(c) { ' ' } else { c };
    text.chars().take(longest).map(plain).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_with_spoofing_characters_is_not_plain() {
        for bad in ["a\u{202e}b", "a\u{2028}b", "a\u{feff}", "\u{200b}", "\u{2066}x", "\u{1b}[31m", "a\u{85}", "a\tb"] {
            assert!(!is_plain(bad), "{bad:?}");
        }
        for good in ["server", "سرور", "שרת", "👩\u{200d}💻", "می\u{200c}خواهم", "a b", "日本"] {
            assert!(is_plain(good), "{good}");
        }
    }

    #[test]
    fn cleaned_text_is_plain_and_truncated() {
        assert_eq!(cleaned("a\u{1b}[31m\0b\n", 100), "a [31m b");
        assert_eq!(cleaned(&"ü".repeat(200), 64).chars().count(), 64);
    }
}
