//! Signing in at another provider (OpenID Connect): one that nobody here wrote, and one that lies.

use std::process::Stdio;
use std::time::Duration;

use culvert::config::OidcConfig;
use culvert_domain::sign_in::SignUp;
use culvert_test_macros::both_engines;
use reqwest::redirect::Policy;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Child;

use crate::dashboard::is_sound;
use crate::support::database::count;
use crate::support::host::{Engine, TestHost, within};
use crate::support::program::python;
use crate::support::tab::{PASSWORD, SITE, Shown, Tab};

const ACCOUNT: &str = "/dashboard/account";
const BEGIN: &str = "/dashboard/sign-in/oidc/0";

/// A provider. Dropping it ends it.
struct Provider {
    issuer: String,
    folder: TempDir,
    program: Child,
}

impl Provider {
    /// oidc-provider-mock, which believes who somebody says to be.
    async fn mock() -> Self {
        Self::start("oidc_mock.py", "localhost").await
    }

    async fn lying() -> Self {
        Self::start("oidc_provider.py", "127.0.0.1").await
    }

    async fn start(script: &str, name: &str) -> Self {
        let mut program = python(script).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
        let port = within(60, lines.next_line()).await.unwrap().expect("the provider has ended");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("secret"), "a secret & more\n").unwrap();
        Self { issuer: format!("http://{name}:{port}"), folder, program }
    }

    async fn host(&self, engine: Engine, trust_email: bool) -> TestHost {
        self.host_with(engine, trust_email, SignUp::Invited).await
    }

    async fn host_with(&self, engine: Engine, trust_email: bool, sign_up: SignUp) -> TestHost {
        TestHost::at_present(engine, |config| {
            config.dashboard.sign_up = sign_up;
            if sign_up == SignUp::Open {
                config.mail.smtp_url = Some("smtp://127.0.0.1:1".into());
                config.mail.from = Some("culvert@example.test".into());
            }
            config.dashboard.oidc.push(OidcConfig {
                name: "Example".into(),
                issuer: self.issuer.clone(),
                client_id: "culvert".into(),
                client_secret_file: Some(self.folder.path().join("secret")),
                trust_email,
            });
        })
        .await
    }

    /// What it does otherwise than it must.
    async fn set(&self, settings: Value) {
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        client.put(format!("{}/settings", self.issuer)).json(&settings).send().await.unwrap();
    }
}

/// Where a browser is led back to by the provider that it was led to.
async fn back(to_provider: &str, subject: Option<&str>) -> String {
    let client = reqwest::Client::builder().no_proxy().redirect(Policy::none()).build().unwrap();
    let request = match subject {
        Some(subject) => {
            let form = client.post(to_provider).header("content-type", "application/x-www-form-urlencoded");
            form.body(format!("sub={subject}"))
        }
        None => client.get(to_provider),
    };
    let answer = request.send().await.unwrap();
    let location = answer.headers()["location"].to_str().unwrap().to_owned();
    location.strip_prefix(SITE).unwrap_or_else(|| panic!("{location}")).to_owned()
}

/// Goes to the provider and back.
async fn through(tab: &mut Tab, path: &str, subject: Option<&str>) -> Shown {
    let begun = tab.get(path).await;
    assert_eq!(begun.status, 303, "{}", begun.text);
    let callback = back(begun.led_to(), subject).await;
    tab.get(&callback).await
}

/// The link of the account's page that links it with the provider.
fn link_of(page: &Shown) -> String {
    let (_, rest) =
        page.text.split_once("href=\"/dashboard/account/oidc/0?key=").unwrap_or_else(|| panic!("{}", page.text));
    format!("/dashboard/account/oidc/0?key={}", rest.split('"').next().unwrap())
}

async fn link(tab: &mut Tab, subject: Option<&str>) {
    let page = tab.get(ACCOUNT).await;
    let linked = through(tab, &link_of(&page), subject).await;
    assert_eq!(linked.led_to(), ACCOUNT, "{}", linked.text);
}

