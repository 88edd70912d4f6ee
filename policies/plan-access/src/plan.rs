//! Plans, as the settings say them and as a decision looks them up.

use std::cmp::Ordering;
use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::exports::culvert::policy::plans::Entitlement;

/// The plans that hold where the settings name none.
const SHIPPED: &str = include_str!("../plans.json");

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    plans: Option<Plans>,
    #[serde(default)]
    plans_add: Plans,
}

impl Settings {
    pub fn into_plans(self) -> Plans {
        let shipped = || serde_json::from_str(SHIPPED).expect("the shipped plans fit the settings");
        self.plans.unwrap_or_else(shipped).with(self.plans_add)
    }
}

/// One plan. An absent number is unlimited.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
#[derive(Default)]
pub struct Plan {
    pub api_access: bool,
    remote_actions: RemoteActions,
    pub premium_network: bool,
    pub custom_domains: bool,
    pub tunnel_limit: Option<u32>,
    pub extra_ports_per_tunnel: Option<u32>,
    pub webhook_endpoints: Option<u32>,
    bandwidth_limit_bytes: Option<u64>,
}

impl Plan {
    pub fn allows_remote(&self, action: &str) -> bool {
        self.remote_actions.includes(action)
    }

    pub fn entitlement(&self) -> Entitlement {
        Entitlement {
            api_access: self.api_access,
            remote_actions: self.remote_actions.names(),
            tunnel_limit: self.tunnel_limit,
            bandwidth_limit_bytes: self.bandwidth_limit_bytes,
            premium_network: self.premium_network,
            custom_domains: self.custom_domains,
            extra_ports_per_tunnel: self.extra_ports_per_tunnel,
            webhook_endpoints: self.webhook_endpoints,
        }
    }
}

/// All plans, in the order of their names.
///
/// Every decision starts from a fresh copy of the module's memory, so this is kept small and flat,
/// and is read from the settings without a detour.
#[derive(Default)]
pub struct Plans {
    names: String,
    plans: Vec<(Range<u32>, Plan)>,
}

impl Plans {
    pub fn get(&self, name: &str) -> Option<&Plan> {
        let found = self.plans.binary_search_by(|(range, _)| self.compare(range, name)).ok()?;
        Some(&self.plans[found].1)
    }

    fn compare(&self, range: &Range<u32>, name: &str) -> Ordering {
        name_at(&self.names, range).cmp(name)
    }

    /// These plans and others. Of two with one name, the other one is taken.
    fn with(self, others: Self) -> Self {
        if others.plans.is_empty() {
            return self;
        }
        let mut all = Self::default();
        let Self { names, plans } = self;
        let kept = plans.into_iter().filter(|(range, _)| others.get(name_at(&names, range)).is_none());
        kept.for_each(|(range, plan)| all.push(name_at(&names, &range), plan));
        others.plans.into_iter().for_each(|(range, plan)| all.push(name_at(&others.names, &range), plan));
        all.sort();
        all
    }

    fn push(&mut self, name: &str, plan: Plan) {
        let start = self.names.len() as u32;
        self.names.push_str(name);
        self.plans.push((start..self.names.len() as u32, plan));
    }

    fn sort(&mut self) {
        let Self { names, plans } = self;
        plans.sort_unstable_by(|(a, _), (b, _)| name_at(names, a).cmp(name_at(names, b)));
    }
}

fn name_at<'a>(names: &'a str, range: &Range<u32>) -> &'a str {
    &names[range.start as usize..range.end as usize]
}

impl<'de> Deserialize<'de> for Plans {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Map;
        impl<'de> Visitor<'de> for Map {
            type Value = Plans;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("plans by their names")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Plans, A::Error> {
                let mut plans = Plans::default();
                while let Some(name) = map.next_key::<String>()? {
                    let plan = map.next_value().map_err(|e| Error::custom(format_args!("plans.{name}: {e}")))?;
                    plans.push(&name, plan);
                }
                plans.sort();
                Ok(plans)
            }
        }
        deserializer.deserialize_map(Map)
    }
}

/// A set of remote actions, a bit each.
#[derive(Clone, Copy, Default)]
struct RemoteActions(u8);

const REMOTE_ACTIONS: [&str; 5] = ["start", "stop", "restart", "stop_all", "restart_agent"];

impl RemoteActions {
    fn bit(action: &str) -> Option<u8> {
        REMOTE_ACTIONS.iter().position(|known| *known == action).map(|bit| 1 << bit)
    }

    fn includes(self, action: &str) -> bool {
        Self::bit(action).is_some_and(|bit| self.0 & bit != 0)
    }

    fn names(self) -> Vec<String> {
        REMOTE_ACTIONS.iter().filter(|action| self.includes(action)).map(ToString::to_string).collect()
    }
}

impl<'de> Deserialize<'de> for RemoteActions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = RemoteActions;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of {}", REMOTE_ACTIONS.join(", "))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<RemoteActions, A::Error> {
                let mut actions = RemoteActions::default();
                while let Some(action) = list.next_element::<String>()? {
                    actions.0 |= RemoteActions::bit(&action).ok_or_else(|| {
                        Error::custom(format_args!("`{action}` is none of {}", REMOTE_ACTIONS.join(", ")))
                    })?;
                }
                Ok(actions)
            }
        }
        deserializer.deserialize_seq(List)
    }
}
