//! The local authority: the root certificates of the platform's own domains, the same at every host.

use std::path::PathBuf;

use culvert_certificates::local_ca::{Root, RootFolder};
use culvert_domain::error::{Error, Result};
use culvert_store::Store;
use culvert_store::local_roots::LocalRoot;

use crate::secrets::{Purpose, Secrets};

/// Keeps the roots in the database, and their certificates in a folder for whoever is to trust them.
#[derive(Clone, Debug)]
pub struct LocalRoots {
    folder: RootFolder,
    /// The domains of this host's nodes.
    own_domains: Vec<String>,
}

impl LocalRoots {
    pub fn new(folder: PathBuf, own_domains: Vec<String>) -> Self {
        Self { folder: RootFolder(folder), own_domains }
    }

    /// Where the certificate of a domain's root is.
    pub fn path(&self, domain: &str) -> PathBuf {
        self.folder.path(domain)
    }

    /// The root of a domain. For a domain of this host's nodes, one that is missing, or will soon be over, is made; one that an
    /// earlier version has kept in the folder is taken over.
    ///
    /// # Errors
    ///
    /// If its key cannot be opened, or another host has to make it; if the database fails.
    pub async fn root(&self, store: &Store, secrets: &Secrets, domain: &str) -> Result<Root> {
        let known = store.local_root(domain).await?;
        let opened = known.as_ref().map(|known| open(secrets, known)).transpose()?;
        let is_own = self.own_domains.iter().any(|own| own == domain);
        let root = match opened {
            Some(root) if !is_own || root.is_good(store.clock().now()) => root,
            _ if is_own => self.replace(store, secrets, domain, known).await?,
            _ => return Err(missing(domain)),
        };
        self.show(domain, &root);
        Ok(root)
    }

    /// Writes the certificate where people find it.
    fn show(&self, domain: &str, root: &Root) {
        if let Err(error) = self.folder.keep(domain, &root.pem) {
            tracing::warn!(file = %self.path(domain).display(), %error, "a root certificate could not be written");
        }
    }

    async fn replace(&self, store: &Store, secrets: &Secrets, domain: &str, former: Option<LocalRoot>) -> Result<Root> {
        let now = store.clock().now();
        let kept = if former.is_none() { self.folder.former(domain).filter(|root| root.is_good(now)) } else { None };
        let root = kept.map_or_else(|| Root::create(domain, now), Ok).map_err(Error::internal)?;
        let sealed_key = secrets.seal(Purpose::LocalRoots, domain.as_bytes(), root.key().as_bytes());
        let new = LocalRoot { domain: domain.into(), certificate: root.pem, sealed_key };
        let keep =
            store.write(None, move |write| Box::pin(async move { write.keep_local_root(&new, former.as_ref()).await }));
        keep.await?;
        // Another process may have been faster.
        let kept = store.local_root(domain).await?;
        open(secrets, &kept.ok_or_else(|| missing(domain))?)
    }
}

fn missing(domain: &str) -> Error {
    Error::internal(format!("the local authority has no root for {domain} yet; the host of its node makes it"))
}

fn open(secrets: &Secrets, root: &LocalRoot) -> Result<Root> {
    let key = secrets.open_sealed(Purpose::LocalRoots, root.domain.as_bytes(), &root.sealed_key);
    let opened = key.and_then(|key| Root::read(&root.certificate, &key));
    opened.ok_or_else(|| {
        let problem = "was sealed with a key that secret_key_file does not have; bring the key back";
        Error::internal(format!("the root of the local authority for {} {problem}", root.domain))
    })
}
