//! Which passwords may be set.

use culvert_domain::error::{Error, Fault, Result};
use culvert_domain::sign_in::SignIn;

pub(super) const PASSWORD_CHARACTERS: std::ops::RangeInclusive<usize> = 12..=256;

/// Length and strength alone: no rules about which characters there must be.
pub(super) fn check_strength(password: &str, sign_in: &SignIn) -> Result<()> {
    let fault = |message: String| Err(Error::invalid(vec![Fault::new("password", message)]));
    let (shortest, longest) = (PASSWORD_CHARACTERS.start(), PASSWORD_CHARACTERS.end());
    if !PASSWORD_CHARACTERS.contains(&password.chars().count()) {
        return fault(format!("must have {shortest} to {longest} characters"));
    }
    let strength = zxcvbn::zxcvbn(password, &[&sign_in.email, &sign_in.name]);
    if strength.score() >= zxcvbn::Score::Three {
        return Ok(());
    }
    let advice =
        strength.feedback().and_then(zxcvbn::feedback::Feedback::warning).map(|warning| format!(": {warning}"));
    fault(format!("is too easy to guess{}", advice.unwrap_or_default().trim_end_matches('.')))
}
