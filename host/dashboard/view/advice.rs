//! What to do about an error: for each code of a refusal, of an operation and of a delivery.

use culvert_domain::error::Code;
use culvert_domain::webhook::AttemptError;
use culvert_wire::failure_code::FailureCode;
use maud::{Markup, html};

use crate::docs::book::inline;

/// Below a refusal on a page: what to do here, and where the code is explained.
pub(crate) fn about(code: &Code, docs_url: &str) -> Markup {
    let link = format!("{docs_url}/errors#{}", code.as_str());
    html! { p { @if let Some(advice) = of_refusal(code) { (inline(advice)) " " } a href=(link) { "About this code" } } }
}

/// `None` where the refusal itself says what to do, and for what no page asks for.
fn of_refusal(code: &Code) -> Option<&'static str> {
    use Code as C;
    let advice = match code {
        C::NotFound => "Somebody may have deleted it, or the address is of another account or Team.",
        C::FeatureNotAvailable => "The plan does not include it. An operator gives the account another plan.",
        C::PlanLimitReached => "Delete something of the kind, or ask an operator for another plan.",
        C::SubdomainUnavailable => "Choose another one. One that somebody has given up is free after a day.",
        C::PortConflict => "Choose another local port, or delete the extra port that has it.",
        C::NoPortAvailable => "Delete tunnels or extra ports on the node, or choose another node.",
        C::NodeUnavailable => "Operators see on the page *Nodes* which nodes are connected.",
        C::ExtraPortLimitReached => "Delete an extra port first.",
        C::TunnelSuspended => {
            "It runs again when the month turns (UTC), or when an operator gives the account another plan."
        }
        C::TunnelNotRunning => "Start it first.",
        C::DeviceOffline => "Start the agent on the device: `culvert-agent run`. This page shows when it is online.",
        C::DeviceNotAllowed => "Let the device run the tunnel on the tunnel's page *Settings*.",
        C::RemoteControlDisabled => "Only the device can turn it on: `culvert-agent remote-control enable`.",
        C::TargetNotAllowed => "The device's owner allows more on the device: `culvert-agent targets allow <TARGET>`.",
        C::UpgradeRequired => "Update the agent on the device, and start it again.",
        C::TunnelAlreadyRunning => "Press *Move it here* beside the device: the connections of its visitors end.",
        C::OperationInProgress => "Wait until it has ended. The page *Operations* shows it.",
        C::WebhookLimitReached => "Delete an endpoint that is not needed.",
        C::WebhookDisabled => "Enable the endpoint first.",
        C::DomainNotVerified => "Set the CNAME at the DNS of the domain, then verify it.",
        C::DomainInUse => "Remove it from the other tunnel first.",
        C::AlreadyOnNode => "Choose another node.",
        C::FormExpired => "What was typed stands in the form: send it once more.",
        C::SecondFactorRequired => "Set one up on the page of your account.",
        C::KeyLimitReached => "Revoke a key that is not needed.",
        C::DeliveryInFlight => "Look again in a few seconds.",
        C::DevicePinned => "Let other devices run the tunnel on its page *Settings*, or delete it.",
        C::LimitReached => "Delete something of the kind first.",
        C::LastOwner => "Make another member an owner first.",
        C::LastOperator => "Make another account an operator first.",
        C::TeamNotEmpty => "Delete its tunnels and remove its devices first.",
        C::LastCredential => "Set a password, or add another passkey first.",
        C::PoliciesKept => "The page *Policies* says what is wrong. Those that are in use stay in use.",
        C::LinkNotValid => "Whoever made it makes another one.",
        C::InternalError => {
            "Nothing tells whether it was done: look first, then try again. An operator finds the request id in the log."
        }
        C::ServiceUnavailable => {
            "Nothing was lost. Try again; if it lasts, operators see on the page *Health* what is missing."
        }
        C::PolicyUnavailable => {
            "Nothing was done. Try again; if it lasts, operators see on the page *Policies* which policy fails."
        }
        _ => return None,
    };
    Some(advice)
}

