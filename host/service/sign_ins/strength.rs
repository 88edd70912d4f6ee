//! Which passwords may be set.

use culvert_domain::error::{Error, Fault, Result};
use zxcvbn::feedback::Feedback;
use zxcvbn::{Score, zxcvbn};

use crate::passwords::Passwords;

pub(super) const PASSWORD_CHARACTERS: std::ops::RangeInclusive<usize> = 12..=256;
/// Characters that are rated: the work grows much faster than the length, and as many that are good are good enough.
const RATED: usize = 32;

/// Length and strength alone: no rules about which characters there must be. What is known of the person, such as the name,
/// is easy to guess.
pub(super) async fn check_strength(passwords: &Passwords, password: &str, hints: [&str; 2]) -> Result<()> {
    let fault = |message: String| Err(Error::invalid(vec![Fault::new("password", message)]));
    let (shortest, longest) = (PASSWORD_CHARACTERS.start(), PASSWORD_CHARACTERS.end());
    if !PASSWORD_CHARACTERS.contains(&password.chars().count()) {
        return fault(format!("must have {shortest} to {longest} characters"));
    }
    let rated: String = password.chars().take(RATED).collect();
    let hints = hints.map(str::to_owned);
    let rate = move || {
        let strength = zxcvbn(&rated, &hints.each_ref().map(String::as_str));
        let advice = strength.feedback().and_then(Feedback::warning).map(|warning| warning.to_string());
        (strength.score() >= Score::Three, advice)
    };
    // It may panic where a pattern is repeated so often that a number overflows, which is easy to guess.
    let (is_strong, advice) = passwords.work(rate).await?.unwrap_or_default();
    if is_strong {
        return Ok(());
    }
    let advice = advice.map(|advice| format!(": {}", advice.trim_end_matches('.'))).unwrap_or_default();
    fault(format!("is too easy to guess{advice}"))
}
