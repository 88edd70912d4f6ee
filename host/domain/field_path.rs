//! Paths into JSON and into settings, as people are told them: `rules[2].ip_cidr`.

/// A field of what is at a path; the whole is at an empty one.
pub fn field(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The path that these parts lead along. A number is a place in a list.
pub fn along<T: AsRef<str>>(parts: impl IntoIterator<Item = T>) -> String {
    parts.into_iter().fold(String::new(), |path, part| {
        let part = part.as_ref();
        let is_number = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        if is_number { format!("{path}[{part}]") } else { field(&path, part) }
    })
}
