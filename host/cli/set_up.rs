//! The link by which the first operator comes in.

use std::fs;
use std::io::{self, IsTerminal, Write};

use super::account::entrance;
use super::{CliError, refused};
use crate::app::App;
use crate::config::ConfigError;
use culvert_domain::error::Chain;
use culvert_service::links;
use culvert_wire::private_dir;

/// The file in the data folder that holds the link where nobody watches.
const FILE: &str = "setup-link";

/// Offers a link for the first operator, while no account can sign in: on the terminal, or in a file of which the log has
/// the path alone. The link of a former start ends.
pub(super) async fn offer(app: &App) -> Result<(), CliError> {
    if !app.config.dashboard.enabled {
        return Ok(());
    }
    let path = app.config.data_dir.join(FILE);
    let failed = |error: io::Error| ConfigError::new("data_dir", format!("{}: {error}", path.display()));
    let secret = match links::offer_setup(&app.store).await {
        Ok(secret) => secret,
        Err(error) if error.hides_its_source() => {
            tracing::warn!(error = %Chain(&error), "whether somebody can sign in could not be looked up; the next start does");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    // It holds the link of a former start, which has ended.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error).into()),
        _ => {}
    }
    let Some(secret) = secret else { return Ok(()) };
    let url = entrance(&app.config, &secret);
    if io::stderr().is_terminal() {
        let text = format!("Nobody can sign in yet. Open this link to set up the first operator:\n\n    {url}\n");
        return writeln!(io::stderr(), "{text}").map_err(refused);
    }
    private_dir::replace(&path, format!("{url}\n").as_bytes()).map_err(failed)?;
    tracing::info!(file = %path.display(), "nobody can sign in yet; the link in this file sets up the first operator");
    Ok(())
}
