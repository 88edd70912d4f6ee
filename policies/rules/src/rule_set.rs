//! The rules of a module, ready to decide.

use cel::Context;
use culvert_policy_sdk::time::Offset;

use crate::condition::{Condition, Needs};
use crate::functions;
use crate::names::Name;
use crate::question::Question;
use crate::settings::{Rule, Settings};

pub struct RuleSet {
    /// What the operator calls the module.
    pub name: Option<String>,
    rules: Vec<(Rule, Condition)>,
    /// The names that the conditions use.
    names: Vec<Name>,
    zone: Offset,
    /// The functions; making them takes longer than a decision.
    context: Context<'static, 'static>,
}

/// What is wrong with a setting.
#[derive(Debug)]
pub struct Problem {
    pub path: String,
    pub message: String,
}

impl RuleSet {
    /// Compiles the rules of the settings.
    ///
    /// # Errors
    ///
    /// Every rule with a name that another one has, or a condition that cannot be used.
    pub fn configure<Q: Question>(settings: Settings) -> Result<Self, Vec<Problem>> {
        let Settings { name, utc_offset: zone, rules } = settings;
        let (mut needs, mut problems, mut compiled) = (Needs::default(), Vec::new(), Vec::new());
        for (index, rule) in rules.into_iter().enumerate() {
            if compiled.iter().any(|(other, _): &(Rule, Condition)| other.name == rule.name) {
                let message = format!("another rule is called `{}` as well", rule.name);
                problems.push(Problem { path: format!("rules[{index}].name"), message });
            }
            match Condition::compile::<Q>(&rule.when, &mut needs) {
                Ok(condition) => compiled.push((rule, condition)),
                Err(error) => {
                    let at = if rule.when.contains('\n') { format!("line {}, ", error.line) } else { String::new() };
                    let message = format!("rule `{}`, {at}column {}: {}", rule.name, error.column, error.message);
                    problems.push(Problem { path: format!("rules[{index}].when"), message });
                }
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let context = functions::context(needs.expressions)
            .map_err(|error| vec![Problem { path: String::new(), message: error.to_string() }])?;
        Ok(Self { name, rules: compiled, names: needs.names.into_iter().collect(), zone, context })
    }

    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter().map(|(rule, _)| rule)
    }

    /// The facts that the conditions name.
    pub fn facts(&self) -> Vec<&'static str> {
        let mut facts: Vec<_> = self.names.iter().filter_map(Name::fact).collect();
        facts.dedup();
        facts
    }

    /// The rules whose conditions are true for a request, in their order.
    ///
    /// # Panics
    ///
    /// Where a condition cannot be evaluated: the host then lets nothing through.
    pub fn matching<'a, Q: Question>(&'a self, question: &Q) -> impl Iterator<Item = &'a Rule> {
        let mut context = self.context.new_inner_scope();
        for name in &self.names {
            context.add_variable_from_value(name.text(), name.value(question, self.zone));
        }
        self.rules.iter().filter_map(move |(rule, condition)| match condition.holds(&context) {
            Ok(holds) => holds.then_some(rule),
            Err(problem) => panic!("rule `{}`: {problem}", rule.name),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn decide(when: &str, facts: &[(&'static str, &str)]) -> bool {
        let settings =
            serde_json::json!({"utc_offset": "+01:00", "rules": [{"name": "a", "when": when, "message": "No."}]});
        let rules = RuleSet::configure::<Sample>(serde_json::from_value(settings).unwrap()).unwrap();
        rules.matching(&Sample::with(facts)).next().is_some()
    }

    /// What the guide lists of CEL.
    #[test]
    fn listed_operators_and_functions_are_there() {
        for when in [
            "1 + 2 * 3 - 4 / 2 % 3 == 5 && -1 < 0 && 1 != 2 && 3 >= 3 && 2 <= 3 && !(1 > 2)",
            "1 > 0 ? true : false",
            "'a' in ['a', 'b'] && 'k' in {'k': 1} && {'k': 1}.k == 1 && [1, 2][1] == 2",
            "[1, 2].all(n, n > 0) && [1, 2].exists(n, n == 2) && [1, 2].exists_one(n, n == 2)",
            "[1, 2].map(n, n * 2) == [2, 4] && [1, 2].filter(n, n > 1) == [2]",
            "'abc'.contains('b') && 'abc'.startsWith('a') && 'abc'.endsWith('c') && size('abc') == 3",
            "'abc'.matches('^[a-c]+$') && !'xabc'.matches('^a') && 'a' + 'b' == 'ab'",
            "'prod-db'.glob('prod-*') && 'a.example.com'.inDomain('example.com') && 'ABC'.lowerAscii() == 'abc'",
            "host('https://A.example.com:8443/x') == 'a.example.com' && host('nothing') == ''",
            "int('5') == 5 && string(5) == '5' && double(1) == 1.0 && bool('true')",
            "action == 'tunnels.start' && tunnel.name == null",
        ] {
            assert!(decide(when, &[]), "{when}");
        }
    }

    #[test]
    fn parts_of_times_are_those_of_the_time_zone() {
        let facts = [("now", "\"2026-12-31T23:05:00Z\"")];
        let when = "now.date == '2027-01-01' && now.time == '00:05' && now.hour == 0 && now.minute == 5 && \
                    now.weekday == 'friday' && now.year == 2027 && now.month == 1 && now.day == 1 && \
                    now.unix == 1798758300 && key.created_at.unix == null";
        assert!(decide(when, &facts));
    }

    #[test]
    #[should_panic(expected = "rule `a`: `startsWith` is not there for null and string")]
    fn condition_that_cannot_be_evaluated_ends_the_decision() {
        decide("tunnel.name.startsWith('a')", &[]);
    }

    #[test]
    #[should_panic(expected = "rule `a`: it is int, neither true nor false")]
    fn condition_that_is_no_condition_ends_the_decision() {
        decide("1 + 1", &[]);
    }

    #[test]
    fn rules_have_names_of_their_own() {
        let rule = serde_json::json!({"name": "a", "when": "true", "message": "No."});
        let settings = serde_json::json!({"rules": [rule, rule]});
        let problems = RuleSet::configure::<Sample>(serde_json::from_value(settings).unwrap()).err().unwrap();
        assert_eq!(problems[0].path, "rules[1].name");
        assert_eq!(problems[0].message, "another rule is called `a` as well");
    }
}
