//! Protocols of tunnels, and the transports that they take.

use super::string_enum::string_enum;

string_enum! {
    Protocol {
        Tcp "tcp",
        Udp "udp",
        Both "both",
        Http "http",
    }
}

string_enum! {
    Transport {
        Tcp "tcp",
        Udp "udp",
    }
}

impl Protocol {
    /// The transports that one public port of the protocol takes. An http tunnel takes none of its
    /// own: it is found by its name on the node's shared ports.
    pub fn transports(self) -> &'static [Transport] {
        match self {
            Protocol::Tcp => &[Transport::Tcp],
            Protocol::Udp => &[Transport::Udp],
            Protocol::Both => &[Transport::Tcp, Transport::Udp],
            Protocol::Http => &[],
        }
    }
}