#[both_engines]
async fn account_is_linked_signed_in_and_unlinked(engine: Engine) {
    let provider = Provider::mock().await;
    let host = provider.host(engine, false).await;
    let (ada, eve) = (host.person("ada").await, host.person("eve").await);
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    // Before it is linked, nobody is signed in by it.
    let mut nobody = Tab::open(&host);
    assert!(nobody.get("/dashboard/sign-in").await.text.contains("Continue with Example"));
    let unknown = through(&mut nobody, BEGIN, Some("ada")).await;
    assert_eq!(unknown.outcome(), "401 sign_in_required");
    assert!(unknown.text.contains("No account here is linked with ada@example.test at Example"), "{}", unknown.text);

    let (copy, mut other) = (tab.clone(), Tab::entered(&host, ada.account_id).await);
    link(&mut tab, Some("ada")).await;
    assert_eq!((tab.is_in().await, copy.is_in().await, other.is_in().await), (true, false, false));
    let page = tab.get(ACCOUNT).await;
    is_sound(ACCOUNT, &page);
    assert!(page.text.contains("Example: ada@example.test"), "{}", page.text);
    other = Tab::open(&host);
    let signed_in = through(&mut other, &format!("{BEGIN}?next=%2Fdashboard%2Fme%2Fkeys"), Some("ada")).await;
    assert_eq!(signed_in.led_to(), "/dashboard/me/keys", "{}", signed_in.text);
    assert!(other.get(ACCOUNT).await.text.contains("ada@example.test"));
    // Somebody else's account is not linked with the same person, nor by a link that was made for another sign-in.
    let mut eves = Tab::with_password(&host, eve.account_id).await;
    let page = eves.get(ACCOUNT).await;
    let refused = through(&mut eves, &link_of(&page), Some("ada")).await;
    assert_eq!(refused.outcome(), "422 validation_failed");
    let page = eves.get(ACCOUNT).await;
    assert_eq!(tab.get(&link_of(&page)).await.outcome(), "403 form_expired");

    let page = tab.get(ACCOUNT).await;
    let copy = tab.clone();
    let unlinked = tab.submit(&page, "/dashboard/account/oidc/unlink", &[]).await;
    assert_eq!(unlinked.led_to(), ACCOUNT, "{}", unlinked.text);
    assert_eq!((tab.is_in().await, copy.is_in().await, other.is_in().await), (true, false, false));
    assert_eq!(through(&mut Tab::open(&host), BEGIN, Some("ada")).await.outcome(), "401 sign_in_required");
    let log = tab.get("/dashboard/me/audit").await;
    assert!(log.text.contains("credentials.link_oidc") && log.text.contains("credentials.unlink_oidc"));
}

/// Whatever is wrong with a token, nobody is signed in by it; a key that is new is read.
#[both_engines]
async fn provider_that_lies_signs_nobody_in(engine: Engine) {
    let provider = Provider::lying().await;
    let host = provider.host(engine, false).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    link(&mut tab, None).await;
    for (settings, told) in [
        (json!({"lie": "none"}), "its signature is not right"),
        (json!({"lie": "mac"}), "HS256, which is not accepted"),
        (json!({"lie": "stranger"}), "its signature is not right"),
        (json!({"claims": {"nonce": "another"}}), "nonce is not right"),
        (json!({"claims": {"nonce": null}}), "nonce is not right"),
        (json!({"claims": {"iss": "https://id.evil.test"}}), "issuer is not right"),
        (json!({"claims": {"aud": "another"}}), "audience is not right"),
        (json!({"claims": {"aud": ["culvert", "another"]}}), "audience is not right"),
        (json!({"claims": {"azp": "another"}}), "authorized party is not right"),
        (json!({"claims": {"exp": 1}}), "expiry is not right"),
        (json!({"claims": {"iat": 9_999_999_999_u64}}), "time of issue is not right"),
        (json!({"claims": {"sub": ""}}), "subject is not right"),
        (json!({"claims": {"sub": 7}}), "is none, or its signature"),
    ] {
        provider.set(settings.clone()).await;
        host.clock.advance(Duration::from_secs(15));
        let refused = through(&mut Tab::open(&host), BEGIN, None).await;
        assert_eq!(refused.outcome(), "401 sign_in_required", "{settings}");
        assert!(refused.text.contains(told), "{settings}: {}", refused.text);
    }
    // It has another key now.
    host.clock.advance(Duration::from_secs(61));
    provider.set(json!({"lie": "rotated", "claims": {"exp": 9_999_999_999_u64}})).await;
    assert_eq!(through(&mut Tab::open(&host), BEGIN, None).await.led_to(), "/dashboard");
}

