//! A question for tests.

pub(crate) struct Sample {
    action: String,
    attributes: Vec<Attribute>,
}

struct Attribute {
    name: &'static str,
    value: String,
}

crate::question!(Sample, |sample| attributes: sample.attributes, {
    "action" => sample.action,
    "devices" => Vec::<bool>::new(),
});

impl Sample {
    pub(crate) fn with(facts: &[(&'static str, &str)]) -> Self {
        let attributes = facts.iter().map(|(name, value)| Attribute { name, value: (*value).into() }).collect();
        Self { action: "tunnels.start".into(), attributes }
    }
}
