//! What came of a run: for people, for programs, and for whatever reads JUnit.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use culvert_agent::output::ensure_written;
use quick_junit::{NonSuccessKind, Report, SerializeError, TestCase, TestCaseStatus, TestSuite};
use serde_json::json;

use super::Run;
use crate::cli::{Output, PROGRAM, print};
use culvert_policy::load::cases::Outcome;

const GOOD: Style = AnsiColor::Green.on_default();
const BAD: Style = AnsiColor::Red.on_default().bold();

/// Colours go where a terminal is, and nowhere else: `anstream` sees to that.
pub(super) fn human(run: &Run) {
    ensure_written(PROGRAM, write(&mut anstream::stdout().lock(), run));
}

fn write(out: &mut impl Write, run: &Run) -> io::Result<()> {
    for outcome in &run.outcomes {
        let Outcome { file, name, invalid, differences, debug, .. } = outcome;
        let (style, word) = if outcome.passed() { (GOOD, "ok  ") } else { (BAD, "FAIL") };
        writeln!(out, "{style}{word}{style:#}  {file}: {name}")?;
        for line in debug {
            writeln!(out, "        debug: {line}")?;
        }
        if let Some(problem) = invalid {
            writeln!(out, "        the case is wrong")?;
            writeln!(out, "          {BAD}{problem}{BAD:#}")?;
        }
        for difference in differences {
            let field = if difference.field.is_empty() { "the answer" } else { &difference.field };
            writeln!(out, "        {field}")?;
            writeln!(out, "          {GOOD}expected  {}{GOOD:#}", difference.expected)?;
            writeln!(out, "          {BAD}got       {}{BAD:#}", difference.got)?;
        }
    }
    let (failed, rules) = (run.failures(), run.coverage.rules);
    let missing = &run.coverage.missing;
    writeln!(
        out,
        "{}: {} passed, {failed} failed; {} of {rules} rules covered ({:.0} %)",
        run.name,
        run.outcomes.len() - failed,
        rules - missing.len(),
        run.coverage.percent()
    )?;
    if !missing.is_empty() {
        writeln!(out, "no case comes by {}", missing.join(", "))?;
    }
    Ok(())
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