/// What a browser comes back with is good for the sign-in that it has begun, once and within ten minutes.
#[both_engines]
async fn callback_is_good_for_its_own_sign_in_alone(engine: Engine) {
    let provider = Provider::lying().await;
    let host = provider.host(engine, false).await;
    let ada = host.person("ada").await;
    link(&mut Tab::with_password(&host, ada.account_id).await, None).await;
    let mut tab = Tab::open(&host);
    let callback = back(tab.get(BEGIN).await.led_to(), None).await;
    let mut other = Tab::open(&host);
    assert_eq!(other.get(&callback).await.outcome(), "403 form_expired", "another browser");
    other.get(BEGIN).await;
    assert_eq!(other.get(&callback).await.outcome(), "401 sign_in_required", "the state of another sign-in");
    let answer = format!("{callback}&iss=https%3A%2F%2Fid.evil.test");
    assert_eq!(tab.clone().get(&answer).await.outcome(), "401 sign_in_required", "another provider");
    assert_eq!(tab.get(&callback).await.led_to(), "/dashboard");
    assert_eq!(tab.get(&callback).await.outcome(), "403 form_expired", "once more");
    let mut late = Tab::open(&host);
    let callback = back(late.get(BEGIN).await.led_to(), None).await;
    host.clock.advance(Duration::from_mins(10));
    assert_eq!(late.get(&callback).await.outcome(), "403 form_expired", "too late");
    let mut denied = Tab::open(&host);
    let state = back(denied.get(BEGIN).await.led_to(), None).await;
    let state = state.split("state=").nth(1).unwrap();
    let refused = denied.get(&format!("/dashboard/sign-in/oidc/callback?error=access_denied&state={state}")).await;
    assert!(refused.text.contains("the provider refuses: access_denied"), "{}", refused.text);
    for unknown in ["1", "-1", "x", ""] {
        assert_eq!(Tab::open(&host).get(&format!("/dashboard/sign-in/oidc/{unknown}")).await.status, 404, "{unknown}");
    }
}

/// A browser that keeps what it has begun with comes back at most thirty times in five minutes, from one address.
#[both_engines]
async fn callbacks_of_an_address_are_few(engine: Engine) {
    let provider = Provider::lying().await;
    let host = provider.host(engine, false).await;
    let mut tab = Tab::open(&host);
    let callback = back(tab.get(BEGIN).await.led_to(), None).await;
    let elsewhere = format!("{callback}&iss=https%3A%2F%2Fid.evil.test");
    for _ in 0..30 {
        assert_eq!(tab.clone().get(&elsewhere).await.outcome(), "401 sign_in_required");
    }
    assert_eq!(tab.clone().get(&callback).await.outcome(), "429 rate_limited");
}

/// A link of the account's page can be followed more than once, each time as somebody else.
#[both_engines]
async fn account_is_linked_with_ten_people_at_most(engine: Engine) {
    let provider = Provider::mock().await;
    let host = provider.host(engine, false).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let path = link_of(&tab.get(ACCOUNT).await);
    for number in 0..10 {
        assert_eq!(through(&mut tab, &path, Some(&format!("ada{number}"))).await.led_to(), ACCOUNT, "{number}");
    }
    let refused = through(&mut tab, &path, Some("ada10")).await;
    assert_eq!(refused.outcome(), "409 limit_reached");
    assert!(refused.text.contains("Unlink one first"), "{}", refused.text);
}

