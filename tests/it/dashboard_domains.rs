//! Custom domains and extra ports in the dashboard.

use culvert_test_macros::both_engines;
use serde_json::{Value, json};

use crate::support::host::{Engine, TestHost};
use crate::support::names::{Answer as Says, Names};
use crate::support::tab::Tab;

const NAME: &str = "www.example.com";

#[both_engines]
async fn domain_is_verified_assigned_and_removed(engine: Engine) {
    let names = Names::open().await;
    names.set(NAME, [Says::Failure]);
    let host = TestHost::with(engine, |config| {
        config.node.domain = Some("tunnels.example.test".into());
        config.dns.resolver = Some(names.address);
    })
    .await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80, "protocol": "http"})).await.id();
    let of_api = format!("/tunnels/{tunnel}/domain");
    let target = api.get(&of_api).await.data()["cname_target"].as_str().unwrap().to_owned();
    let path = format!("/dashboard/me/tunnels/{tunnel}/domain");
    let mut tab = Tab::entered(&host, ada.account_id).await;

    let page = tab.get(&path).await;
    assert!(page.text.contains(&target), "the page says what the record must be");
    let refused = tab.submit(&page, &format!("{path}/verify"), &[("domain", "not a name")]).await;
    assert!(refused.outcome() == "422 validation_failed" && refused.fault("domain").is_some());
    // The DNS fails, then has the record.
    let verify = async |tab: &mut Tab| {
        let page = tab.get(&path).await;
        assert_eq!(tab.submit(&page, &format!("{path}/verify"), &[("domain", NAME)]).await.led_to(), path);
    };
    verify(&mut tab).await;
    let page = tab.get(&path).await;
    assert!(page.text.contains("<code>dns_failed</code>") && !page.text.contains("domain/assign"), "{}", page.text);
    names.alias(NAME, &target);
    verify(&mut tab).await;
    let page = tab.get(&path).await;
    assert_eq!(tab.submit(&page, &format!("{path}/assign"), &[]).await.led_to(), path);
    assert!(tab.get(&path).await.text.contains("It leads to this tunnel."));
    assert_eq!(api.get(&format!("/tunnels/{tunnel}")).await.data()["custom_domain"], NAME);

    let page = tab.get(&path).await;
    assert_eq!(tab.submit(&page, &format!("{path}/remove"), &[]).await.led_to(), path);
    assert_eq!(api.get(&of_api).await.data()["status"], "none");

    // Visitors of other tunnels come by a port.
    let tcp = api.post("/tunnels", json!({"local_port": 80, "protocol": "tcp"})).await.id();
    let page = tab.get(&format!("/dashboard/me/tunnels/{tcp}/domain")).await;
    assert!(page.status == 200 && !page.text.contains("domain/verify"), "{}", page.text);
}

#[both_engines]
async fn extra_port_is_added_and_removed(engine: Engine) {
    let host = TestHost::start(engine).await;
    let ada = host.person("ada").await;
    let api = host.api(&ada.key);
    let tunnel = api.post("/tunnels", json!({"local_port": 80})).await.id();
    let path = format!("/dashboard/me/tunnels/{tunnel}/ports");
    let mut tab = Tab::entered(&host, ada.account_id).await;

    let page = tab.get(&path).await;
    let refused = tab.submit(&page, &path, &[("local_port", "many")]).await;
    assert!(refused.outcome() == "422 validation_failed" && refused.fault("local_port").is_some());
    let page = tab.get(&path).await;
    let typed = [("local_port", "8081"), ("protocol", "udp"), ("label", "voice")];
    assert_eq!(tab.submit(&page, &path, &typed).await.led_to(), path);
    assert_eq!(tab.submit(&page, &path, &typed).await.led_to(), path, "a second click adds no other");
    let ports = async || api.get(&format!("/tunnels/{tunnel}/extra-ports")).await.data().as_array().unwrap().clone();
    let added: Vec<Value> = ports().await;
    let shown: Vec<_> = added.iter().map(|port| [&port["local_port"], &port["protocol"], &port["label"]]).collect();
    assert_eq!(shown, [[&json!(8081), &json!("udp"), &json!("voice")]]);
    let page = tab.get(&path).await;
    assert!(page.text.contains(&format!(":{}<", added[0]["remote_port"])), "{}", page.text);

    let delete = format!("{path}/{}/delete", added[0]["id"].as_str().unwrap());
    assert_eq!(tab.submit(&page, &delete, &[]).await.led_to(), path);
    assert!(ports().await.is_empty());
}
