//! How TXT records get into the DNS, for DNS-01.

use culvert_certificates::acme;
use culvert_certificates::dns_command::DnsCommand;
use culvert_certificates::zone::Zone;
use culvert_store::acme::StoredChallenge;

/// How TXT records get into the DNS.
pub enum DnsProof {
    /// The built-in server.
    Zone(Zone),
    Command(DnsCommand),
}

impl DnsProof {
    pub(super) async fn set(&self, challenges: &[StoredChallenge]) -> Result<(), String> {
        for challenge in challenges {
            let (name, value) = acme::txt_record(&challenge.name, &challenge.value);
            match self {
                Self::Zone(zone) => zone.set(&name, &value),
                Self::Command(command) => command.run("set", &name, &value).await?,
            }
        }
        Ok(())
    }

    pub(super) async fn clear(&self, challenges: &[StoredChallenge]) {
        for challenge in challenges {
            let (name, value) = acme::txt_record(&challenge.name, &challenge.value);
            match self {
                Self::Zone(zone) => zone.clear(&name, &value),
                Self::Command(command) => {
                    if let Err(error) = command.run("clear", &name, &value).await {
                        tracing::warn!(%error, name, "a TXT record could not be cleared");
                    }
                }
            }
        }
    }
}
