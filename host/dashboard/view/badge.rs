//! States, by word and colour.

use culvert_domain::custom_domain::CustomDomainStatus;
use culvert_domain::operation::OperationStatus;
use culvert_domain::tunnel::TunnelStatus;
use culvert_domain::webhook::{AttemptStatus, WebhookStatus};
use maud::{Markup, html};

fn badge(class: &str, word: &str) -> Markup {
    html! { span.badge.(class) { (word) } }
}

pub(crate) fn plain(word: &str) -> Markup {
    badge("plain", word)
}

pub(crate) fn good(word: &str) -> Markup {
    badge("ok", word)
}

pub(crate) fn bad(word: &str) -> Markup {
    badge("bad", word)
}

pub(crate) fn warning(word: &str) -> Markup {
    badge("warn", word)
}

pub(crate) fn online(online: bool) -> Markup {
    if online { badge("ok", "online") } else { badge("plain", "offline") }
}

pub(crate) fn tunnel(status: TunnelStatus) -> Markup {
    let class = match status {
        TunnelStatus::Running => "ok",
        TunnelStatus::Starting | TunnelStatus::Stopping | TunnelStatus::Moving => "info",
        TunnelStatus::Degraded | TunnelStatus::Suspended => "warn",
        TunnelStatus::Error => "bad",
        TunnelStatus::Stopped => "plain",
    };
    badge(class, &status.to_string())
}

pub(crate) fn operation(status: OperationStatus) -> Markup {
    let class = match status {
        OperationStatus::Succeeded => "ok",
        OperationStatus::Queued | OperationStatus::Claimed | OperationStatus::Running => "info",
        OperationStatus::Failed => "bad",
        OperationStatus::Expired | OperationStatus::Canceled => "warn",
    };
    badge(class, &status.to_string())
}

pub(crate) fn webhook(status: WebhookStatus) -> Markup {
    let class = match status {
        WebhookStatus::Enabled => "ok",
        WebhookStatus::Disabled => "plain",
    };
    badge(class, &status.to_string())
}

pub(crate) fn attempt(status: AttemptStatus) -> Markup {
    let class = match status {
        AttemptStatus::Pending => "info",
        AttemptStatus::Succeeded => "ok",
        AttemptStatus::Failed => "bad",
        AttemptStatus::Canceled => "warn",
    };
    badge(class, &status.to_string())
}

pub(crate) fn custom_domain(status: CustomDomainStatus) -> Markup {
    let class = match status {
        CustomDomainStatus::Verified => "ok",
        CustomDomainStatus::Pending => "info",
        CustomDomainStatus::Failed => "bad",
        CustomDomainStatus::None => "plain",
    };
    badge(class, &status.to_string())
}
