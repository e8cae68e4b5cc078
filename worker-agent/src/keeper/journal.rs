//! The keeper's journal over `wal::Log`: the spool of facts. A batch a turn, one fdatasync for it;
//! an image of what lives from time to time, so that acknowledged segments can go.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use prost::Message;
use proto::v1::journal_record::Kind;
use proto::v1::{Fact, Facts, JournalRecord};
use wal::{
    Disk, Identity, Log, OpenError, Options, ReadError, Record, Storage, WriteError, inspect,
};

use super::book::{Book, fact_of};

/// Records between two images, in bytes: half of the largest segment, so that each segment that can
/// be purged has an image soon behind it.
const IMAGE_EVERY_BYTES: u64 = 2 << 20;

/// The image is never more than a third of what is written, however many attempts live.
const IMAGE_SHARE: u64 = 3;

/// Facts kept in memory for the client that follows live; an older one is read from the log.
const RECENT_MAX: usize = 1024;

/// Records read at once when older facts are sent again, and facts in one message at most.
const FACTS_MAX: u64 = 256;

/// Entries have no terms here; the log stores this one.
const TERM: u64 = 1;

/// An open journal.
pub(crate) struct Journal<S: Storage = Disk> {
    log: Log<S>,
    id: [u8; 16],
    book: Book,
    recent: VecDeque<Fact>,
    image_seq: u64,
    since_image: u64,
    image_bytes: u64,
    /// Up to where segments were last asked to go.
    purged_to: u64,
    unsealed: bool,
    new: bool,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The log refused or failed to open.
    #[error("the journal cannot be opened: {0}")]
    Open(#[from] OpenError),
    /// A record could not be read back.
    #[error("the journal cannot be read: {0}")]
    Read(#[from] ReadError),
    /// A record of another release.
    #[error(
        "record {seq} of the journal is not understood ({reason}): written by another release?"
    )]
    Record {
        /// Its position.
        seq: u64,
        /// What the decoder says.
        reason: String,
    },
    /// The file with the journal's id.
    #[error("the journal's id ({path}): {source}")]
    Id {
        /// That file.
        path: String,
        /// Why it could not be read or made.
        source: io::Error,
    },
}

impl Journal<Disk> {
    /// Opens DIR's journal or makes it; notes are for the log.
    pub(crate) fn open(dir: &Path) -> Result<(Journal, Vec<String>), JournalError> {
        let new = !has_segments(&dir.join("journal"));
        let (id, note) = journal_id(dir, new)?;
        let disk = Disk::open(&dir.join("journal"))?;
        let (journal, mut notes) = Journal::over(disk, id)?;
        notes.extend(note);
        Ok((Journal { new, ..journal }, notes))
    }
}

/// Reads every record of DIR's journal beside the keeper that has it open: whether this program
/// understands it. Gives how many there are.
pub(crate) fn check(dir: &Path) -> Result<u64, JournalError> {
    let journal = dir.join("journal");
    let (mut records, mut bad) = (0, None);
    inspect::verify(&journal)?.verdict?;
    inspect::dump(&journal, |dumped| {
        if let Some(Record::Entry { index, payload, .. }) = dumped.record {
            records += 1;
            bad = bad.take().or(decode(index, &payload).err());
        }
    })?;
    bad.map_or(Ok(records), Err)
}

impl<S: Storage> Journal<S> {
    /// Opens a journal on any storage and reads it back.
    pub(crate) fn over(
        storage: S,
        id: [u8; 16],
    ) -> Result<(Journal<S>, Vec<String>), JournalError> {
        let identity = Identity { cluster_id: id, owner_id: 0 };
        let (log, recovered) = Log::open(storage, identity, Options::keeper())?;
        let mut journal = Journal {
            book: Book::new(recovered.first),
            id,
            recent: VecDeque::new(),
            image_seq: 0,
            since_image: 0,
            image_bytes: 0,
            purged_to: recovered.first.saturating_sub(1),
            unsealed: false,
            new: false,
            log,
        };
        journal.replay(recovered.first, recovered.last)?;
        Ok((journal, recovered.notes))
    }

    fn replay(&mut self, first: u64, last: u64) -> Result<(), JournalError> {
        let mut from = first.max(1);
        while from <= last {
            let to = last.min(from + FACTS_MAX - 1);
            for entry in self.log.read(from, to)? {
                let record = decode(entry.index, &entry.payload)?;
                self.took(entry.index, &record, entry.payload.len() as u64);
            }
            from = to + 1;
        }
        Ok(())
    }

    /// It was made just now: nothing is known of what an older one knew.
    pub(crate) fn is_new(&self) -> bool {
        self.new
    }

    /// Random, made with the journal.
    pub(crate) fn id(&self) -> [u8; 16] {
        self.id
    }

