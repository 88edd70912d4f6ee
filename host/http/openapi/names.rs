//! Names of operations and of the parameters in their paths.

use culvert_domain::action::Action;

/// `tunnels.create` is the operation `tunnels_create`.
pub(super) fn operation_id(action: Action) -> String {
    action.name().replace('.', "_")
}

/// The names in `{braces}`.
pub fn path_parameters(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'))
}
