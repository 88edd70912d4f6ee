//! A directory with renewal information (RFC 9773), which Pebble 2.4 has none of: Pebble's own, and one resource more.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_rustls::TlsAcceptor;

use super::pebble::Pebble;
use super::web::read_head;

pub struct RenewalDirectory {
    pub url: String,
    /// When certificates are to be renewed: the start and the end, as RFC 3339 has them.
    pub window: Arc<Mutex<(String, String)>>,
    /// How often that was asked.
    pub asked: Arc<Mutex<usize>>,
}

impl RenewalDirectory {
    /// Beside an authority, with its own certificate.
    pub async fn start(pebble: &Pebble, window: (String, String)) -> Self {
        let listener = TcpListener::bind(SocketAddr::new(pebble.address(), 0)).await.unwrap();
        let base = format!("https://{}", listener.local_addr().unwrap());
        let mut curl = Command::new("curl");
        curl.args(["-sSf", "--cacert"]).arg(pebble.certificate()).arg(pebble.directory());
        let mut directory: Value = serde_json::from_slice(&curl.output().await.unwrap().stdout).unwrap();
        directory["renewalInfo"] = format!("{base}/renewal").into();
        let acceptor = TlsAcceptor::from(Arc::new(own_config(&pebble.certificate())));
        let this = Self { url: format!("{base}/dir"), window: Arc::new(Mutex::new(window)), asked: Arc::default() };
        let (window, asked) = (this.window.clone(), this.asked.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let Ok(mut stream) = acceptor.accept(stream).await else { continue };
                let Some(head) = read_head(&mut stream).await else { continue };
                let body = if head.starts_with("GET /renewal/") {
                    *asked.lock().unwrap() += 1;
                    let (start, end) = window.lock().unwrap().clone();
                    json!({"suggestedWindow": {"start": start, "end": end}})
                } else {
                    directory.clone()
                };
                let body = body.to_string();
                let head =
                    "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nRetry-After: 21600\r\nConnection: close";
                let answer = format!("{head}\r\nContent-Length: {}\r\n\r\n{body}", body.len());
                let _ = stream.write_all(answer.as_bytes()).await;
                let _ = stream.shutdown().await;
            }
        });
        this
    }
}

fn own_config(certificate: &Path) -> ServerConfig {
    let chain = vec![CertificateDer::from_pem_file(certificate).unwrap()];
    let key = PrivateKeyDer::from_pem_file(certificate.with_file_name("key.pem")).unwrap();
    ServerConfig::builder().with_no_client_auth().with_single_cert(chain, key).unwrap()
}