/// An address makes somebody known only where the provider has verified it and the operator trusts it in that.
#[both_engines]
async fn account_is_found_by_address_where_that_is_trusted(engine: Engine) {
    let provider = Provider::lying().await;
    let host = provider.host(engine, true).await;
    host.person("ada").await;
    for (verified, outcome) in
        [(json!(false), "401"), (json!(null), "401"), (json!(true), "303"), (json!(false), "303")]
    {
        provider.set(json!({"claims": {"email": "Ada@example.test", "email_verified": verified}})).await;
        let shown = through(&mut Tab::open(&host), BEGIN, None).await;
        // From the first time on, it is linked.
        assert_eq!(shown.status.to_string(), outcome, "{verified}: {}", shown.text);
    }
}

/// Where whoever wants an account makes one, somebody whom a provider vouches for has one at once.
#[both_engines]
async fn account_is_made_where_sign_up_is_open_and_the_address_is_trusted(engine: Engine) {
    let provider = Provider::lying().await;
    for (trusts, sign_up, outcome) in
        [(true, SignUp::Invited, "401"), (false, SignUp::Open, "401"), (true, SignUp::Open, "303")]
    {
        let host = provider.host_with(engine, trusts, sign_up).await;
        provider.set(json!({"claims": {"email": "New.One@example.test", "email_verified": true}})).await;
        let mut tab = Tab::open(&host);
        let shown = through(&mut tab, BEGIN, None).await;
        assert_eq!(shown.status.to_string(), outcome, "{trusts} {sign_up:?}: {}", shown.text);
        if outcome == "303" {
            let page = tab.get(ACCOUNT).await;
            assert!(page.text.contains("new.one · new.one@example.test"), "{}", page.text);
            assert!(tab.get("/dashboard/me/audit").await.text.contains("accounts.create"));
            // From then on it is theirs.
            assert_eq!(through(&mut Tab::open(&host), BEGIN, None).await.status, 303);
            assert_eq!(count(&host.config().database_url(), "accounts").await, 1);
        }
    }
}

/// An address that nobody has proved finds no account: not one that was changed at once, and not the one that an inviter has
/// typed. Whoever is linked with a provider that has verified the address has proved it.
#[both_engines]
async fn address_that_nobody_has_proved_finds_no_account(engine: Engine) {
    let provider = Provider::lying().await;
    let host = provider.host(engine, true).await;
    let ada = host.person("ada").await;
    let mut tab = Tab::with_password(&host, ada.account_id).await;
    let says = async |subject: &str, email: &str| {
        provider.set(json!({"claims": {"sub": subject, "email": email, "email_verified": true}})).await;
    };
    let page = tab.get(ACCOUNT).await;
    let typed = [("email", "ceo@example.test")];
    assert_eq!(tab.submit(&page, "/dashboard/account/profile", &typed).await.led_to(), ACCOUNT);
    says("ceo", "ceo@example.test").await;
    let refused = through(&mut Tab::open(&host), BEGIN, None).await;
    assert_eq!(refused.outcome(), "401 sign_in_required");
    assert!(refused.text.contains("link it on the page of your account"), "{}", refused.text);

    // She invites herself under somebody else's address.
    let team = host.team("Lab", &ada).await;
    let (list, path) = (format!("/dashboard/{team}/team"), format!("/dashboard/{team}/team/invitations"));
    let page = tab.get(&list).await;
    let secret = tab.submit(&page, &path, &[("email", "eve@example.test"), ("role", "member")]).await.link();
    let mut invited = Tab::open(&host);
    let page = invited.get("/dashboard/enter").await;
    let page = invited.submit(&page, "/dashboard/enter", &[("link", &secret)]).await;
    let person = [("link", secret.as_str()), ("name", "Eve"), ("password", PASSWORD)];
    assert_eq!(invited.submit(&page, "/dashboard/enter/account", &person).await.status, 303);
    says("eve", "eve@example.test").await;
    assert_eq!(through(&mut Tab::open(&host), BEGIN, None).await.outcome(), "401 sign_in_required");

    // Eve gets the account after all, proves the address, and is found by it from then on.
    link(&mut invited, None).await;
    says("eve's other self", "Eve@example.test").await;
    assert_eq!(through(&mut Tab::open(&host), BEGIN, None).await.status, 303);
}