    pub(crate) fn book(&self) -> &Book {
        &self.book
    }

    /// The position that the next record gets.
    pub(crate) fn next_seq(&self) -> u64 {
        self.log.last_index() + 1
    }

    /// The lowest position that it still holds; the next one if it holds none.
    pub(crate) fn first_seq(&self) -> u64 {
        self.log.first_index()
    }

    /// Appends these records and makes all that was appended durable, with one fdatasync. On an
    /// error none of them is in the book; after `NoSpace` they may be given again.
    pub(crate) fn commit(&mut self, records: &[JournalRecord]) -> Result<(), WriteError> {
        let written = self.write(records)?;
        self.log.sync()?;
        self.take_all(records, &written);
        self.keep_short();
        Ok(())
    }

    /// Appends records of which nobody is told, such as acknowledgements: durable with the next
    /// commit or seal; lost, they are only told again.
    pub(crate) fn append(&mut self, records: &[JournalRecord]) -> Result<(), WriteError> {
        let written = self.write(records)?;
        self.take_all(records, &written);
        Ok(())
    }

    fn write(&mut self, records: &[JournalRecord]) -> Result<Vec<Record>, WriteError> {
        let first = self.next_seq();
        let entries: Vec<Record> = (first..)
            .zip(records)
            .map(|(index, r)| Record::Entry { index, term: TERM, payload: r.encode_to_vec() })
            .collect();
        self.log.append(&entries)?;
        self.unsealed |= !entries.is_empty();
        Ok(entries)
    }

    fn take_all(&mut self, records: &[JournalRecord], written: &[Record]) {
        for (record, entry) in records.iter().zip(written) {
            let Record::Entry { index, payload, .. } = entry else { continue };
            self.took(*index, record, payload.len() as u64);
        }
    }

    fn took(&mut self, seq: u64, record: &JournalRecord, bytes: u64) {
        self.book.apply(seq, record);
        if let Some(fact) = fact_of(seq, record) {
            self.recent.push_back(fact);
            if self.recent.len() > RECENT_MAX {
                self.recent.pop_front();
            }
        }
        if matches!(record.kind, Some(Kind::Image(_))) {
            (self.image_seq, self.since_image, self.image_bytes) = (seq, 0, bytes);
        } else {
            self.since_image += bytes;
        }
    }

    /// Writes an image when one is due and lets go of segments that nobody needs: all their records
    /// are acknowledged and an image stands behind them. Space is not worth an error: the next
    /// commit tries again.
    fn keep_short(&mut self) {
        if self.since_image > IMAGE_EVERY_BYTES.max(self.image_bytes * IMAGE_SHARE) {
            let image = [JournalRecord { kind: Some(Kind::Image(self.book.image())) }];
            let Ok(written) = self.write(&image) else { return };
            if self.log.sync().is_err() {
                return;
            }
            self.take_all(&image, &written);
        }
        let up_to = self.book.acked().min(self.image_seq.saturating_sub(1));
        if up_to > self.purged_to && self.log.purge(up_to, None).is_ok() {
            self.purged_to = up_to;
        }
    }

    /// For idle moments. `false` when there was nothing to do.
    pub(crate) fn seal(&mut self) -> Result<bool, WriteError> {
        if !self.unsealed {
            return Ok(false);
        }
        self.log.seal()?;
        self.unsealed = false;
        self.keep_short();
        Ok(true)
    }

    pub(crate) fn is_unsealed(&self) -> bool {
        self.unsealed
    }

    /// Whether new work may be taken, as far as the disk goes.
    pub(crate) fn has_room(&self) -> bool {
        // Unknown counts as room: the append itself will tell.
        self.log.free_space().map_or(true, |space| space.above_reserve)
    }

    /// The next message of facts from this position on; `None` if there is no newer fact. A range
    /// begins where it was asked to, or where the journal begins.
    pub(crate) fn facts_from(&self, from: u64) -> Result<Option<Facts>, JournalError> {
        let last = self.book.last_fact();
        let from = from.max(self.log.first_index());
        if from > last {
            return Ok(None);
        }
        let (facts, to) = match self.recent.front() {
            Some(oldest) if oldest.seq <= from => self.recent_from(from),
            _ => self.read_facts(from, last)?,
        };
        Ok(Some(Facts { journal_id: self.id.to_vec(), from, to, facts }))
    }

    fn recent_from(&self, from: u64) -> (Vec<Fact>, u64) {
        let start = self.recent.partition_point(|fact| fact.seq < from);
        let facts: Vec<Fact> =
            self.recent.iter().skip(start).take(FACTS_MAX as usize).cloned().collect();
        let to = facts.last().map_or(from, |fact| fact.seq);
        (facts, to)
    }

