//! Something that is rendered once, and answered often: whoever asks needs no key.

use bytes::Bytes;
use maud::Markup;
use salvo::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH};
use salvo::http::{ResBody, StatusCode};
use salvo::{Request, Response};
use sha2::{Digest, Sha256};

use crate::answer::secure;

pub(crate) struct Rendered {
    content_type: &'static str,
    body: Bytes,
    /// Of the body (RFC 9110, section 8.8.3).
    etag: String,
}

impl Rendered {
    pub(crate) fn new(content_type: &'static str, body: Vec<u8>) -> Self {
        let etag = format!("\"{}\"", &hex::encode(Sha256::digest(&body))[..32]);
        Self { content_type, body: body.into(), etag }
    }

    pub(crate) fn page(page: &Markup) -> Self {
        Self::new("text/html; charset=utf-8", page.0.clone().into_bytes())
    }

    pub(crate) fn answer(&self, req: &Request, res: &mut Response, is_https: bool) {
        secure(res, is_https);
        let headers = res.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=300"));
        if let Ok(etag) = HeaderValue::from_str(&self.etag) {
            headers.insert(ETAG, etag);
        }
        if self.is_known(req) {
            res.status_code(StatusCode::NOT_MODIFIED);
            return;
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        res.status_code(StatusCode::OK);
        res.replace_body(ResBody::Once(self.body.clone()));
    }

    /// Whether the client has it already (RFC 9110, section 13.1.2).
    fn is_known(&self, req: &Request) -> bool {
        let known = req.headers().get_all(IF_NONE_MATCH).iter().filter_map(|known| known.to_str().ok());
        let mut tags = known.flat_map(|list| list.split(',')).map(str::trim);
        tags.any(|tag| tag == "*" || tag.strip_prefix("W/").unwrap_or(tag) == self.etag)
    }
}
