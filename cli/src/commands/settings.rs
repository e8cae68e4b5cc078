//! `docket cluster set`: the values of the cluster, and the change of one.

use super::context::Context;
use crate::args::SettingArgs;
use crate::client::{Client, Patience, request_id};
use crate::exit;
use crate::failure::Failure;
use crate::render::escape::line;
use crate::say::{note, print};
use proto::v1::{SetSettingRequest, Setting, SettingsRequest};
use std::collections::BTreeMap;

/// Shows all values, or one; with a value it sets that one.
pub async fn cluster_set(context: &Context, args: &SettingArgs) -> Result<u8, Failure> {
    let mut client = context.client().await?;
    let (Some(key), Some(value)) = (&args.key, &args.value) else {
        let ask = async |client: &Client| client.cluster().settings(SettingsRequest {}).await;
        let all = client.ask(Patience::READ, note, ask).await?.settings;
        let wanted =
            all.iter().filter(|setting| args.key.as_ref().is_none_or(|key| *key == setting.key));
        let wanted: Vec<&Setting> = wanted.collect();
        if let (Some(key), true) = (&args.key, wanted.is_empty()) {
            let key = line(key);
            return Err(Failure::Usage(format!("no setting {key}: docket cluster set lists all")));
        }
        print(&text(&wanted, args.json)?)?;
        return Ok(exit::DONE);
    };
    let request =
        SetSettingRequest { request_id: request_id(), key: key.clone(), value: value.clone() };
    let ask = async |client: &Client| client.cluster().set(request.clone()).await;
    let changed = client.ask(Patience::CHANGE, note, ask).await?.settings;
    let changed: Vec<&Setting> = changed.iter().collect();
    match changed.is_empty() && !args.json {
        true => print(&format!("{} is so already\n", line(key)))?,
        false => print(&text(&changed, args.json)?)?,
    }
    Ok(exit::DONE)
}

fn text(settings: &[&Setting], json: bool) -> Result<String, Failure> {
    if json {
        let map: BTreeMap<&str, &str> =
            settings.iter().map(|setting| (&*setting.key, &*setting.value)).collect();
        let text =
            serde_json::to_string(&map).map_err(|e| Failure::Input(std::io::Error::other(e)))?;
        return Ok(text + "\n");
    }
    let width = settings.iter().map(|setting| setting.key.len()).max().unwrap_or(0);
    let rows = settings.iter().map(|s| format!("{:<width$}  {}\n", s.key, line(&s.value)));
    Ok(rows.collect())
}
