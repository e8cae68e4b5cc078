//! Values of the cluster: read, and changed one at a time by admins.

use super::convert;
use super::identity::Caller;
use super::server::Shared;
use super::status::{busy, rejected, setting, unexpected};
use crate::settings;
use docket_core::ledger::Outcome;
use prost::Message as _;
use proto::v1::{self, Policy};
use tonic::Status;

/// Tries of a change that others overtake.
const TRIES: usize = 8;

/// Every setting.
pub fn wire(policy: &Policy) -> Vec<v1::Setting> {
    let setting = |(key, value): (&str, String)| v1::Setting { key: key.to_owned(), value };
    settings::all(policy).into_iter().map(setting).collect()
}

/// Changes one; the answer has those that are others now. A change that somebody else made between reading
/// and writing is not undone: it is read again.
pub async fn set(
    shared: &Shared,
    caller: &Caller,
    request: v1::SetSettingRequest,
) -> Result<v1::SettingsAnswer, Status> {
    let v1::SetSettingRequest { request_id, key, value } = request;
    let request_id = convert::request_key(request_id, false)?;
    for _ in 0..TRIES {
        let look = |view: crate::pump::View<'_>| view.ledger.policy().clone();
        let before = shared.read(look).await?;
        let mut policy = before.clone();
        settings::set(&mut policy, &key, &value).map_err(|why| setting(why.to_string()))?;
        let (old, new) = (wire(&before), wire(&policy));
        let command = v1::ConfigureCommand {
            by: Some(convert::requester(caller)),
            request_id: request_id.clone(),
            policy: Some(policy),
            before: Some(before.encode_to_vec()),
            ..v1::ConfigureCommand::default()
        };
        let kind = v1::command::Kind::Configure(command);
        match shared.propose(kind, Vec::new()).await?.outcome {
            Outcome::Configured => {
                let settings = new.into_iter().filter(|setting| !old.contains(setting)).collect();
                return Ok(v1::SettingsAnswer { settings });
            }
            Outcome::Stale { .. } => {}
            Outcome::Rejected(rejection) => return Err(rejected(&rejection)),
            other => return Err(unexpected(&other)),
        }
    }
    Err(busy("others change values of the cluster all the time; try again"))
}
