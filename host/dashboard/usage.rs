//! What a scope has used: its traffic by day and by hour, and what its plan includes.

use culvert_domain::error::Result;
use culvert_service::gate;
use maud::{Markup, html};

use crate::hours;
use crate::view::{bytes, page, plot};
use crate::visit::Visit;

pub(crate) async fn show(visit: &Visit) -> Result<Markup> {
    let (service, caller) = (visit.service(), &visit.caller);
    let usage = service.scope_usage(caller).await?;
    let entitlement = gate::entitlement(&visit.policies, &caller.scope.plan).await?;
    let used = usage.bandwidth.month.total();
    let content = html! {
        section {
            h2 { "This month" }
            @match entitlement.bandwidth_limit_bytes {
                Some(limit) => {
                    p { (bytes::amount(used)) " of " (bytes::amount(limit)) }
                    meter min="0" max=(limit) value=(used.min(limit)) aria-label="Used of the month's bandwidth" {}
                    @if used >= limit {
                        p.notice.warn { "The month's bandwidth is used up. Tunnels run again at the begin of the next month (UTC), or on another plan." }
                    }
                }
                None => p { (bytes::amount(used)) ". The plan sets no limit." }
            }
            p.muted { (bytes::traffic(usage.bandwidth.month)) "; today " (bytes::traffic(usage.bandwidth.today)) "." }
        }
        section {
            h2 { "The last 30 days" }
            (plot::days(&service.scope_days(caller).await?))
        }
        (hours::section(visit, None).await?)
    };
    Ok(page::signed_in(visit, "Usage", &content))
}
