//! Paths below `/dashboard`, and the patterns that they are compared with.

use uuid::Uuid;

use crate::ROOT;

/// Where links lead.
pub(crate) const ENTER: &str = "/dashboard/enter";
pub(crate) const SIGN_IN: &str = "/dashboard/sign-in";
/// Where an account is asked for.
pub(crate) const SIGN_UP: &str = "/dashboard/sign-up";
/// Where the button to sign out leads.
pub(crate) const SIGN_OUT: &str = "/dashboard/sign-out";

/// Below `/dashboard`: the stream that tells a page of changes.
pub(crate) const LIVE: &str = "{s}/live";
/// The same for the pages of operators.
pub(crate) const OPERATOR_LIVE: &str = "operator/live";

/// Characters of the page that a sign-in leads to.
const LONGEST_NEXT: usize = 512;

/// What a path names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    /// `me`, or the id of a Team.
    pub scope: Option<String>,
    pub ids: Vec<Uuid>,
}

/// Compares a path with a pattern, in which `{s}` is a scope and `{id}` an id.
pub(crate) fn matches(pattern: &str, path: &str) -> Option<Named> {
    let (mut wanted, mut given) = (pattern.split('/'), path.split('/'));
    let mut named = Named::default();
    loop {
        match (wanted.next(), given.next()) {
            (None, None) => return Some(named),
            (Some("{s}"), Some(scope)) if scope == "me" || id(scope).is_some() => named.scope = Some(scope.to_owned()),
            (Some("{id}"), Some(text)) => named.ids.push(id(text)?),
            (Some(wanted), Some(given)) if wanted == given && !wanted.starts_with('{') => {}
            _ => return None,
        }
    }
}

/// A path of ours, to which a sign-in may lead: below `/dashboard`, and without anything that leads elsewhere.
pub(crate) fn own_page(next: &str) -> Option<&str> {
    let below = next.strip_prefix(ROOT)?;
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'-' | b'/');
    let fits = next.len() <= LONGEST_NEXT && below.starts_with('/') && !below.contains("//");
    (fits && below.bytes().all(is_plain)).then_some(next)
}

fn id(text: &str) -> Option<Uuid> {
    (text.len() == 36).then(|| Uuid::parse_str(text).ok()).flatten()
}
