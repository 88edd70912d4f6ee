//! The local authority: the root certificates of the platform's own domains, the same at every host.

use std::path::PathBuf;

use culvert_certificates::local_ca::{Root, RootFolder};
use culvert_domain::error::{Error, Result};
use culvert_store::Store;
use culvert_store::local_roots::LocalRoot;

use crate::secrets::{Purpose, Secrets};

/// Keeps the roots in the database, and their certificates in a folder for whoever is to trust them.
#[derive(Clone, Debug)]
pub struct LocalRoots(RootFolder);

impl LocalRoots {
    pub fn new(folder: PathBuf) -> Self {
        Self(RootFolder(folder))
    }

    /// Where the certificate of a domain's root is.
    pub fn path(&self, domain: &str) -> PathBuf {
        self.0.path(domain)
    }

    /// The root of a domain. One that is missing, or will soon be over, is made; one that an earlier version has kept in the
    /// folder is taken over.
    ///
    /// # Errors
    ///
    /// If the database fails, or the folder cannot be written.
    pub async fn root(&self, store: &Store, secrets: &Secrets, domain: &str) -> Result<Root> {
        let now = store.clock().now();
        let known = store.local_root(domain).await?;
        let root = match known.as_ref().and_then(|known| open(secrets, known)).filter(|root| root.is_good(now)) {
            Some(root) => root,
            None => self.replace(store, secrets, domain, known).await?,
        };
        self.0
            .keep(domain, &root.pem)
            .map_err(|error| Error::internal(format!("{}: {error}", self.path(domain).display())))?;
        Ok(root)
    }

    async fn replace(&self, store: &Store, secrets: &Secrets, domain: &str, former: Option<LocalRoot>) -> Result<Root> {
        let now = store.clock().now();
        let kept = if former.is_none() { self.0.former(domain).filter(|root| root.is_good(now)) } else { None };
        let root = kept.map_or_else(|| Root::create(domain, now), Ok).map_err(Error::internal)?;
        let sealed_key = secrets.seal(Purpose::LocalRoots, domain.as_bytes(), root.key().as_bytes());
        let new = LocalRoot { domain: domain.into(), certificate: root.pem, sealed_key };
        let keep =
            store.write(None, move |write| Box::pin(async move { write.keep_local_root(&new, former.as_ref()).await }));
        keep.await?;
        // Another host may have been faster.
        let kept = store.local_root(domain).await?;
        let unreadable = || Error::internal(format!("the root of {domain} was sealed with other keys"));
        kept.and_then(|kept| open(secrets, &kept)).ok_or_else(unreadable)
    }
}

fn open(secrets: &Secrets, root: &LocalRoot) -> Option<Root> {
    let key = secrets.open_sealed(Purpose::LocalRoots, root.domain.as_bytes(), &root.sealed_key);
    let opened = key.and_then(|key| Root::read(&root.certificate, &key));
    if opened.is_none() {
        tracing::error!(domain = root.domain, "the key of the local authority cannot be opened; it is made anew");
    }
    opened
}
