//! `docket config`.

use super::context::Context;
use crate::args::ConfigArgs;
use crate::client::default_data_dir;
use crate::config::Settings;
use crate::exit;
use crate::failure::Failure;
use crate::say::print;

/// Prints every key, its value and its source; a value that cannot be is an error here already.
pub fn config(context: &Context, args: &ConfigArgs) -> Result<u8, Failure> {
    let settings = Settings::load(args.config.as_deref())?;
    settings.section::<controller::Config>("controller")?;
    settings.section::<worker_agent::Config>("agent")?;
    let mut rows = settings.rows();
    for row in &mut rows {
        // What has no fixed default depends on who asks, and where.
        let usual = match row.key.as_str() {
            "controller.data" | "agent.data" => {
                default_data_dir(&context.places).ok().map(|dir| dir.display().to_string())
            }
            "agent.name" => Some(context.places.host.clone()),
            _ => None,
        };
        if row.value.is_none() {
            row.value = usual;
        }
    }
    print(&context.renderer(args.output.form()).settings(&rows))?;
    Ok(exit::DONE)
}
