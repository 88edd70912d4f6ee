//! Secrets that people carry: API keys and enrolment codes.

use culvert_wire::clock::Clock;
use sha2::{Digest, Sha256};

const PREFIX: &str = "ctk_";
const PUBLIC: usize = 12;
const SECRET: usize = 32;
const CHECKSUM: usize = 6;

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Without the letters that are mistaken for digits or each other (I, L, O, U).
const CROCKFORD: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

/// An API key, `ctk_` + a public part that finds its record + a secret part + a checksum, by which
/// a typo is refused without a query.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey {
    text: String,
}

impl ApiKey {
    pub fn generate(clock: &Clock) -> Self {
        let body: String = (0..PUBLIC + SECRET).map(|_| draw(clock, BASE62)).collect();
        let checksum = checksum(&body);
        Self { text: format!("{PREFIX}{body}{checksum}") }
    }

    /// `None` for anything that cannot be a key.
    pub fn parse(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(PREFIX)?;
        let well_formed = rest.len() == PUBLIC + SECRET + CHECKSUM && rest.bytes().all(|b| b.is_ascii_alphanumeric());
        if !well_formed {
            return None;
        }
        let (body, given) = rest.split_at(PUBLIC + SECRET);
        (checksum(body) == given).then(|| Self { text: text.into() })
    }

    pub fn public_id(&self) -> &str {
        &self.text[PREFIX.len()..PREFIX.len() + PUBLIC]
    }

    pub fn secret_hash(&self) -> [u8; 32] {
        Sha256::digest(&self.text[PREFIX.len() + PUBLIC..]).into()
    }

    /// The whole key, for the one time that it is shown.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

fn checksum(body: &str) -> String {
    let digest = Sha256::digest(body);
    digest.iter().take(CHECKSUM).map(|byte| char::from(BASE62[usize::from(*byte) % BASE62.len()])).collect()
}

/// A one-time code by which a device enrols: five groups of four, read in any case, with or
/// without the hyphens.
#[derive(Clone)]
pub struct EnrolmentCode(String);

/// Without the hyphens.
const CODE_CHARACTERS: usize = 20;

impl EnrolmentCode {
    pub fn generate(clock: &Clock) -> Self {
        let characters: Vec<char> = (0..CODE_CHARACTERS).map(|_| draw(clock, CROCKFORD)).collect();
        let groups: Vec<String> = characters.chunks(4).map(|group| group.iter().collect()).collect();
        Self(groups.join("-"))
    }

    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// The hash by which a code that was typed in is found.
    pub fn hash(typed: &str) -> [u8; 32] {
        let plain: String = typed.chars().filter(char::is_ascii_alphanumeric).collect();
        Sha256::digest(plain.to_ascii_uppercase()).into()
    }

    /// The same, for what has the form of a code at all.
    pub fn hash_of(typed: &str) -> Option<[u8; 32]> {
        let characters = typed.chars().filter(char::is_ascii_alphanumeric).count();
        (typed.len() <= 2 * CODE_CHARACTERS && characters == CODE_CHARACTERS).then(|| Self::hash(typed))
    }
}

/// One character of an alphabet, each as likely as the others.
fn draw(clock: &Clock, alphabet: &[u8]) -> char {
    let fair = 256 - 256 % alphabet.len();
    loop {
        let [byte] = clock.random::<1>();
        if usize::from(byte) < fair {
            return char::from(alphabet[usize::from(byte) % alphabet.len()]);
        }
    }
}

/// A label for an http tunnel whose owner asked for none.
pub fn generated_subdomain(clock: &Clock) -> String {
    const LETTERS: &[u8] = b"abcdefghjkmnpqrstvwxyz0123456789";
    let start = draw(clock, &LETTERS[..22]);
    std::iter::once(start).chain((0..9).map(|_| draw(clock, LETTERS))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_api_key_parses_and_mistyped_key_does_not_match() {
        let key = ApiKey::generate(&Clock::system());
        let text = key.reveal().to_owned();
        assert!(ApiKey::parse(&text).is_some_and(|read| read == key));
        for position in PREFIX.len()..text.len() {
            let mut typo = text.clone().into_bytes();
            typo[position] = if typo[position] == b'a' { b'b' } else { b'a' };
            let typo = String::from_utf8(typo).unwrap();
            assert!(ApiKey::parse(&typo).is_none_or(|read| read.secret_hash() != key.secret_hash()), "{position}");
        }
        for broken in ["", "ctk_", "ctk_ä", &text[1..], &text[..text.len() - 1], &format!("{text}0")] {
            assert!(ApiKey::parse(broken).is_none());
        }
    }

    #[test]
    fn enrolment_code_hash_ignores_case_and_separators() {
        let code = EnrolmentCode::generate(&Clock::system());
        let typed = code.reveal().replace('-', " ").to_lowercase();
        assert_eq!(EnrolmentCode::hash(code.reveal()), EnrolmentCode::hash(&typed));
        assert_eq!(code.reveal().len(), 24);
    }
}
