//! Amounts of data, in decimal units as plans count them.

use culvert_domain::usage::Traffic;

pub(crate) fn amount(bytes: u64) -> String {
    const UNITS: [(u64, &str); 4] =
        [(1_000_000_000_000, "TB"), (1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} bytes"),
    }
}

pub(crate) fn traffic(traffic: Traffic) -> String {
    format!("{} in, {} out", amount(traffic.bytes_in), amount(traffic.bytes_out))
}