    fn read_facts(&self, from: u64, last: u64) -> Result<(Vec<Fact>, u64), JournalError> {
        let to = last.min(from + FACTS_MAX - 1);
        let mut facts = Vec::new();
        for entry in self.log.read(from, to)? {
            let record = decode(entry.index, &entry.payload)?;
            facts.extend(fact_of(entry.index, &record));
        }
        Ok((facts, to))
    }

    /// The fact at this position, if there is one.
    pub(crate) fn fact_at(&self, seq: u64) -> Option<Fact> {
        if seq < self.log.first_index() || seq > self.book.last_fact() {
            return None;
        }
        let entry = self.log.read(seq, seq).ok()?.into_iter().next()?;
        fact_of(seq, &decode(seq, &entry.payload).ok()?)
    }
}

fn decode(seq: u64, payload: &[u8]) -> Result<JournalRecord, JournalError> {
    let bad = |reason: String| JournalError::Record { seq, reason };
    let record = JournalRecord::decode(payload).map_err(|e| bad(e.to_string()))?;
    match record.kind {
        Some(_) => Ok(record),
        None => Err(bad("unknown kind".into())),
    }
}

fn has_segments(journal: &Path) -> bool {
    let Ok(entries) = fs::read_dir(journal) else { return false };
    entries.flatten().any(|entry| entry.path().extension().is_some_and(|ending| ending == "wal"))
}

/// Reads DIR/journal.id or makes it, durably, before the journal exists. An id whose journal is gone
/// is never used again: the controller may have facts of it that a journal begun anew would contradict
/// (design 3). Gives what is worth a line.
fn journal_id(dir: &Path, new: bool) -> Result<([u8; 16], Option<String>), JournalError> {
    let path = dir.join("journal.id");
    let failed = |source| JournalError::Id { path: path.display().to_string(), source };
    let old = match fs::read_to_string(&path) {
        Ok(text) => Some(parse_id(text.trim()).ok_or_else(|| {
            failed(io::Error::new(io::ErrorKind::InvalidData, "not 32 hexadecimal digits"))
        })?),
        Err(e) if e.kind() == io::ErrorKind::NotFound => None,
        Err(e) => return Err(failed(e)),
    };
    match old {
        Some(id) if !new => Ok((id, None)),
        Some(old) => {
            let id = make_id(dir, &path).map_err(failed)?;
            let note = format!("of {} nothing is left: begins a new one, {}", hex(&old), hex(&id));
            Ok((id, Some(note)))
        }
        None => Ok((make_id(dir, &path).map_err(failed)?, None)),
    }
}

/// What DIR/journal.id says; `None`: nothing that can be read.
pub(crate) fn stored_id(dir: &Path) -> Option<[u8; 16]> {
    parse_id(fs::read_to_string(dir.join("journal.id")).ok()?.trim())
}

