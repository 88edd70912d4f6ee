//! `culvert policy test`: cases, and the rules that they come by.

mod report;
mod watch;

use std::path::{Path, PathBuf};

use clap::Args;
use serde_json::{Map, Value};

use super::{Progress, Tool, build, settings};
use crate::cli::Output;
use crate::cli::{CliError, refused};
use culvert_policy::load::bundle;
use culvert_policy::load::cases::{File, Outcome};
use culvert_policy::tools::coverage::Coverage;
use culvert_policy::tools::rules_project::RulesProject;
use watch::Watched;

#[derive(Args)]
pub(crate) struct Test {
    /// A project's folder, which is built first, or a component, or `builtin:` and the name of a shipped one
    #[arg(default_value = ".")]
    subject: PathBuf,
    /// The folder of the cases [default: those of the project, or the ones that the component carries]
    #[arg(long, value_name = "FOLDER")]
    cases: Option<PathBuf>,
    /// Settings for the cases that have none of their own, TOML or JSON
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// Run only the cases whose name holds this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Fail where the cases come by fewer of the rules than this
    #[arg(long, value_name = "PERCENT", value_parser = percent, conflicts_with = "filter")]
    min_coverage: Option<f64>,
    /// Write a JUnit report as well
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Run again whenever the project changes, until Ctrl-C
    #[arg(long)]
    watch: bool,
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.trim_end_matches('%').parse().ok();
    percent.filter(|percent| (0.0..=100.0).contains(percent)).ok_or_else(|| "must be between 0 and 100".into())
}

/// What came of one run.
struct Run {
    name: String,
    outcomes: Vec<Outcome>,
    coverage: Coverage,
}

impl Run {
    fn failures(&self) -> usize {
        self.outcomes.iter().filter(|outcome| !outcome.passed()).count()
    }
}

impl Test {
    pub(crate) fn run(self, output: Output) -> Result<(), CliError> {
        if !self.watch {
            return self.once(output);
        }
        watch::again(self.watched(), || {
            if let Err(problem) = self.once(output) {
                anstream::eprintln!("culvert: {problem}");
            }
        })
    }

    fn watched(&self) -> Watched {
        let beside =
            || self.subject.parent().filter(|path| *path != Path::new("")).unwrap_or(Path::new(".")).to_owned();
        if self.subject.is_dir() {
            Watched { folder: self.subject.clone(), module: None }
        } else {
            let folder = self.cases.clone().unwrap_or_else(beside);
            Watched { folder, module: Some(self.subject.clone()) }
        }
    }

    fn once(&self, output: Output) -> Result<(), CliError> {
        let run = self.test()?;
        if let Some(path) = &self.junit {
            let written = std::fs::write(path, report::junit(&run).map_err(refused)?);
            written.map_err(|error| refused(format!("{}: {error}", path.display())))?;
        }
        if output == Output::Json {
            report::json(&run);
        } else {
            report::human(&run);
        }
        self.verdict(&run)
    }

    fn test(&self) -> Result<Run, CliError> {
        let (tool, settings) = self.tool()?;
        let mut files = match (&self.cases, self.subject.is_dir()) {
            (Some(folder), _) => File::read_all(folder),
            (None, true) => File::read_all(&self.subject.join("cases")),
            (None, false) => File::bundled(&tool.module.wasm),
        }
        .map_err(refused)?;
        if let Some(filter) = &self.filter {
            files.iter_mut().for_each(|file| file.keep(filter));
            files.retain(|file| !file.cases.is_empty());
        }
        files.iter_mut().filter(|file| file.settings.is_empty()).for_each(|file| file.settings.clone_from(&settings));
        let progress = Progress::of("compiling");
        let mut results = Vec::new();
        for file in &files {
            progress.show(file.file.clone());
            results.push(file.run(&tool.engines, &tool.module).map_err(refused)?);
        }
        let coverage = Coverage::of(&results);
        let name = results.first().map(|results| results.module.clone());
        let outcomes = results.into_iter().flat_map(|results| results.outcomes).collect();
        Ok(Run { name: name.unwrap_or(tool.module.description.name), outcomes, coverage })
    }

    /// The module, and the settings of the cases that have none of their own.
    fn tool(&self) -> Result<(Tool, Map<String, Value>), CliError> {
        let given = settings(self.settings.as_ref())?;
        if RulesProject::is_in(&self.subject) {
            let RulesProject { kind, settings } = RulesProject::read(&self.subject).map_err(refused)?;
            let settings = if self.settings.is_some() { given } else { settings };
            return Ok((Tool::open(Path::new(&bundle::of_rules(kind)))?, settings));
        }
        let tool = if self.subject.is_dir() {
            Tool::of(build::build(&self.subject)?.wasm).map_err(refused)?
        } else {
            Tool::open(&self.subject)?
        };
        Ok((tool, given))
    }

    fn verdict(&self, run: &Run) -> Result<(), CliError> {
        if run.outcomes.is_empty() {
            let cause = if self.filter.is_some() { "no case has this in its name" } else { "there are no cases" };
            return Err(refused(cause));
        }
        match run.failures() {
            0 => {}
            1 => return Err(refused("a case failed")),
            failures => return Err(refused(format!("{failures} cases failed"))),
        }
        let (percent, wanted) = (run.coverage.percent(), self.min_coverage.unwrap_or(0.0));
        if percent < wanted {
            return Err(refused(format!("the cases come by {percent:.0} % of the rules; {wanted:.0} % are wanted")));
        }
        Ok(())
    }
}
