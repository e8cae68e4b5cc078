//! The ledger's image: what a snapshot holds, written from a copy-on-write view.
//! Freezing copies the list of pages, the agents and the users; the jobs are shared.

use super::book::{Counters, Ledger};
use super::deferred::Deferred;
use super::ids::Opening;
use super::image_parts::{
    ImageWriter, agent_image, deferred_image, grant_image, settings_image, user_image,
};
use super::job::Job;
use super::news::News;
use super::table::{Slot, Table};
use prost::Message as _;
use proto::v1::{self, image_record::Kind};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Size at which a chunk is closed, in bytes: as large as the pieces that followers are sent.
pub const IMAGE_CHUNK_BYTES: usize = 256 * 1024;

/// Pages of outcomes in one record: 32 KiB.
const PAGES_PER_RECORD: usize = 64;

/// Version of the image's meaning; a newer one is refused by name.
pub(super) const IMAGE_FORMAT: u32 = 1;

/// A ledger at one position, to be written while the ledger itself goes on.
#[derive(Debug)]
pub struct Frozen {
    applied: u64,
    head: v1::ImageHead,
    users: Vec<v1::ImageUser>,
    agents: Vec<v1::ImageAgent>,
    settings: Option<v1::ImageSettings>,
    leftovers: Vec<v1::ImageLeftover>,
    deferred: Vec<Arc<Deferred>>,
    failed: Vec<v1::ImageFailed>,
    news: Vec<v1::ImageNews>,
    jobs: Table,
}

impl Ledger {
    /// A view of the whole ledger that does not change any more.
    pub fn freeze(&self) -> Frozen {
        Frozen {
            applied: self.applied,
            head: self.head(),
            users: self.users.all().iter().map(|user| user_image(user)).collect(),
            agents: self.agents.values().map(agent_image).collect(),
            settings: settings_image(&self.settings),
            leftovers: self
                .leftovers()
                .map(|(attempt, left)| left.freeze(attempt, grant_image(&left.grant)))
                .collect(),
            deferred: self.deferred.iter().cloned().collect(),
            failed: self.gone.freeze().collect(),
            news: self.news.iter().map(News::freeze).collect(),
            jobs: self.jobs.clone(),
        }
    }

    fn head(&self) -> v1::ImageHead {
        v1::ImageHead {
            format: IMAGE_FORMAT,
            applied: self.applied,
            wall_ms: self.wall_ms,
            led_ms: self.led_ms,
            term: self.term,
            leader: self.leader,
            term_led_ms: self.term_led_ms,
            cluster_id: self.cluster_id.clone(),
            generation: self.generation,
            raised: self.raised,
            openings: self.openings.iter().map(Opening::freeze).collect(),
            next_job_id: self.next_job_id.0,
            skipped: self
                .skipped
                .iter()
                .map(|(from, to)| v1::ImageIds { from: from.0, to: to.0 })
                .collect(),
            policy: Some(self.policy.clone()),
            request_floor_wall_ms: self.request_floor_wall_ms,
            counters: self.counters.to_map(),
        }
    }
}

impl Frozen {
    /// Log index of the newest entry in it.
    pub fn applied(&self) -> u64 {
        self.applied
    }

    /// The image in chunks of about [`IMAGE_CHUNK_BYTES`]; equal ledgers give equal bytes.
    pub fn chunks(&self) -> impl Iterator<Item = Vec<u8>> + '_ {
        Chunks { records: Records::of(self), done: false }
    }
}

/// Cuts records into chunks.
struct Chunks<'a> {
    records: Records<'a>,
    done: bool,
}

impl Iterator for Chunks<'_> {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let mut chunk = v1::ImageChunk::default();
        let mut bytes = 0;
        while !self.done && bytes < IMAGE_CHUNK_BYTES {
            let Some(record) = self.records.next() else {
                self.done = true;
                break;
            };
            bytes += record.encoded_len();
            chunk.records.push(record);
        }
        (!chunk.records.is_empty()).then(|| chunk.encode_to_vec())
    }
}

