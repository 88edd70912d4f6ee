//! `culvert policy reload`, `rollback` and `status`: asked of the running host, on its own listener.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};

use super::Progress;
use crate::admin;
use crate::cli::Output;
use crate::cli::{CliError, dev, operator, print, refused, table};
use crate::config::Config;
use crate::policies;

pub(super) async fn reload(config: &Config, output: Output) -> Result<(), CliError> {
    let shown = Progress::of("the host loads its policies");
    let answer = answer(config, Method::POST, "policies/reload").await;
    drop(shown);
    let answer = answer?.map_err(|problem| refused(format!("{problem} (the host's policies stay as they are)")))?;
    print(output, &answer, || format!("generation {} decides", answer["generation"]));
    Ok(())
}

pub(super) async fn reload_offline(config: &Config, output: Output) -> Result<(), CliError> {
    let (store, secrets) = operator::store_and_secrets(config).await?;
    let generation = policies::reload_offline(config, &store, &secrets).await?;
    print(output, &json!({"generation": generation}), || {
        format!("generation {generation} decides from the next start on")
    });
    Ok(())
}

pub(super) async fn rollback(config: &Config, output: Output) -> Result<(), CliError> {
    let answer = ask(config, Method::POST, "policies/rollback").await?;
    print(output, &answer, || {
        let generation = &answer["generation"];
        format!("the policies before decide again, as generation {generation}, until `culvert policy reload`")
    });
    Ok(())
}

pub(super) async fn status(config: &Config, output: Output) -> Result<(), CliError> {
    let status = ask(config, Method::GET, "policies").await?;
    print(output, &status, || describe(&status));
    Ok(())
}

fn describe(status: &Value) -> String {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), String::from);
    let mut lines = vec![format!("generation {}, loaded at {}", status["generation"], text(&status["loaded_at"]))];
    let columns = ["kind", "mode", "name", "version", "sha256", "settings", "limits", "module"];
    let mut rows = vec![columns.map(str::to_uppercase).to_vec()];
    for module in status["modules"].as_array().into_iter().flatten() {
        let limits = format!("{} ms, {} KiB", module["deadline_ms"], module["memory_kib"]);
        let settings: String = text(&module["settings_sha256"]).chars().take(12).collect();
        let value = |column| match column {
            "settings" => settings.clone(),
            "limits" => limits.clone(),
            column => text(&module[column]),
        };
        rows.push(columns.map(value).to_vec());
    }
    lines.push(table(rows));
    for module in status["modules"].as_array().into_iter().flatten() {
        let name = text(&module["name"]);
        let open = format!("{name} is not asked for some seconds, because it timed out again and again");
        lines.extend((module["breaker_open"] == true).then_some(open));
    }
    if let Some(problem) = status["records"]["problem"].as_str() {
        let (file, lost) = (text(&status["records"]["file"]), &status["records"]["lost"]);
        lines.push(format!("decision records cannot be written: {file}: {problem} ({lost} lost since the start)"));
    }
    for host in status["hosts"].as_array().into_iter().flatten() {
        lines.push(format!("at host {}, generation {} decides", text(&host["name"]), host["generation"]));
    }
    let earlier: Vec<String> = status["earlier"].as_array().into_iter().flatten().map(Value::to_string).collect();
    if !earlier.is_empty() {
        lines.push(format!("`culvert policy rollback` goes back to generation {}", earlier.join(", then ")));
    }
    let failure = &status["last_failure"];
    if !failure.is_null() {
        lines.push(format!("last failure, at {}: {}", text(&failure["at"]), text(&failure["problem"])));
    }
    lines.join("\n")
}

/// Asks the host. A problem that it tells is an error.
async fn ask(config: &Config, method: Method, path: &str) -> Result<Value, CliError> {
    answer(config, method, path).await?.map_err(refused)
}

/// The host's answer, or the problem that it tells.
pub(super) async fn answer(config: &Config, method: Method, path: &str) -> Result<Result<Value, String>, CliError> {
    let mut address = config.admin_listen;
    // A host that listens everywhere is reached here.
    match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => address.set_ip(Ipv4Addr::LOCALHOST.into()),
        IpAddr::V6(ip) if ip.is_unspecified() => address.set_ip(Ipv6Addr::LOCALHOST.into()),
        _ => {}
    }
    let client = reqwest::Client::builder().no_proxy().build().map_err(refused)?;
    let ask = async |token: &str| {
        let request = client.request(method.clone(), format!("http://{address}/{path}")).bearer_auth(token);
        RequestBuilder::send(request).await.map_err(|_| {
            refused(format!(
                "no host answers on admin_listen ({address}); start one, or name its configuration (--config)"
            ))
        })
    };
    let (token, other) = tokens(config)?;
    let mut answer = ask(&token).await?;
    if let (StatusCode::UNAUTHORIZED, Some(other)) = (answer.status(), other) {
        answer = ask(&other).await?;
    }
    let status = answer.status();
    let body: Value = answer.json().await.map_err(refused)?;
    match body["problem"].as_str() {
        Some(problem) => Ok(Err(problem.into())),
        None if status.is_success() => Ok(Ok(body)),
        None => Err(refused(format!("{address} answered {status}; is it a Culvert host?"))),
    }
}

/// The token of the host of this configuration, and that of `culvert dev`, which has a folder of its own.
fn tokens(config: &Config) -> Result<(String, Option<String>), CliError> {
    let read = |folder: &Path| {
        let file = folder.join(admin::TOKEN);
        let token = std::fs::read_to_string(&file)
            .map_err(|error| refused(format!("{}: {error}; run this as the user of the host", file.display())));
        token.map(|token| token.trim().to_owned())
    };
    match (read(&config.data_dir), read(&dev::data_dir(config))) {
        (Ok(own), dev) => Ok((own, dev.ok())),
        (Err(_), Ok(dev)) => Ok((dev, None)),
        (Err(problem), Err(_)) => Err(problem),
    }
}
