//! The job table: a vector in pages of 64 behind `Arc`. Ids are dense, so a page is found by
//! arithmetic; a reader or a snapshot holds pages, and only what it holds is copied on write.

use super::array::Array;
use super::blobs::Hash;
use super::job::Job;
use super::request::RequestId;
use super::users::User;
use proto::{JobId, TaskId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Slots of a page.
pub(super) const PAGE: usize = 64;

/// What stands under an id.
#[derive(Clone, PartialEq, Debug, Default)]
pub(super) enum Slot {
    /// Evicted, and forgotten.
    #[default]
    Empty,
    /// A job.
    Job(Arc<Job>),
    /// An array of tasks.
    Array(Arc<Array>),
    /// Evicted; its request id is still remembered.
    Request(Arc<Remembered>),
}

/// A job that the ledger has.
#[derive(Clone, Copy, Debug)]
pub enum Entry<'a> {
    /// A plain one.
    Job(&'a Job),
    /// An array of tasks.
    Array(&'a Array),
}

impl<'a> Entry<'a> {
    /// Its id.
    pub fn id(self) -> JobId {
        self.head().id()
    }

    /// Everything but the states: who submitted what, when.
    pub fn head(self) -> &'a Job {
        match self {
            Entry::Job(job) => job,
            Entry::Array(array) => array.head(),
        }
    }

    /// Whether it, or all of it, has ended.
    pub fn terminal(self) -> bool {
        match self {
            Entry::Job(job) => job.terminal(),
            Entry::Array(array) => array.terminal(),
        }
    }

    /// The job, unless it is an array.
    pub fn plain(self) -> Option<&'a Job> {
        match self {
            Entry::Job(job) => Some(job),
            Entry::Array(_) => None,
        }
    }
}

impl Slot {
    fn entry(&self) -> Option<Entry<'_>> {
        match self {
            Slot::Job(job) => Some(Entry::Job(job)),
            Slot::Array(array) => Some(Entry::Array(array)),
            Slot::Request(_) | Slot::Empty => None,
        }
    }
}

/// A request id whose job was evicted within the window.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Remembered {
    pub by: Arc<User>,
    pub request: RequestId,
    pub user_key: bool,
    pub submit_wall_ms: u64,
    pub submit_led_ms: u64,
    pub spec: Hash,
    pub env: Hash,
    pub stdin: Option<Hash>,
}

type Page = [Slot; PAGE];

/// Slots by id. Leading pages without content are dropped.
#[derive(Clone, Default, Debug)]
pub(super) struct Table {
    first_page: u64,
    pages: VecDeque<Arc<Page>>,
}

impl Table {
    fn place(&self, id: JobId) -> Option<(usize, usize)> {
        let page = (id.0 / PAGE as u64).checked_sub(self.first_page)?;
        Some((usize::try_from(page).ok()?, (id.0 % PAGE as u64) as usize))
    }

    fn slot(&self, id: JobId) -> Option<&Slot> {
        let (page, slot) = self.place(id)?;
        self.pages.get(page)?.get(slot)
    }