/// The records of an image, one after the other.
struct Records<'a> {
    ready: VecDeque<v1::ImageRecord>,
    deferred: std::slice::Iter<'a, Arc<Deferred>>,
    slots: Box<dyn Iterator<Item = (proto::JobId, &'a Slot)> + 'a>,
    /// Tasks of the array that was written last.
    own: Option<Box<dyn Iterator<Item = &'a Job> + 'a>>,
    writer: ImageWriter,
    count: u64,
    ended: bool,
}

impl<'a> Records<'a> {
    fn of(frozen: &'a Frozen) -> Records<'a> {
        let head = Kind::Head(frozen.head.clone());
        let users = frozen.users.iter().cloned().map(Kind::User);
        let agents = frozen.agents.iter().cloned().map(Kind::Agent);
        let pages = frozen.failed.chunks(PAGES_PER_RECORD).map(|failed| {
            let failed = failed.to_vec();
            Kind::Dependencies(v1::ImageDependencies { failed, news: Vec::new() })
        });
        let news = frozen.news.iter().map(|news| {
            let news = vec![news.clone()];
            Kind::Dependencies(v1::ImageDependencies { failed: Vec::new(), news })
        });
        let settings = frozen.settings.iter().cloned().map(Kind::Settings);
        let waits = pages.chain(news);
        let users = users.chain(settings);
        let leftovers = frozen.leftovers.iter().cloned().map(Kind::Leftover);
        let agents = agents.chain(leftovers);
        let kinds = std::iter::once(head).chain(waits).chain(users).chain(agents);
        let ready = kinds.map(record).collect();
        Records {
            ready,
            deferred: frozen.deferred.iter(),
            slots: Box::new(frozen.jobs.slots()),
            own: None,
            writer: ImageWriter::default(),
            count: 0,
            ended: false,
        }
    }

    fn next(&mut self) -> Option<v1::ImageRecord> {
        while self.ready.is_empty() && !self.ended {
            if let Some(deferred) = self.deferred.next() {
                self.ready.push_back(record(Kind::Deferred(deferred_image(deferred))));
                continue;
            }
            if let Some(own) = &mut self.own {
                match own.next() {
                    Some(job) => {
                        let kinds = self.writer.job(job);
                        self.ready.extend(kinds.into_iter().map(record));
                    }
                    None => self.own = None,
                }
                continue;
            }
            match self.slots.next() {
                Some((_, Slot::Job(job))) => {
                    let kinds = self.writer.job(job);
                    self.ready.extend(kinds.into_iter().map(record));
                }
                Some((_, Slot::Array(array))) => {
                    let kinds = self.writer.array(array);
                    self.ready.extend(kinds.into_iter().map(record));
                    self.own = Some(Box::new(array.own_tasks()));
                }
                Some((id, Slot::Request(old))) => {
                    self.ready
                        .push_back(record(Kind::Request(super::image_parts::request(id, old))));
                }
                Some((_, Slot::Empty)) => {}
                None => {
                    self.ended = true;
                    self.ready.push_back(record(Kind::End(v1::ImageEnd { records: self.count })));
                }
            }
        }
        let next = self.ready.pop_front()?;
        self.count += 1;
        Some(next)
    }
}

fn record(kind: Kind) -> v1::ImageRecord {
    v1::ImageRecord { kind: Some(kind) }
}

/// One name per counter: a macro keeps reading and writing from drifting apart.
macro_rules! counters {
    ($($name:ident),* $(,)?) => {
        impl Counters {
            /// By name, for images and metrics.
            pub fn to_map(&self) -> BTreeMap<String, u64> {
                BTreeMap::from([$((stringify!($name).to_owned(), self.$name)),*])
            }

            pub(super) fn from_map(map: &BTreeMap<String, u64>) -> Counters {
                Counters { $($name: map.get(stringify!($name)).copied().unwrap_or(0)),* }
            }
        }
    };
}

counters!(
    after_end,
    repeated,
    other_attempt,
    wrong_agent,
    evicted,
    malformed,
    unknown_attempt,
    deferred,
    drained,
    expired,
    refused,
    orphans_drained,
    late_outcomes,
    node_faults,
    evictions,
);
