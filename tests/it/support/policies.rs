//! A host whose policies are swapped: its configuration in a file, and its admin listener.

use std::path::{Path, PathBuf};

use culvert::config::Config;
use reqwest::header::ORIGIN;
use reqwest::{Method, RequestBuilder};
use serde_json::Value;
use sha2::{Digest, Sha256};

use super::host::{Engine, TestHost};
use super::hostile::Module;

pub struct Swapped {
    pub host: TestHost,
    file: PathBuf,
}

/// An entry of the configuration for a file, with its digest and whatever else it says.
pub fn entry(kind: &str, file: &Path, more: &str) -> String {
    let digest = hex::encode(Sha256::digest(std::fs::read(file).unwrap()));
    let file = file.display();
    format!("[[policy]]\nkind = \"{kind}\"\nmodule = \"{file}\"\nsha256 = \"{digest}\"\n{more}\n")
}

/// The shipped modules of these kinds.
pub fn builtin(kinds: &[&str]) -> String {
    kinds.iter().map(|kind| format!("[[policy]]\nkind = \"{kind}\"\nmodule = \"builtin:{kind}\"\n")).collect()
}

impl Swapped {
    pub async fn start(change: impl FnOnce(&mut Config)) -> Self {
        Self::on(Engine::Sqlite, change).await
    }

    pub async fn on(engine: Engine, change: impl FnOnce(&mut Config)) -> Self {
        let mut file = PathBuf::new();
        let host = TestHost::with(engine, |config| {
            file = config.data_dir.join("culvert.toml");
            std::fs::write(&file, "").unwrap();
            config.file = Some(file.clone());
            change(config);
        })
        .await;
        Self { host, file }
    }

    /// The same host, started again.
    pub async fn restarted(self) -> Self {
        let Self { host, file } = self;
        let host = host.restart_with(|config| config.policy = Config::load(Some(&file)).unwrap().policy).await;
        Self { host, file }
    }

    /// Writes a hostile module beside the configuration.
    pub fn write(&self, name: &str, module: &Module) -> PathBuf {
        self.write_wasm(name, &module.component())
    }

    pub fn write_wasm(&self, name: &str, wasm: &[u8]) -> PathBuf {
        let path = self.file.with_file_name(name);
        std::fs::write(&path, wasm).unwrap();
        path
    }

    /// Changes the configuration.
    pub fn configure(&self, policies: &str) {
        self.host.configure(policies);
    }

    pub fn admin(&self, path: &str) -> String {
        format!("http://{}/{path}", self.host.admin_address)
    }

    /// A request that shows the operator's token.
    fn operator(&self, method: Method, path: &str) -> RequestBuilder {
        self.host.operator(method, path)
    }

    /// What `reload` answers: the generation, or the problem.
    pub async fn reload(&self) -> Result<u64, String> {
        self.host.reload().await
    }

    pub async fn rollback(&self) -> Result<u64, String> {
        self.host.rollback().await
    }

    /// As a browser would for a page.
    pub async fn reload_from_a_page(&self) -> u16 {
        let request = self.operator(Method::POST, "policies/reload").header(ORIGIN, "https://example.com");
        request.send().await.unwrap().status().as_u16()
    }

    pub async fn status(&self) -> Value {
        self.host.policy_status().await
    }

    pub async fn metrics(&self) -> String {
        self.operator(Method::GET, "metrics").send().await.unwrap().text().await.unwrap()
    }

    /// One figure of `/metrics`, by its whole name with labels.
    pub async fn metric(&self, name: &str) -> Option<f64> {
        let metrics = self.metrics().await;
        let line = metrics.lines().find(|line| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(' ')));
        line.map(|line| line.rsplit(' ').next().unwrap().parse().unwrap())
    }
}

/// The operator of a host whose configuration is in a file.
impl TestHost {
    /// Changes the configuration.
    pub fn configure(&self, policies: &str) {
        std::fs::write(self.config().file.as_ref().unwrap(), policies).unwrap();
    }

    /// A request that shows the operator's token.
    fn operator(&self, method: Method, path: &str) -> RequestBuilder {
        let url = format!("http://{}/{path}", self.admin_address);
        client().request(method, url).bearer_auth(self.admin_token())
    }

    /// What `reload` answers: the generation, or the problem.
    pub async fn reload(&self) -> Result<u64, String> {
        self.change_policies("policies/reload").await
    }

    pub async fn rollback(&self) -> Result<u64, String> {
        self.change_policies("policies/rollback").await
    }

    async fn change_policies(&self, path: &str) -> Result<u64, String> {
        let answer: Value = self.operator(Method::POST, path).send().await.unwrap().json().await.unwrap();
        answer["generation"].as_u64().ok_or_else(|| answer["problem"].as_str().unwrap().into())
    }

    pub async fn policy_status(&self) -> Value {
        self.operator(Method::GET, "policies").send().await.unwrap().json().await.unwrap()
    }
}

fn client() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}
