//! Country databases of a test's own: MaxMind DB (file format version 2.0), as small as it can be.

use std::net::Ipv4Addr;

use ipnet::Ipv4Net;

/// What a database knows of a network.
#[derive(Clone, Copy, Debug)]
pub enum Known {
    /// Its addresses are used in this country.
    UsedIn(&'static str),
    /// They are registered in this country, and used nobody knows where.
    RegisteredIn(&'static str),
}

/// Zero bytes between the search tree and the data.
const SEPARATOR: usize = 16;
const METADATA: &[u8] = b"\xab\xcd\xefMaxMind.com";

/// A database that knows of these networks; of two that overlap, the later one wins.
pub fn database(networks: &[(&str, Known)]) -> Vec<u8> {
    let (mut tree, mut data) = (Tree::new(), Vec::new());
    for (network, known) in networks {
        tree.insert(network.parse().unwrap(), data.len());
        let (field, country) = match known {
            Known::UsedIn(country) => ("country", country),
            Known::RegisteredIn(country) => ("registered_country", country),
        };
        map(&mut data, 1);
        text(&mut data, field);
        map(&mut data, 1);
        text(&mut data, "iso_code");
        text(&mut data, country);
    }
    let nodes = tree.nodes.len();
    let mut file = tree.written();
    file.extend([0; SEPARATOR]);
    file.extend(data);
    file.extend(METADATA);
    metadata(&mut file, nodes as u64);
    file
}

fn metadata(file: &mut Vec<u8>, nodes: u64) {
    map(file, 9);
    for (name, kind, value) in [
        ("binary_format_major_version", UINT16, 2),
        ("binary_format_minor_version", UINT16, 0),
        ("build_epoch", UINT64, 1_768_478_400),
        ("ip_version", UINT16, 6),
        ("node_count", UINT32, nodes),
        ("record_size", UINT16, 24),
    ] {
        text(file, name);
        number(file, kind, value);
    }
    text(file, "database_type");
    text(file, "Test-Country");
    text(file, "languages");
    // An empty array: of its type, only the extended part is not zero.
    file.extend([0, 11 - 7]);
    text(file, "description");
    map(file, 1);
    text(file, "en");
    text(file, "Countries of a test");
}

/// The binary search tree: a node for every bit, with a record for each of its values.
struct Tree {
    nodes: Vec<[Record; 2]>,
}

#[derive(Clone, Copy)]
enum Record {
    Nothing,
    Node(usize),
    Data(usize),
}

impl Tree {
    fn new() -> Self {
        Self { nodes: vec![[Record::Nothing; 2]] }
    }

    /// IPv4 addresses are found behind 96 zero bits.
    fn insert(&mut self, network: Ipv4Net, data: usize) {
        let address = u128::from(Ipv4Addr::to_bits(network.network()));
        let length = 96 + u32::from(network.prefix_len());
        let bit = |place: u32| (address >> (127 - place) & 1) as usize;
        let mut node = 0;
        for place in 0..length - 1 {
            node = self.below(node, bit(place));
        }
        self.nodes[node][bit(length - 1)] = Record::Data(data);
    }

    /// The node behind a record, which is made where there is none: both its halves are what the
    /// record was.
    fn below(&mut self, node: usize, bit: usize) -> usize {
        match self.nodes[node][bit] {
            Record::Node(below) => below,
            whole => {
                self.nodes.push([whole; 2]);
                let below = self.nodes.len() - 1;
                self.nodes[node][bit] = Record::Node(below);
                below
            }
        }
    }

    fn written(&self) -> Vec<u8> {
        let count = self.nodes.len();
        let number = |record: &Record| match record {
            Record::Nothing => count,
            Record::Node(node) => *node,
            Record::Data(offset) => count + SEPARATOR + offset,
        };
        let records = self.nodes.iter().flatten().map(|record| u32::try_from(number(record)).unwrap().to_be_bytes());
        records.flat_map(|[_, a, b, c]| [a, b, c]).collect()
    }
}

const UINT16: u8 = 5;
const UINT32: u8 = 6;
/// An extended type.
const UINT64: u8 = 9;

fn map(out: &mut Vec<u8>, entries: u8) {
    out.push(7 << 5 | entries);
}

fn text(out: &mut Vec<u8>, text: &str) {
    assert!(text.len() < 29, "longer texts are written otherwise");
    out.push(2 << 5 | text.len() as u8);
    out.extend(text.as_bytes());
}

fn number(out: &mut Vec<u8>, kind: u8, value: u64) {
    let bytes = value.to_be_bytes();
    let bytes = &bytes[value.leading_zeros() as usize / 8..];
    match kind {
        UINT64 => out.extend([bytes.len() as u8, kind - 7]),
        _ => out.push(kind << 5 | bytes.len() as u8),
    }
    out.extend(bytes);
}

#[test]
fn what_is_written_can_be_read() {
    let networks = [
        ("127.1.0.0/16", Known::UsedIn("DE")),
        ("127.1.2.0/24", Known::UsedIn("FR")),
        ("192.0.2.1/32", Known::RegisteredIn("IT")),
    ];
    let reader = maxminddb::Reader::from_source(database(&networks)).unwrap();
    reader.verify().unwrap();
    assert_eq!((reader.metadata().ip_version, reader.metadata().build_epoch), (6, 1_768_478_400));
    let country = |address: &str, field: &'static str| {
        let path = [maxminddb::PathElement::Key(field), maxminddb::PathElement::Key("iso_code")];
        let found = reader.lookup(address.parse().unwrap()).unwrap();
        found.decode_path::<String>(&path).unwrap().unwrap_or_default()
    };
    for (address, field, expected) in [
        ("127.1.0.1", "country", "DE"),
        ("127.1.255.255", "country", "DE"),
        ("127.1.2.3", "country", "FR"),
        ("127.1.2.3", "registered_country", ""),
        ("192.0.2.1", "registered_country", "IT"),
        ("192.0.2.0", "registered_country", ""),
        ("127.0.255.255", "country", ""),
        ("2001:db8::1", "country", ""),
    ] {
        assert_eq!(country(address, field), expected, "{address}");
    }
}
