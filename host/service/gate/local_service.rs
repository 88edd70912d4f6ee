//! How the service of a tunnel is spoken to, as requests say it.

use culvert_api_types::read::Nullable;
use culvert_api_types::requests::{NewTunnel, TunnelPatch};
use culvert_domain::error::Fault;
use culvert_domain::local_service::{LocalScheme, LocalService, ProxyProtocol};
use culvert_domain::protocol::Protocol;

/// A change of [`LocalService`]. Absent fields keep their value.
#[derive(Clone, Debug)]
pub struct LocalServiceChange {
    host_header: Nullable<String>,
    scheme: Option<LocalScheme>,
    tls_verify: Nullable<bool>,
    proxy_protocol: Option<ProxyProtocol>,
    tls_passthrough: Option<bool>,
}

impl LocalServiceChange {
    pub(super) fn of_new(new: &NewTunnel) -> Self {
        Self {
            host_header: Some(new.host_header.clone()),
            scheme: new.local_scheme,
            tls_verify: Some(new.local_tls_verify),
            proxy_protocol: new.proxy_protocol,
            tls_passthrough: new.tls_passthrough,
        }
    }

    pub(super) fn of_patch(patch: &TunnelPatch) -> Self {
        Self {
            host_header: patch.host_header.clone(),
            scheme: patch.local_scheme,
            tls_verify: patch.local_tls_verify,
            proxy_protocol: patch.proxy_protocol,
            tls_passthrough: patch.tls_passthrough,
        }
    }

    pub(super) fn applied_to(self, service: LocalService) -> LocalService {
        LocalService {
            host_header: self.host_header.unwrap_or(service.host_header),
            scheme: self.scheme.unwrap_or(service.scheme),
            tls_verify: self.tls_verify.unwrap_or(service.tls_verify),
            proxy_protocol: self.proxy_protocol.unwrap_or(service.proxy_protocol),
            tls_passthrough: self.tls_passthrough.unwrap_or(service.tls_passthrough),
        }
    }
}

pub(super) fn check_service(service: &LocalService, protocol: Protocol, has_basic_auth: bool, faults: &mut Vec<Fault>) {
    faults.extend(
        service.faults(protocol, has_basic_auth).into_iter().map(|(field, message)| Fault::new(field, message)),
    );
}
