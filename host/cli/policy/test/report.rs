//! What came of a run: for people, for programs, and for whatever reads JUnit.

use anstyle::{AnsiColor, Style};
use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};
use serde_json::json;

use super::Run;
use culvert_policy::load::cases::Outcome;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Colours go where a terminal is, and nowhere else: `anstream` sees to that.
pub(super) fn human(run: &Run) {
    for Outcome { file, name, differences, .. } in &run.outcomes {
        let (style, word) = if differences.is_empty() { (GOOD, "ok  ") } else { (BAD, "FAIL") };
        anstream::println!("{style}{word}{style:#}  {file}: {name}");
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
            "passed": outcome.differences.is_empty(),
            "rules": outcome.rules,
            "differences": outcome.differences,
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
    anstream::println!("{value}");
}

pub(super) fn junit(run: &Run) -> Result<String, SerializeError> {
    let mut report = Report::new(&*run.name);
    let mut suites: Vec<TestSuite> = Vec::new();
    for Outcome { file, name, differences, .. } in &run.outcomes {
        let mut status = TestCaseStatus::success();
        if !differences.is_empty() {
            status = TestCaseStatus::non_success(NonSuccessKind::Failure);
            status.set_message(differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
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
