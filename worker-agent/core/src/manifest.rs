//! Manifests: whom each answer of the keeper is for, and its pages.

use crate::agent::AgentCore;
use crate::event::{Action, SessionNo};
use crate::join::Link;
use proto::AttemptId;
use proto::mutants::Mutant;
use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_request::Kind as ToKeeper;
use std::collections::BTreeMap;

/// Attempts in one page: one log entry of the controller each (design 3).
pub const PAGE_ITEMS: usize = 1_000;

/// Questions open at a time; a peer that asks faster than the keeper answers asks in vain.
const ASKS_MAX: usize = 16;

/// Old run files are looked at this long after the start, then at this distance: a scan of a
/// million files is not for every minute.
const FIRST_SWEEP_MS: u64 = 60_000;
const SWEEP_EVERY_MS: u64 = 600_000;

/// Who wants a manifest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    /// The controller: 0 after a join, else its nonce.
    Leader { session: SessionNo, asked: u64 },
    /// The removal of old run files.
    Sweep,
}

/// Manifests asked of the keeper and not answered.
#[derive(Debug, Default)]
pub struct Asks {
    open: BTreeMap<u64, Ask>,
    nonces: u64,
}

impl Asks {
    pub(crate) fn fresh_nonce(&mut self) -> u64 {
        self.nonces += 1;
        self.nonces
    }

    pub(crate) fn forget_session(&mut self) {
        self.open.retain(|_, ask| matches!(ask, Ask::Sweep));
    }

    pub(crate) fn forget_all(&mut self) {
        self.open.clear();
    }

    fn add(&mut self, ask: Ask) -> Option<u64> {
        if self.open.len() >= ASKS_MAX {
            return None;
        }
        let nonce = self.fresh_nonce();
        self.open.insert(nonce, ask);
        Some(nonce)
    }
}

impl AgentCore {
    pub(crate) fn ask_manifest_of_join(&mut self) {
        self.ask_manifest_for(0);
    }

    pub(crate) fn ask_manifest_for(&mut self, asked: u64) {
        if Mutant::ManifestOnlyFirst.active() && self.dials > 1 {
            return;
        }
        if let Link::Joined(session) = &self.link {
            let session = session.no;
            self.ask_manifest(Ask::Leader { session, asked });
        }
    }

    pub(crate) fn plan_first_sweep(&mut self, now_ms: u64) {
        self.sweep_at_ms.get_or_insert(now_ms + FIRST_SWEEP_MS);
    }

    pub(crate) fn sweep_if_due(&mut self, now_ms: u64) {
        if self.sweep_at_ms.is_some_and(|at_ms| now_ms >= at_ms) {
            self.sweep_at_ms = Some(now_ms + SWEEP_EVERY_MS);
            self.ask_manifest(Ask::Sweep);
        }
    }

    fn ask_manifest(&mut self, ask: Ask) {
        if self.keeper.is_none() {
            return;
        }
        if let Some(nonce) = self.asks.add(ask) {
            self.tell_keeper(ToKeeper::Manifest(v1::KeeperManifestAsk { nonce }));
        }
    }

    pub(crate) fn manifest_arrived(&mut self, manifest: v1::KeeperManifest) {
        match self.asks.open.remove(&manifest.nonce) {
            Some(Ask::Leader { session, asked }) => self.send_pages(session, asked, manifest),
            Some(Ask::Sweep) => {
                let attempts = manifest.items.iter();
                let live =
                    attempts.filter_map(|item| AttemptId::from_wire(item.attempt.as_ref()).ok());
                self.out.push(Action::Sweep(live.collect()));
            }
            None => {}
        }
    }

    /// All pages carry the same F and O: they describe the one point at which the keeper spoke.
    fn send_pages(&mut self, session: SessionNo, asked: u64, manifest: v1::KeeperManifest) {
        if !matches!(&self.link, Link::Joined(current) if current.no == session) {
            return;
        }
        let v1::KeeperManifest { mut items, last_seq, last_order, .. } = manifest;
        loop {
            let rest = items.split_off(items.len().min(PAGE_ITEMS));
            let last = rest.is_empty();
            let page = v1::ManifestPage { items, last, last_seq, last_order, asked };
            self.tell_leader(session, Up::Manifest(page));
            if last {
                return;
            }
            items = rest;
        }
    }
}
