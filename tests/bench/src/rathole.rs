//! rathole as a peer: a server and a client beside each other.

use std::path::Path;
use std::process::Command;

use crate::service::{ADDRESS, Killed};

/// The name of a service, its public port and its local one.
pub type Forwarded<'a> = (&'a str, u16, u16);

/// A rathole server and client, as its documentation says, with Noise.
pub fn noise(folder: &Path, services: &[Forwarded]) -> [Killed; 2] {
    noise_of("tcp", folder, services)
}

/// As [`noise`], for datagrams.
pub fn noise_udp(folder: &Path, services: &[Forwarded]) -> [Killed; 2] {
    noise_of("udp", folder, services)
}

fn noise_of(kind: &str, folder: &Path, services: &[Forwarded]) -> [Killed; 2] {
    let keys = String::from_utf8(Command::new("rathole").arg("--genkey").output().unwrap().stdout).unwrap();
    let keys: Vec<&str> = keys.lines().filter(|line| line.ends_with('=')).collect();
    let [private, public] = keys[..] else { panic!("{keys:?}") };
    let transport = |key: &str| format!("type = \"noise\"\n[SIDE.transport.noise]\n{key}\n");
    let (server, client) = (format!("local_private_key = \"{private}\""), format!("remote_public_key = \"{public}\""));
    pair(folder, ("noise", kind), 5351, [transport(&server), transport(&client)], services)
}

/// The same without encryption.
pub fn plain(folder: &Path, services: &[Forwarded]) -> [Killed; 2] {
    let transport = || "type = \"tcp\"\n".to_owned();
    pair(folder, ("plain", "tcp"), 5352, [transport(), transport()], services)
}

fn pair(
    folder: &Path,
    (name, kind): (&str, &str),
    control: u16,
    transports: [String; 2],
    services: &[Forwarded],
) -> [Killed; 2] {
    let [server, client] = transports;
    let mut server = format!(
        "[server]\nbind_addr = \"{ADDRESS}:{control}\"\ndefault_token = \"bench\"\n[server.transport]\n{server}"
    );
    let mut client = format!(
        "[client]\nremote_addr = \"{ADDRESS}:{control}\"\ndefault_token = \"bench\"\n[client.transport]\n{client}"
    );
    for (name, public, local) in services {
        server += &format!("[server.services.{name}]\ntype = \"{kind}\"\nbind_addr = \"{ADDRESS}:{public}\"\n");
        client += &format!("[client.services.{name}]\ntype = \"{kind}\"\nlocal_addr = \"{ADDRESS}:{local}\"\n");
    }
    [("server", server), ("client", client)].map(|(side, config)| {
        let path = folder.join(format!("{name}-{side}.toml"));
        std::fs::write(&path, config.replace("SIDE", side)).unwrap();
        Killed::spawn(Command::new("rathole").arg(format!("--{side}")).arg(path))
    })
}
