//! In which ways visitors of http tunnels come.

/// How visitors come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    Http,
    Https,
}

impl Scheme {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }

    pub(super) fn usual_port(self) -> u16 {
        match self {
            Self::Http => 80,
            Self::Https => 443,
        }
    }
}

/// The ports at which visitors come, as they see them; `None` where there is no listener.
#[derive(Clone, Copy, Debug, Default)]
pub struct PublicPorts {
    pub http: Option<u16>,
    pub https: Option<u16>,
}

impl PublicPorts {
    pub(crate) fn set(&mut self, scheme: Scheme, port: u16) {
        match scheme {
            Scheme::Http => self.http = Some(port),
            Scheme::Https => self.https = Some(port),
        }
    }

    pub(super) fn of(self, scheme: Scheme) -> Option<u16> {
        match scheme {
            Scheme::Http => self.http,
            Scheme::Https => self.https,
        }
    }
}
