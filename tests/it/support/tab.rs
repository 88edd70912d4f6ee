//! A tab of a browser without script: it keeps cookies, sends what a page's form holds, and shows where it is led.

use std::collections::BTreeMap;

use culvert_service::forms::FormId;
use reqwest::header::{HOST, LOCATION, ORIGIN, SET_COOKIE};
use reqwest::{Client, Method, RequestBuilder, redirect};

use super::host::TestHost;

/// The origin of every test's host.
pub const SITE: &str = "https://api.example.test";

#[derive(Clone)]
pub struct Tab {
    base: String,
    /// The origin of the pages, as a browser knows it.
    site: String,
    http: Client,
    pub cookies: BTreeMap<String, String>,
}

/// What a tab shows.
pub struct Shown {
    pub status: u16,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl Tab {
    pub fn open(host: &TestHost) -> Self {
        Self::at(host.url(), SITE.into())
    }

    /// A tab of a host that is reached at a URL, with pages of an origin.
    pub fn at(base: String, site: String) -> Self {
        let http = Client::builder().no_proxy().redirect(redirect::Policy::none()).build().unwrap();
        Self { base, site, http, cookies: BTreeMap::new() }
    }

    /// A tab of somebody who has just come in by a link.
    pub async fn entered(host: &TestHost, account_id: uuid::Uuid) -> Self {
        let mut tab = Self::open(host);
        let link = culvert_service::links::create(&host.app.store, account_id).await.unwrap();
        let page = tab.get("/dashboard/enter").await;
        let shown = tab.submit(&page, "/dashboard/enter", &[("link", &link.secret)]).await;
        assert_eq!(shown.led_to(), "/dashboard/account", "{}", shown.text);
        tab
    }

    /// The same, with a password: it may make keys.
    pub async fn with_password(host: &TestHost, account_id: uuid::Uuid) -> Self {
        let mut tab = Self::entered(host, account_id).await;
        let page = tab.get("/dashboard/account").await;
        let shown = tab.submit(&page, "/dashboard/account/password", &[("password", PASSWORD)]).await;
        assert_eq!(shown.led_to(), "/dashboard", "{}", shown.text);
        tab
    }

    /// A tab of somebody who has signed in with the password.
    pub async fn signed_in(host: &TestHost, email: &str) -> Self {
        let mut tab = Self::open(host);
        let page = tab.get("/dashboard/sign-in").await;
        let shown = tab.submit(&page, "/dashboard/sign-in", &[("email", email), ("password", PASSWORD)]).await;
        assert_eq!(shown.led_to(), "/dashboard", "{}", shown.text);
        tab
    }

    /// Whether the cookie is of use. It is in the place of the tab: it looks with a copy.
    pub async fn is_in(&self) -> bool {
        self.clone().get("/dashboard/account").await.status == 200
    }

    /// A request as a browser would make it; nothing is followed.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = self
            .http
            .request(method, format!("{}{path}", self.base))
            .header(HOST, self.site.split("://").nth(1).unwrap());
        if cookies.is_empty() { request } else { request.header("cookie", cookies.join("; ")) }
    }

    pub async fn send(&mut self, request: RequestBuilder) -> Shown {
        let response = request.send().await.unwrap();
        let (status, headers) = (response.status().as_u16(), response.headers().clone());
        for cookie in headers.get_all(SET_COOKIE) {
            let (name, rest) = cookie.to_str().unwrap().split_once('=').unwrap();
            let value = rest.split(';').next().unwrap();
            if value.is_empty() {
                self.cookies.remove(name);
            } else {
                self.cookies.insert(name.into(), value.into());
            }
        }
        Shown { status, headers, text: response.text().await.unwrap() }
    }

    pub async fn get(&mut self, path: &str) -> Shown {
        let request = self.request(Method::GET, path);
        self.send(request).await
    }

    /// Sends the form of a page that leads to a path, with what a person types.
    pub async fn submit(&mut self, page: &Shown, path: &str, typed: &[(&str, &str)]) -> Shown {
        let mut fields = page.form(path);
        for (name, value) in typed {
            fields.retain(|(known, _)| known != name);
            fields.push(((*name).into(), (*value).into()));
        }
        self.post(path, &fields).await
    }

    pub async fn post(&mut self, path: &str, fields: &[(String, String)]) -> Shown {
        let request =
            self.form_request(path, fields).header(ORIGIN, &self.site).header("sec-fetch-site", "same-origin");
        self.send(request).await
    }

    /// A form that no page shows, with a key of ours: what somebody at this tab could post by hand.
    pub async fn made_up(&self, host: &TestHost, path: &str, fields: &[(&str, &str)]) -> Vec<(String, String)> {
        let dashboard = host.app.dashboard.as_ref().unwrap();
        let value = &self.cookies["__Host-culvert"];
        let sign_in = dashboard.sign_ins.find(&host.app.service, value, None, false).await.unwrap().unwrap().id;
        let key = host.app.service.form_key(FormId { sign_in, path });
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        [("form_key".to_owned(), key)].into_iter().chain(fields).collect()
    }

