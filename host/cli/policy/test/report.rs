//! What came of a run: for people, for programs, and for whatever reads JUnit.

use anstyle::{AnsiColor, Style};
use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};
use serde_json::json;

use super::Run;
use crate::cli::{Output, print};
use culvert_policy::load::cases::Outcome;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Colours go where a terminal is, and nowhere else: `anstream` sees to that.
pub(super) fn human(run: &Run) {
    for outcome in &run.outcomes {
        let Outcome { file, name, invalid, differences, debug, .. } = outcome;
        let (style, word) = if outcome.passed() { (GOOD, "ok  ") } else { (BAD, "FAIL") };
        anstream::println!("{style}{word}{style:#}  {file}: {name}");
        debug.iter().for_each(|line| anstream::println!("        debug: {line}"));
        if let Some(problem) = invalid {
            anstream::println!("        the case is wrong");
            anstream::println!("          {BAD}{problem}{BAD:#}");
        }
        for difference in differences {
            let field = if difference.field.is_empty() { "the answer" } else { &difference.field };
            anstream::println!("        {field}");
            anstream::println!("          {GOOD}expected  {}{GOOD:#}", difference.expected);
            anstream::println!("          {BAD}got       {}{BAD:#}", difference.got);
        }
    }
    let (failed, rules) = (run.failures(), run.coverage.rules);
    let missing = &run.coverage.missing;
    anstream::println!(
        "{}: {} passed, {failed} failed; {} of {rules} rules covered ({:.0} %)",
        run.name,
        run.outcomes.len() - failed,
        rules - missing.len(),
        run.coverage.percent()
    );
    if !missing.is_empty() {
        anstream::println!("no case comes by {}", missing.join(", "));
    }
}

pub(super) fn json(run: &Run) {
    let case = |outcome: &Outcome| {
        json!({
            "file": outcome.file,
            "name": outcome.name,
            "passed": outcome.passed(),
            "rules": outcome.rules,
            "invalid": outcome.invalid,
            "differences": outcome.differences,
            "debug": outcome.debug,
        })
    };
    let value = json!({
        "module": run.name,
        "passed": run.outcomes.len() - run.failures(),
        "failed": run.failures(),
        "cases": run.outcomes.iter().map(case).collect::<Vec<_>>(),
        "coverage": {
            "percent": run.coverage.percent(),
            "rules": run.coverage.rules,
            "missing": run.coverage.missing,
        },
    });
    print(Output::Json, &value, String::new);
}

pub(super) fn junit(run: &Run) -> Result<String, SerializeError> {
    let mut report = Report::new(&*run.name);
    let mut suites: Vec<TestSuite> = Vec::new();
    for outcome in &run.outcomes {
        let Outcome { file, name, .. } = outcome;
        let mut status = TestCaseStatus::success();
        if !outcome.passed() {
            status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(outcome.problem());
        }
        if suites.last().is_none_or(|suite| suite.name.as_str() != file) {
            suites.push(TestSuite::new(&**file));
        }
        if let Some(suite) = suites.last_mut() {
            suite.add_test_case(TestCase::new(&**name, status));
        }
    }
    report.add_test_suites(suites);
    report.to_string()
}