fn make_id(dir: &Path, path: &Path) -> io::Result<[u8; 16]> {
    let mut id = [0; 16];
    getrandom::fill(&mut id).map_err(|e| io::Error::other(e.to_string()))?;
    let temporary = dir.join("journal.id.new");
    let mut file =
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    file.write_all(hex(&id).as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(dir)?.sync_all()?;
    Ok(id)
}

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn parse_id(text: &str) -> Option<[u8; 16]> {
    (text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()))
        .then(|| u128::from_str_radix(text, 16).ok())?
        .map(u128::to_be_bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::super::book::tests::{accepted, closed, key, record};
    use super::*;
    use proto::v1::Acked;
    use wal::{Fault, FaultyDisk};

    fn facts<S: Storage>(journal: &Journal<S>, from: u64) -> Option<(u64, u64, Vec<u64>)> {
        let facts = journal.facts_from(from).unwrap()?;
        Some((facts.from, facts.to, facts.facts.iter().map(|f| f.seq).collect()))
    }

    #[test]
    fn another_program_reads_the_journal_beside_its_keeper_and_names_what_it_does_not_know() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap();
        journal.commit(&[accepted(1, 5), closed(1)]).unwrap();
        assert_eq!(check(dir.path()).unwrap(), 2, "while the keeper has it open");
        let of_a_later_release = JournalRecord { kind: None };
        journal.log.append(&[Record::Entry { index: 3, term: TERM, payload: vec![] }]).unwrap();
        journal.log.sync().unwrap();
        assert!(of_a_later_release.encode_to_vec().is_empty());
        let refused = check(dir.path()).unwrap_err();
        assert!(matches!(refused, JournalError::Record { seq: 3, .. }), "{refused}");
    }

    #[test]
    fn facts_cover_the_records_between_them_and_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap();
        journal.commit(&[accepted(1, 5), closed(1), accepted(2, 6)]).unwrap();
        journal.commit(&[closed(2)]).unwrap();
        assert_eq!(facts(&journal, 1), Some((1, 4, vec![2, 4])));
        assert_eq!(facts(&journal, 3), Some((3, 4, vec![4])));
        assert_eq!(facts(&journal, 5), None);
        let id = journal.id();
        drop(journal);
        let (journal, _) = Journal::open(dir.path()).unwrap();
        assert_eq!((journal.id(), journal.next_seq()), (id, 5));
        assert_eq!(facts(&journal, 1), Some((1, 4, vec![2, 4])));
        assert_eq!(journal.fact_at(4).map(|f| f.seq), Some(4));
        assert_eq!(journal.fact_at(3), None);
        assert!(journal.book().knows(key(2)) && journal.book().live().is_empty());
    }

    #[test]
    fn acknowledged_segments_go_and_what_lives_or_is_owed_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap();
        journal.commit(&[accepted(1, 1)]).unwrap();
        let round = |journal: &mut Journal, jobs: std::ops::Range<u64>, acks: bool| {
            for job in jobs {
                let mut done = closed(job);
                if let Some(Kind::Closed(closed)) = &mut done.kind {
                    closed.finish.as_mut().unwrap().stderr_tail = vec![7; 4096];
                }
                let seq = journal.next_seq();
                journal.append(&[accepted(job, job), done]).unwrap();
                if acks {
                    journal.append(&[record(Kind::Acked(Acked { to: seq + 1 }))]).unwrap();
                }
            }
            journal.commit(&[]).unwrap();
        };
        for n in 0..30 {
            round(&mut journal, 100 + n * 100..200 + n * 100, true);
        }
        assert!(journal.log.first_index() > 1000, "purged to {}", journal.log.first_index());
        let owed_from = journal.book().last_fact() + 1;
        round(&mut journal, 9000..10_000, false);
        assert_eq!(journal.book().ended().count(), 1000);
        drop(journal);
        let (journal, _) = Journal::open(dir.path()).unwrap();
        assert!(journal.book().live().contains_key(&key(1)), "the image carries it");
        let mut owed = 0;
        let mut from = owed_from;
        while let Some(facts) = journal.facts_from(from).unwrap() {
            owed += facts.facts.len();
            assert_eq!(facts.from, from);
            from = facts.to + 1;
        }
        assert_eq!(owed, 1000);
        let size: u64 = fs::read_dir(dir.path().join("journal"))
            .unwrap()
            .map(|e| e.unwrap().metadata().unwrap().len())
            .sum();
        assert!(size < 24 << 20, "{size}");
    }

    #[test]
    fn a_record_of_another_release_is_refused_by_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, _) = Journal::open(dir.path()).unwrap();
        journal.commit(&[accepted(1, 5), JournalRecord { kind: None }]).unwrap();
        drop(journal);
        let error = Journal::open(dir.path()).err().unwrap();
        assert!(matches!(error, JournalError::Record { seq: 2, .. }), "{error}");
    }

    #[test]
    fn nothing_is_in_the_book_before_it_is_durable() {
        let disk = FaultyDisk::new(1);
        let (mut journal, _) = Journal::over(disk.clone(), [7; 16]).unwrap();
        journal.commit(&[accepted(1, 5)]).unwrap();
        disk.arm(Fault::FailSync(1));
        let error = journal.commit(&[closed(1)]).unwrap_err();
        assert!(matches!(error, WriteError::OutcomeUnknown { .. }), "{error}");
        assert!(journal.book().live().contains_key(&key(1)));
        assert_eq!(facts(&journal, 1), None, "and nothing is told of it");
        assert!(journal.commit(&[closed(1)]).is_err(), "never tried again on this log");
    }

    #[test]
    fn a_full_disk_refuses_a_batch_as_a_whole_and_takes_it_later() {
        let disk = FaultyDisk::new(1);
        let (mut journal, _) = Journal::over(disk.clone(), [7; 16]).unwrap();
        disk.set_capacity(Some(disk.used()));
        let mut job = 0;
        let error = loop {
            job += 1;
            let mut done = closed(job);
            if let Some(Kind::Closed(closed)) = &mut done.kind {
                closed.finish.as_mut().unwrap().stderr_tail = vec![7; 100_000];
            }
            if let Err(e) = journal.commit(&[accepted(job, job), done]) {
                break e;
            }
        };
        assert!(matches!(error, WriteError::NoSpace { .. }) && !journal.has_room());
        assert!(!journal.book().knows(key(job)));
        disk.set_capacity(None);
        journal.commit(&[accepted(job, job), closed(job)]).unwrap();
        assert!(journal.book().knows(key(job)) && journal.has_room());
    }
}