/// What to do about an operation that has failed, expired or was canceled.
pub(crate) fn of_operation(code: &FailureCode) -> &'static str {
    use FailureCode as F;
    match code {
        F::AccessLost => {
            "Whoever asked for it, or the device's owner, may no longer act here. Somebody who may asks for it again."
        }
        F::AgentRejected => "The agent did not take the command. Its log on the device says why.",
        F::AgentStopped => "The agent has ended. Start it: `culvert-agent run`.",
        F::Ambiguous => "More than one tunnel has this name. Use the id.",
        F::ConsentOutdated => "The page that asked was out of date. Ask for it again on the device.",
        F::CreationNotAllowed => "The account lets the device create tunnels on the device's page.",
        F::DeviceDisconnected => {
            "The device went away before it began, so nothing was done. Ask for it again when it is online."
        }
        F::DeviceNotAllowed => "Let the device run the tunnel in the tunnel's settings.",
        F::DeviceRemoved => "The device is no longer here. Choose another one.",
        F::ExecutionTimeout => {
            "It took too long. Look at the device and the service behind the tunnel, then ask for it again."
        }
        F::FeatureNotAvailable => "The plan does not include it. An operator gives the account another plan.",
        F::InternalError => "The fault is ours. Try again; the operator's log says what went wrong.",
        F::LeaseConflict => "The tunnel was stopped, or started elsewhere, meanwhile. Ask for it again.",
        F::LocalTargetUnreachable => {
            "Nothing answers at the tunnel's local address. Start the service there, or correct the address."
        }
        F::LocalTlsFailed => {
            "The service does not speak TLS, or its certificate is not good. Correct it, or the tunnel's settings."
        }
        F::NodeUnavailable => "The tunnel's node did not answer. Try again, or move the tunnel to another node.",
        F::NotClaimed => {
            "The device did not take the command within a minute, so nothing was done. Look whether it is online."
        }
        F::NotConnected => "The agent has no connection to the host. It connects by itself; try again.",
        F::NotFound => "There is no such tunnel. It may have been deleted.",
        F::OperationInProgress => "Wait until the other operation has ended.",
        F::OutcomeUnknown => "The agent had begun, and went away. Look at the device; to ask for it again is safe.",
        F::RateLimited => "Too much was asked at once. Try again in a second.",
        F::Refused => "The host did not take it. The text says why.",
        F::RemoteControlDisabled => "Only the device can turn it on: `culvert-agent remote-control enable`.",
        F::TargetNotAccepted | F::TargetNotAllowed => {
            "The device's owner has to allow the target, on the device: `culvert-agent targets allow <TARGET>`."
        }
        F::TargetNotListed => "The target is not in the list. `culvert-agent targets list` shows it.",
        F::TooManyTargets => "Remove a target that is not needed first.",
        F::TunnelAlreadyRunning => "Another device runs the tunnel. Hand it over, or stop it there first.",
        F::TunnelDeleted => "The tunnel is no longer here. Make another one.",
        F::TunnelNotRunning => "It runs on no device. Start it first.",
        F::TunnelStartFailed => "The text says what was in the way. Ask for it again when that is mended.",
        F::TunnelSuspended => "It runs again when the month turns (UTC), or with another plan.",
        F::UnsupportedAction => "Update the agent on the device, and start it again.",
        F::Other(_) => "This version does not know the code. The text says what is known.",
    }
}

/// What to do about a delivery that has failed.
pub(crate) fn of_delivery(error: AttemptError) -> &'static str {
    match error {
        AttemptError::DnsFailed => "The name of the endpoint has no public address. Correct its DNS, or the URL.",
        AttemptError::AddressBlocked => {
            "Events go to public addresses alone. Give the endpoint a name with a public address."
        }
        AttemptError::ConnectFailed => "Nothing takes connections there. Start the receiver, and look at its firewall.",
        AttemptError::TlsError => {
            "The receiver's certificate is not good: expired, of another name, or without its chain."
        }
        AttemptError::Timeout => "No complete answer came within 15 seconds. Answer first, then do the work.",
        AttemptError::HttpStatus => "The receiver answered with something other than 2xx. Its log says why.",
        AttemptError::TooLarge => "The answer has more than 16 KiB. A receiver answers with an empty body.",
        AttemptError::TooManyWaiting => {
            "Too many events waited for the endpoint. Answer faster, or ask for fewer kinds of events."
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Their own text says what to do, or requests with an API key alone are refused so.
    const WITHOUT: &[Code] = &[
        Code::InvalidApiKey,
        Code::MissingApiKey,
        Code::ApiVersionGone,
        Code::RateLimited,
        Code::DailyQuotaExceeded,
        Code::MethodNotAllowed,
        Code::InsufficientScope,
        Code::InvalidContentType,
        Code::HostRequired,
        Code::RequestTimeout,
        Code::UnsupportedContentEncoding,
        Code::PayloadTooLarge,
        Code::InvalidJson,
        Code::InvalidJsonObject,
        Code::IdempotencyKeyRequired,
        Code::InvalidIdempotencyKey,
        Code::IdempotencyConflict,
        Code::IdempotencyInProgress,
        Code::ValidationFailed,
        Code::SignInRequired,
        Code::CrossOriginRequest,
        Code::ElevationRequired,
    ];

    #[test]
    fn each_code_has_advice_or_needs_none() {
        for code in Code::ALL {
            assert_ne!(of_refusal(code).is_some(), WITHOUT.contains(code), "{code:?}");
        }
    }
}
