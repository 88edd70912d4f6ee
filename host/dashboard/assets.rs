//! The style sheet, the script and the icon of the pages. Their names hold a digest of their content, so browsers keep them.

use std::sync::LazyLock;

use bytes::Bytes;
use salvo::http::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use salvo::http::{ResBody, StatusCode};
use salvo::{Depot, FlowCtrl, Handler, Request, Response, Router, async_trait};
use sha2::{Digest, Sha256};

struct Asset {
    name: String,
    content_type: &'static str,
    content: &'static [u8],
}

static ASSETS: LazyLock<[Asset; 3]> = LazyLock::new(|| {
    [
        asset("dashboard", "css", "text/css; charset=utf-8", include_bytes!("assets/dashboard.css")),
        asset("ui", "js", "text/javascript; charset=utf-8", include_bytes!("assets/ui.js")),
        asset("icon", "svg", "image/svg+xml", include_bytes!("assets/icon.svg")),
    ]
});

fn asset(stem: &str, end: &str, content_type: &'static str, content: &'static [u8]) -> Asset {
    let digest = hex::encode(Sha256::digest(content));
    Asset { name: format!("{stem}-{}.{end}", &digest[..16]), content_type, content }
}

pub(crate) fn style_sheet() -> String {
    format!("/assets/{}", ASSETS[0].name)
}

pub(crate) fn script() -> String {
    format!("/assets/{}", ASSETS[1].name)
}

pub(crate) fn icon() -> String {
    format!("/assets/{}", ASSETS[2].name)
}

pub(crate) fn router() -> Router {
    Router::with_path("assets/{name}").get(Assets).head(Assets)
}

struct Assets;

#[async_trait]
impl Handler for Assets {
    async fn handle(&self, req: &mut Request, _: &mut Depot, res: &mut Response, _: &mut FlowCtrl) {
        let name = req.param::<String>("name").unwrap_or_default();
        let Some(asset) = ASSETS.iter().find(|asset| asset.name == name) else {
            res.status_code(StatusCode::NOT_FOUND);
            return;
        };
        let headers = res.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(asset.content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=31536000, immutable"));
        res.status_code(StatusCode::OK);
        res.replace_body(ResBody::Once(Bytes::from_static(asset.content)));
    }
}