    /// A posted form without the headers that say where it comes from.
    pub fn form_request(&self, path: &str, fields: &[(String, String)]) -> RequestBuilder {
        let encoded = reqwest::Url::parse_with_params("http://x", fields).unwrap();
        let body = encoded.query().unwrap_or_default().to_owned();
        self.request(Method::POST, path).header("content-type", "application/x-www-form-urlencoded").body(body)
    }
}

/// A password that nobody guesses.
pub const PASSWORD: &str = "gravel otter lantern 42";

impl Shown {
    /// Where it leads.
    pub fn led_to(&self) -> &str {
        match self.headers.get(LOCATION) {
            Some(path) => path.to_str().unwrap(),
            None => "nowhere",
        }
    }

    /// The secret of the link that it shows.
    pub fn link(&self) -> String {
        let link = self.text.split(&format!("{SITE}/dashboard/enter#")).nth(1).expect("the link is shown");
        link.split('<').next().unwrap().to_owned()
    }

    /// The fields of the form that leads to a path, as the page has them.
    pub fn form(&self, path: &str) -> Vec<(String, String)> {
        let start = self.text.find(&format!("method=\"post\" action=\"{path}\""));
        let start = start.unwrap_or_else(|| panic!("no form leads to {path}: {}", self.text));
        let form = &self.text[start..];
        let form = &form[..form.find("</form>").unwrap()];
        let mut fields: Vec<(String, String)> = Vec::new();
        let mut is_chosen = false;
        for tag in form.split('<') {
            let attribute = |name: &str| {
                let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
                Some(rest.split('"').next()?.to_owned())
            };
            match tag.split([' ', '>']).next().unwrap() {
                "input" => {}
                "select" => {
                    fields.push((attribute("name").unwrap(), String::new()));
                    is_chosen = false;
                    continue;
                }
                // The first one, unless another is selected.
                "option" => {
                    let (_, value) = fields.last_mut().unwrap();
                    if tag.contains(" selected") || (!is_chosen && value.is_empty()) {
                        is_chosen |= tag.contains(" selected");
                        *value = attribute("value").unwrap();
                    }
                    continue;
                }
                "textarea" => {
                    let typed = tag.split_once('>').unwrap().1.trim_start_matches('\n');
                    fields.push((attribute("name").unwrap(), typed.to_owned()));
                    continue;
                }
                _ => continue,
            }
            let is_left_out = tag.contains(" type=\"checkbox\"") && !tag.contains(" checked");
            if let Some(name) = attribute("name").filter(|_| !is_left_out) {
                fields.push((name, attribute("value").unwrap_or_default()));
            }
        }
        fields
    }

    /// The names of what is typed or chosen in the form that leads to a path.
    pub fn typed(&self, path: &str) -> Vec<String> {
        let start = self.text.find(&format!("method=\"post\" action=\"{path}\"")).unwrap();
        let form = &self.text[start..];
        let tags = form[..form.find("</form>").unwrap()].split('<');
        let is_typed = |tag: &&str| {
            let is_input =
                tag.starts_with("input") && !tag.contains(" type=\"hidden\"") && !tag.contains(" type=\"checkbox\"");
            is_input || tag.starts_with("select") || tag.starts_with("textarea")
        };
        let name = |tag: &str| Some(tag.split_once(" name=\"")?.1.split('"').next()?.to_owned());
        tags.filter(is_typed).filter_map(name).collect()
    }

    /// The id of the request, by which it is explained.
    pub fn request_id(&self) -> uuid::Uuid {
        self.headers["x-request-id"].to_str().unwrap().parse().unwrap()
    }

    /// Status, and the code that the page names.
    pub fn outcome(&self) -> String {
        let code = self.text.split("class=\"muted\"><code>").nth(1).and_then(|rest| rest.split('<').next());
        format!("{} {}", self.status, code.unwrap_or("-"))
    }

    /// What is said to be wrong with a field, in the form that leads to a path.
    pub fn fault_in(&self, path: &str, field: &str) -> Option<&str> {
        let form = self.text.split(&format!("method=\"post\" action=\"{path}\"")).nth(1)?.split("</form>").next()?;
        form.split(&format!("id=\"{field}-fault\">")).nth(1)?.split('<').next()
    }

    /// What is said to be wrong with a field.
    pub fn fault(&self, field: &str) -> Option<&str> {
        self.text.split(&format!("id=\"{field}-fault\">")).nth(1).and_then(|rest| rest.split('<').next())
    }
}
