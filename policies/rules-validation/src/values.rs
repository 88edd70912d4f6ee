//! The records of the contract as conditions see them.

use culvert_policy_rules::{ToValue, Value, map};

use crate::exports::culvert::policy::inputs::{
    ExtraPort, FirewallRule, GeoipAction, GeoipRule, NullableText, Protocol, RuleType, WebhookStatus,
};

macro_rules! texts {
    ($($type:ident { $($case:ident: $text:literal),* })*) => {
        $(impl ToValue for $type {
            fn to_value(&self) -> Value {
                match self {
                    $(Self::$case => $text.to_value(),)*
                }
            }
        })*
    };
}

macro_rules! records {
    ($($type:ident { $($field:ident),* })*) => {
        $(impl ToValue for $type {
            fn to_value(&self) -> Value {
                map([$((stringify!($field), self.$field.to_value())),*])
            }
        })*
    };
}

texts! {
    Protocol { Tcp: "tcp", Udp: "udp", Both: "both", Http: "http" }
    RuleType { Whitelist: "whitelist", Blacklist: "blacklist" }
    GeoipAction { Allow: "allow", Block: "block" }
    WebhookStatus { Enabled: "enabled", Disabled: "disabled" }
}

records! {
    ExtraPort { local_port, label, protocol }
    FirewallRule { rule_type, ip_address, ip_cidr, description }
    GeoipRule { country_code, action }
}

impl ToValue for NullableText {
    fn to_value(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Text(text) => text.to_value(),
        }
    }
}
