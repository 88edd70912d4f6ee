//! Runs some tunnels on some devices only, by name.

use culvert::policy::types::Verdict;
use culvert_policy_sdk::facts::{DEVICE_NAME, TUNNEL_NAME};
use culvert_policy_sdk::pattern::is_glob_match;
use exports::culvert::policy::roles::Ask;

culvert_policy_sdk::policy! {
    CiDevices: "team-role", wit: "../../../wit",
    settings: "../settings.schema.json",
    facts: [DEVICE_NAME, TUNNEL_NAME],
    rules: { "device-name": "Tunnels whose name matches run on devices whose name matches" },
    codes: { "wrong_device": "This tunnel runs on other devices only. Choose one of those." },
}

#[derive(serde::Deserialize)]
struct CiDevices {
    tunnels: String,
    devices: String,
}

impl CiDevices {
    fn check(&self, ask: &Ask) -> Verdict {
        let matches = |name: Option<String>, glob: &str| name.is_some_and(|name| is_glob_match(glob, &name));
        let bound = ask.action == "tunnels.start" && matches(TUNNEL_NAME.of(&ask.attributes), &self.tunnels);
        if bound && !matches(DEVICE_NAME.of(&ask.attributes), &self.devices) {
            let detail = format!("This tunnel runs on devices named {}.", self.devices);
            return deny("wrong_device", "device-name", detail);
        }
        Verdict::Allow
    }
}
