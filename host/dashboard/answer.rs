//! What a request is answered with, and the headers that every page has.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use maud::Markup;
use salvo::Response;
use salvo::http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_DISPOSITION, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName,
    HeaderValue, LOCATION, REFERRER_POLICY, RETRY_AFTER, SET_COOKIE, STRICT_TRANSPORT_SECURITY,
};
use salvo::http::{ResBody, StatusCode};

/// Nothing from elsewhere, nothing inline, and no page stands in another one. Scripts make no HTML from text.
const CSP: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; font-src 'self'; \
                   connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'; \
                   require-trusted-types-for 'script'; trusted-types 'none'";
const PERMISSIONS: &str = "accelerometer=(), camera=(), display-capture=(), geolocation=(), gyroscope=(), magnetometer=(), \
                           microphone=(), midi=(), payment=(), usb=()";

pub(crate) struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: ResBody,
}

impl Answer {
    pub(crate) fn page(status: StatusCode, page: Markup) -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"))]);
        Self { status, headers, body: ResBody::Once(page.into_string().into()) }
    }

    /// Server-sent events. Proxies pass each of them on at once.
    pub(crate) fn events(events: impl Stream<Item = Result<Bytes, Infallible>> + Send + 'static) -> Self {
        let headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
            (HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no")),
        ]);
        Self { status: StatusCode::OK, headers, body: ResBody::stream(events) }
    }

    /// A file to be kept. One that cannot be made to its end breaks off.
    pub(crate) fn file(
        name: &str,
        content_type: &'static str,
        content: impl Stream<Item = culvert_domain::error::Result<Bytes>> + Send + 'static,
    ) -> Self {
        let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(content_type))]);
        let content = content.map_err(|error| std::io::Error::other(error.code.as_str().to_owned()));
        Self { status: StatusCode::OK, headers, body: ResBody::stream(content) }
            .with(CONTENT_DISPOSITION, &format!("attachment; filename=\"{name}\""))
    }

    /// Leads to another page with GET (RFC 9110, section 15.4.4).
    pub(crate) fn see_other(path: &str) -> Self {
        Self { status: StatusCode::SEE_OTHER, headers: HeaderMap::new(), body: ResBody::Once(Bytes::new()) }
            .with(LOCATION, path)
    }

    /// The same with a page in the place of where it leads.
    pub(crate) fn showing(self, page: Markup) -> Self {
        let mut shown = Self::page(StatusCode::OK, page);
        let kept = self.headers.into_iter().filter_map(|(name, value)| Some((name?, value)));
        shown.headers.extend(kept.filter(|(name, _)| name != LOCATION));
        shown
    }

    pub(crate) fn with(mut self, name: HeaderName, value: &str) -> Self {
        if let Ok(value) = HeaderValue::from_str(value) {
            self.headers.append(name, value);
        }
        self
    }

    pub(crate) fn with_cookie(self, cookie: &str) -> Self {
        self.with(SET_COOKIE, cookie)
    }

    pub(crate) fn allowing(self, methods: &str) -> Self {
        self.with(ALLOW, methods)
    }

    pub(crate) fn retry_after(self, wait: Option<Duration>) -> Self {
        match wait {
            Some(wait) => self.with(RETRY_AFTER, &seconds(wait).to_string()),
            None => self,
        }
    }

    pub(crate) fn write(self, res: &mut Response, is_https: bool) {
        let Self { status, headers, body } = self;
        res.status_code(status);
        secure(res, is_https);
        let own = res.headers_mut();
        own.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        for (name, value) in &headers {
            own.append(name, value.clone());
        }
        res.replace_body(body);
    }
}

/// What keeps a page from being read, framed or changed by another.
pub(crate) fn secure(res: &mut Response, is_https: bool) {
    let headers = res.headers_mut();
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, CSP),
        (REFERRER_POLICY, "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("permissions-policy"), PERMISSIONS),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if is_https {
        headers.insert(STRICT_TRANSPORT_SECURITY, HeaderValue::from_static("max-age=31536000"));
    }
}

/// Whole seconds, at least one.
pub(crate) fn seconds(wait: Duration) -> u64 {
    wait.as_secs_f64().ceil().max(1.0) as u64
}