/// Where the provider is away, the other ways stay; and sign-ins are begun at most thirty times in five minutes.
#[both_engines]
async fn provider_that_is_away_leaves_the_other_ways(engine: Engine) {
    let mut provider = Provider::lying().await;
    let host = provider.host(engine, false).await;
    let mut tab = Tab::open(&host);
    for _ in 0..30 {
        assert_eq!(tab.get(BEGIN).await.status, 303);
    }
    assert_eq!(tab.get(BEGIN).await.outcome(), "429 rate_limited");
    host.clock.advance(Duration::from_hours(2));
    provider.program.kill().await.unwrap();
    let away = tab.get(BEGIN).await;
    assert_eq!(away.outcome(), "503 service_unavailable");
    assert!(
        away.text.contains("Example cannot be reached now") && away.text.contains("name=\"password\""),
        "{}",
        away.text
    );
}

/// A provider is as the configuration says, or the host does not start.
#[test]
fn provider_is_configured_as_it_must_be() {
    let problem = |change: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("culvert.toml");
        std::fs::write(&file, format!("[[dashboard.oidc]]\nname = \"Example\"\nclient_id = \"culvert\"\n{change}\n"))
            .unwrap();
        culvert::config::Config::load(Some(&file)).err().map(|error| error.to_string()).unwrap_or_default()
    };
    assert_eq!(problem("issuer = \"https://id.example.com\""), "");
    for (change, told) in [
        ("issuer = \"http://id.example.com\"", "dashboard.oidc[0].issuer: must be an https:// URL"),
        ("issuer = \"id.example.com\"", "dashboard.oidc[0].issuer: must be an https:// URL"),
        ("issuer = \"https://u@id.example.com\"", "dashboard.oidc[0].issuer: must be an https:// URL"),
        (
            "issuer = \"https://id.example.com\"\nclient_secret_file = \"/nowhere\"",
            "dashboard.oidc[0].client_secret_file: /nowhere",
        ),
    ] {
        assert!(problem(change).contains(told), "{change}: {}", problem(change));
    }
}

/// Whoever has only the provider proves itself there once more: what the provider says of a sign-in long ago proves nothing.
#[both_engines]
async fn fresh_sign_in_at_the_provider_proves_who_it_is(engine: Engine) {
    let provider = Provider::lying().await;
    let host = provider.host(engine, true).await;
    host.person("ada").await;
    let claims = json!({"email": "ada@example.test", "email_verified": true});
    provider.set(json!({"claims": claims})).await;
    let mut tab = Tab::open(&host);
    assert_eq!(through(&mut tab, BEGIN, None).await.status, 303);
    let is_elevated =
        async |tab: &mut Tab| tab.get(ACCOUNT).await.text.contains("action=\"/dashboard/account/profile\"");
    assert!(is_elevated(&mut tab).await, "it has just signed in there");
    host.clock.advance(Duration::from_mins(10));
    let page = tab.get(ACCOUNT).await;
    let confirm = page.text.split("href=\"").map(|rest| rest.split('"').next().unwrap());
    let confirm = confirm.map(|link| link.replace("&amp;", "&")).find(|link| link.contains("fresh=1")).unwrap();
    assert!(!is_elevated(&mut tab).await);
    let now = host.clock.now().timestamp();
    for (auth_time, expected) in [(json!(now - 601), false), (json!(null), false), (json!(now), true)] {
        let mut claims = claims.clone();
        claims["auth_time"] = auth_time.clone();
        (claims["iat"], claims["exp"]) = (json!(now), json!(now + 300));
        provider.set(json!({"claims": claims})).await;
        let begun = tab.get(&confirm).await;
        assert!(begun.led_to().contains("max_age=0") || begun.led_to().contains("prompt=login"), "{}", begun.led_to());
        let shown = through(&mut tab, &confirm, None).await;
        assert!(matches!(shown.status, 303 | 401), "{auth_time}: {}", shown.text);
        assert_eq!(is_elevated(&mut tab).await, expected, "{auth_time}");
    }
}
