//! `culvert policy bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::{Progress, Tool, settings};
use crate::cli::Output;
use crate::cli::{CliError, print, refused, table};
use culvert_policy::engine::sandbox::Limits;
use culvert_policy::load::cases::File;
use culvert_policy::tools::bench::{self, BenchResult};

#[derive(Args)]
pub(crate) struct Bench {
    /// The component
    module: PathBuf,
    /// The questions, as a file of cases [default: the cases that the component carries]
    #[arg(long, value_name = "FILE")]
    cases: Option<PathBuf>,
    /// The module's settings, TOML or JSON [default: those of the cases]
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// How long to decide the questions of one file
    #[arg(long, default_value_t = 3, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=600))]
    seconds: u64,
}

impl Bench {
    pub(crate) fn run(self, output: Output) -> Result<(), CliError> {
        let Tool { engines, module } = Tool::open(&self.module)?;
        let mut files = match &self.cases {
            Some(path) => vec![File::read(path).map_err(refused)?],
            None => File::bundled(&module.wasm).map_err(refused)?,
        };
        if files.is_empty() {
            return Err(refused("the component carries no cases; name a file of them with --cases"));
        }
        let mut measured: Vec<(String, BenchResult)> = Vec::new();
        for file in &mut files {
            let _shown = Progress::of(format!("deciding {} for {} s", file.file, self.seconds));
            if self.settings.is_some() {
                file.settings = settings(self.settings.as_ref())?;
            }
            let time = Duration::from_secs(self.seconds);
            let figures = bench::measure(&engines, &module, file, Limits::generous(), time);
            measured.push((file.file.clone(), figures.map_err(refused)?));
        }
        let files: Vec<Value> =
            measured.iter().map(|(file, figures)| json!({"file": file, "figures": figures})).collect();
        print(output, &json!({ "files": files }), || describe(&measured));
        Ok(())
    }
}

fn describe(measured: &[(String, BenchResult)]) -> String {
    let mut rows = vec![["QUESTIONS", "DECISIONS/S", "P50", "P99", "INSTRUCTIONS"].map(String::from).to_vec()];
    for (file, figures) in measured {
        rows.push(vec![
            file.clone(),
            format!("{:.0}", figures.per_second),
            format!("{:.1} µs", figures.p50_us),
            format!("{:.1} µs", figures.p99_us),
            figures.instructions.to_string(),
        ]);
    }
    table(rows)
}
