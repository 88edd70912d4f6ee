//! Credentials of registries, from the configuration file of docker (`~/.docker/config.json`, or `$DOCKER_CONFIG`), as
//! `docker login` and `oras login` write it.

use std::env;
use std::path::{Path, PathBuf};

use docker_credential::{CredentialRetrievalError, DockerCredential};
use oci_client::secrets::RegistryAuth;

/// How docker's file calls its own registry.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Where docker keeps its configuration.
fn config_file() -> Option<PathBuf> {
    let in_home = || Some(Path::new(&env::var_os("HOME")?).join(".docker"));
    let folder = env::var_os("DOCKER_CONFIG").map(PathBuf::from).or_else(in_home)?;
    Some(folder.join("config.json"))
}

/// What to show a registry; nothing if the file says nothing of it.
///
/// # Errors
///
/// One line, if the file or the program that it names cannot be used.
pub(crate) fn of_registry(registry: &str) -> Result<RegistryAuth, String> {
    if !config_file().is_some_and(|file| file.is_file()) {
        return Ok(RegistryAuth::Anonymous);
    }
    let name = if registry == "index.docker.io" || registry == "docker.io" { DOCKER_HUB } else { registry };
    match docker_credential::get_credential(name) {
        Ok(DockerCredential::UsernamePassword(user, password)) => Ok(RegistryAuth::Basic(user, password)),
        Ok(DockerCredential::IdentityToken(_)) => Err(format!(
            "docker's configuration has an identity token for {registry}; log in with a password or a token"
        )),
        Err(CredentialRetrievalError::ConfigNotFound | CredentialRetrievalError::NoCredentialConfigured) => {
            Ok(RegistryAuth::Anonymous)
        }
        Err(error) => {
            let line = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
            Err(format!("docker's configuration, for {registry}: {line}"))
        }
    }
}
