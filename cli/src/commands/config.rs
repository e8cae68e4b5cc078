//! `docket config`.

use super::context::Context;
use crate::args::ConfigArgs;
use crate::client::{Places, default_data_dir};
use crate::config::Settings;
use crate::exit;
use crate::failure::Failure;
use crate::render::SettingRow;
use crate::say::print;

/// Source of a value that nobody set.
const DEFAULT: &str = "default";

/// Prints every key, its value and its source; a value that cannot be is an error here already.
pub fn config(context: &Context, args: &ConfigArgs) -> Result<u8, Failure> {
    let settings = Settings::load(args.config.as_deref())?;
    settings.section::<controller::Config>("controller")?;
    settings.section::<worker_agent::Config>("agent")?;
    let mut rows = settings.rows();
    for row in &mut rows {
        completed(row, &context.places);
    }
    print(&context.renderer(args.output.form()).settings(&rows))?;
    Ok(exit::DONE)
}

/// What stands in no file and in no variable of its own depends on who asks, and where.
fn completed(row: &mut SettingRow, places: &Places) {
    let usual = row.source == DEFAULT;
    let set = |row: &mut SettingRow, value: Option<String>, source: &str| {
        row.value = value;
        source.clone_into(&mut row.source);
    };
    match row.key.as_str() {
        "client.server" => match (&places.option, &places.server_env) {
            (Some(server), _) => set(row, Some(server.clone()), "option --server"),
            (None, Some(server)) => set(row, Some(server.clone()), "env DOCKET_SERVER"),
            (None, None) => {}
        },
        "controller.data" | "agent.data" => {
            let dir = default_data_dir(places).ok().map(|dir| dir.display().to_string());
            match (usual, places.data_env.is_some()) {
                (true, true) => set(row, dir, "env DOCKET_DATA"),
                (true, false) => set(row, dir, DEFAULT),
                (false, true) => row.source.push_str("; in docket up: env DOCKET_DATA"),
                (false, false) => {}
            }
        }
        "agent.name" if usual => set(row, Some(places.host.clone()), "host name"),
        "agent.cpus" | "agent.mem" if usual => set(row, None, "found at start"),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(key: &str, source: &str, places: &Places) -> (Option<String>, String) {
        let mut row = SettingRow { key: key.to_owned(), value: None, source: source.to_owned() };
        completed(&mut row, places);
        (row.value, row.source)
    }

    #[test]
    fn each_value_says_where_it_came_from() {
        let places = Places {
            data_env: Some("/d".into()),
            server_env: Some("unix:/s".to_owned()),
            host: "n1".to_owned(),
            ..Places::default()
        };
        let text = |value: &str| Some(value.to_owned());
        for (key, source, value, from) in [
            ("agent.data", DEFAULT, text("/d"), "env DOCKET_DATA"),
            ("agent.data", "file f", None, "file f; in docket up: env DOCKET_DATA"),
            ("client.server", DEFAULT, text("unix:/s"), "env DOCKET_SERVER"),
            ("agent.name", DEFAULT, text("n1"), "host name"),
            ("agent.cpus", DEFAULT, None, "found at start"),
            ("agent.mem", "file f", None, "file f"),
            ("controller.http", DEFAULT, None, DEFAULT),
            ("agent.gpus", "file f", None, "file f"),
            ("controller.listen", DEFAULT, None, DEFAULT),
        ] {
            assert_eq!(row(key, source, &places), (value, from.to_owned()), "{key}");
        }
        let root = Places::default();
        assert_eq!(row("agent.data", DEFAULT, &root).1, DEFAULT);
    }
}
