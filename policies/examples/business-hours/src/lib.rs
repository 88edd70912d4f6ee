//! Starts tunnels within business hours only.

use culvert::policy::types::Verdict;
use culvert_policy_sdk::facts::NOW;
use culvert_policy_sdk::time::{Offset, TimeOfDay};
use exports::culvert::policy::roles::Ask;

culvert_policy_sdk::policy! {
    BusinessHours: "team-role", wit: "../../../wit",
    settings: "../settings.schema.json",
    facts: [NOW],
    rules: { "business-hours": "Tunnels start from Monday to Friday, within business hours" },
    codes: { "outside_business_hours": "Tunnels are started within business hours only. Try again then." },
}

#[derive(serde::Deserialize)]
struct BusinessHours {
    zone: Offset,
    from: TimeOfDay,
    until: TimeOfDay,
}

impl BusinessHours {
    fn check(&self, ask: &Ask) -> Verdict {
        let open = NOW.of(&ask.attributes).is_some_and(|now| {
            now.weekday(self.zone).is_workday() && now.time_of_day(self.zone).is_between(self.from, self.until)
        });
        if open || ask.action != "tunnels.start" {
            return Verdict::Allow;
        }
        deny("outside_business_hours", "business-hours", "Tunnels start on workdays, within business hours.")
    }
}
