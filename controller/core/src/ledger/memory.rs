//! Requests of edits that were carried out, so that the same one again changes nothing (P8): a
//! repeated suspend that comes after a resume must not stop the job again.

use super::cancel::Asker;
use super::outcome::Rejection;
use super::request::RequestId;
use super::users::User;
use std::collections::VecDeque;
use std::sync::Arc;

/// Requests that one job or agent remembers. Beyond them the oldest go, and what was generated
/// before those is refused as expired.
const EDITS_MAX: usize = 64;

/// A request that was carried out.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Edit {
    pub by: Arc<User>,
    pub request: RequestId,
    pub verb: Verb,
    /// What it was set to, the signal, or how many attempts were vouched for; else 0.
    pub value: i64,
    pub led_ms: u64,
}

/// What was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verb {
    Hold,
    Release,
    Suspend,
    Resume,
    Priority,
    Signal,
    ConfirmDead,
    /// Of several tasks at once.
    Cancel,
    ArrayLimit,
    Drain,
    Undrain,
    Name,
    Time,
    Cpus,
    Mem,
    Configure,
}

/// The newest requests, oldest first.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Edits {
    pub list: VecDeque<Edit>,
    /// Ids that were generated before this wall time may have been forgotten, ms.
    pub floor_wall_ms: u64,
}

impl Verb {
    /// Every verb, in order of its code in images, from 1.
    pub const ALL: [Verb; 16] = [
        Verb::Hold,
        Verb::Release,
        Verb::Suspend,
        Verb::Resume,
        Verb::Priority,
        Verb::Signal,
        Verb::ConfirmDead,
        Verb::Cancel,
        Verb::ArrayLimit,
        Verb::Drain,
        Verb::Undrain,
        Verb::Name,
        Verb::Time,
        Verb::Cpus,
        Verb::Mem,
        Verb::Configure,
    ];
}

impl Edit {
    pub fn new(asker: &Asker<'_>, verb: Verb, value: i64, led_ms: u64) -> Edit {
        let (by, request) = (Arc::clone(&asker.user), asker.request.clone());
        Edit { by, request, verb, value, led_ms }
    }
}

impl Edits {
    /// What the asker's request did the first time.
    pub fn recall(&self, asker: &Asker<'_>) -> Option<&Edit> {
        self.list.iter().find(|edit| edit.by == asker.user && edit.request == asker.request)
    }

    /// Refuses an id that may have been forgotten.
    pub fn judge_age(&self, request: &RequestId, wall_ms: u64) -> Result<(), Rejection> {
        match request.expired(wall_ms, self.floor_wall_ms) {
            true => Err(Rejection::RequestExpired),
            false => Ok(()),
        }
    }

    /// Remembers a request; beyond [`EDITS_MAX`] the oldest is forgotten.
    pub fn remember(&mut self, edit: Edit) {
        self.list.push_back(edit);
        if self.list.len() > EDITS_MAX
            && let Some(oldest) = self.list.pop_front()
        {
            let made = oldest.request.made_at_wall_ms().unwrap_or(0);
            self.floor_wall_ms = self.floor_wall_ms.max(made.saturating_add(1));
        }
    }

    /// Whether nothing is forgotten and no more is remembered than there is room for.
    pub fn bounded(&self) -> bool {
        self.list.len() <= EDITS_MAX && self.list.iter().is_sorted_by_key(|edit| edit.led_ms)
    }
}