    /// What stands under that id, if it has not left.
    pub fn entry(&self, id: JobId) -> Option<Entry<'_>> {
        self.slot(id).and_then(Slot::entry)
    }

    /// The array of that id.
    pub fn array(&self, id: JobId) -> Option<&Array> {
        match self.slot(id)? {
            Slot::Array(array) => Some(array),
            _ => None,
        }
    }

    /// A task: a plain job, or one of an array, which may share its record with others.
    pub fn task(&self, id: TaskId) -> Option<&Job> {
        match (self.slot(id.job)?, id.index) {
            (Slot::Job(job), None) => Some(job),
            (Slot::Array(array), Some(number)) => array.task(number),
            _ => None,
        }
    }

    fn slot_mut(&mut self, id: JobId) -> Option<&mut Slot> {
        let (page, slot) = self.place(id)?;
        Arc::make_mut(self.pages.get_mut(page)?).get_mut(slot)
    }

    /// The job of that id, to be changed: copied first if anybody else holds it.
    pub fn job_mut(&mut self, id: JobId) -> Option<&mut Job> {
        match self.slot_mut(id)? {
            Slot::Job(job) => Some(Arc::make_mut(job)),
            _ => None,
        }
    }

    /// The array of that id, to be changed: copied first if anybody else holds it.
    pub fn array_mut(&mut self, id: JobId) -> Option<&mut Array> {
        match self.slot_mut(id)? {
            Slot::Array(array) => Some(Arc::make_mut(array)),
            _ => None,
        }
    }

    /// A job, or what was asked of an array as a whole, to be changed.
    pub fn head_mut(&mut self, id: JobId) -> Option<&mut Job> {
        match self.slot_mut(id)? {
            Slot::Job(job) => Some(Arc::make_mut(job)),
            Slot::Array(array) => Some(&mut Arc::make_mut(array).head),
            Slot::Request(_) | Slot::Empty => None,
        }
    }

    /// The remembered request of an evicted job.
    pub fn remembered(&self, id: JobId) -> Option<&Remembered> {
        match self.slot(id)? {
            Slot::Request(request) => Some(request),
            _ => None,
        }
    }

    /// Puts something under an id; ids are used in growing order, apart from replacements.
    pub fn put(&mut self, id: JobId, content: Slot) {
        let page_number = id.0 / PAGE as u64;
        if self.pages.is_empty() {
            self.first_page = page_number;
        }
        // Ids that are left out share one page; whoever writes to it copies it.
        let empty = Arc::new(std::array::from_fn(|_| Slot::Empty));
        while self.first_page + self.pages.len() as u64 <= page_number {
            self.pages.push_back(Arc::clone(&empty));
        }
        if let Some((page, slot)) = self.place(id)
            && let Some(page) = self.pages.get_mut(page)
            && let Some(slot) = Arc::make_mut(page).get_mut(slot)
        {
            *slot = content;
        }
        self.trim();
    }

    fn trim(&mut self) {
        while self.pages.len() > 1
            && let Some(page) = self.pages.front()
            && page.iter().all(|slot| *slot == Slot::Empty)
        {
            self.pages.pop_front();
            self.first_page += 1;
        }
    }

    /// The highest id under which something stands.
    pub fn newest(&self) -> Option<JobId> {
        let number = self.first_page + self.pages.len().checked_sub(1)? as u64;
        let slot = self.pages.back()?.iter().rposition(|slot| *slot != Slot::Empty)?;
        Some(JobId(number * PAGE as u64 + slot as u64))
    }

    /// All slots that hold something, in id order.
    pub fn slots(&self) -> impl Iterator<Item = (JobId, &Slot)> {
        let first = self.first_page;
        self.pages.iter().zip(first..).flat_map(|(page, number)| {
            page.iter()
                .zip(number * PAGE as u64..)
                .filter(|(slot, _)| **slot != Slot::Empty)
                .map(|(slot, id)| (JobId(id), slot))
        })
    }

    /// Jobs and arrays with an id below the given one, newest first.
    pub fn entries_below(&self, below: JobId) -> impl Iterator<Item = Entry<'_>> {
        let count = match below.0.checked_sub(self.first_page * PAGE as u64) {
            None => 0,
            Some(ids) => usize::try_from(ids.div_ceil(PAGE as u64)).unwrap_or(usize::MAX),
        };
        self.pages
            .iter()
            .take(count)
            .rev()
            .flat_map(|page| page.iter().rev())
            .filter_map(Slot::entry)
            .filter(move |entry| entry.id() < below)
    }

    /// Whether the two share every page: nothing was copied.
    #[cfg(test)]
    pub fn shared_pages(&self, other: &Table) -> usize {
        self.pages.iter().zip(&other.pages).filter(|(a, b)| Arc::ptr_eq(a, b)).count()
    }
}
