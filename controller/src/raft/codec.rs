//! Bytes of what raft writes to disk: entries, votes, the metadata of a snapshot. Hand-written, so
//! that a change of engine needs no migration (design 4); all integers are little-endian.
//!
//! Positions on disk count from 1 and raft's indexes from 0: position = index + 1.

use super::types::{Batch, Entry, LogId, Membership, SnapshotMeta, StoredMembership, Vote};
use openraft::impls::BasicNode;
use openraft::{EntryPayload, vote::RaftLeaderId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use thiserror::Error;

const BLANK: u8 = 0;
const NORMAL: u8 = 1;
const MEMBERSHIP: u8 = 2;
/// Format of the snapshot metadata; a newer one is refused by name.
const META_FORMAT: u8 = 1;

/// Bytes on our own disk that are not what this program writes.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CodecError {
    /// The record ends before its fields do.
    #[error("a raft record is shorter than its fields: {what}")]
    Short { what: &'static str },
    /// Bytes are left over behind the last field.
    #[error("a raft record has {left} bytes behind its last field")]
    Trailing { left: usize },
    /// A kind or format number of a newer program.
    #[error(
        "{what} {number} is not known to this version of docket; use the version that wrote it"
    )]
    Unknown { what: &'static str, number: u8 },
    /// Fields that contradict each other.
    #[error("a raft membership record makes no sense: {why}")]
    Membership { why: String },
}

/// Log position of a raft index.
pub fn position_of(index: u64) -> u64 {
    index + 1
}

/// Raft index of a log position, which is never 0.
pub fn index_of(position: u64) -> u64 {
    position.saturating_sub(1)
}

/// The bytes of an entry's payload; index and term travel in the frame.
pub fn encode_payload(entry: &Entry) -> Vec<u8> {
    match &entry.payload {
        EntryPayload::Blank => vec![BLANK],
        EntryPayload::Normal(batch) => {
            let mut out = Vec::with_capacity(1 + batch.0.len());
            out.push(NORMAL);
            out.extend_from_slice(&batch.0);
            out
        }
        EntryPayload::Membership(membership) => {
            let mut out = vec![MEMBERSHIP];
            put_membership(&mut out, membership);
            out
        }
    }
}

/// The entry that was written at `position` in `term`.
pub fn decode_entry(position: u64, term: u64, payload: &[u8]) -> Result<Entry, CodecError> {
    let (&kind, body) = payload.split_first().ok_or(CodecError::Short { what: "entry kind" })?;
    let payload = match kind {
        BLANK if body.is_empty() => EntryPayload::Blank,
        BLANK => return Err(CodecError::Trailing { left: body.len() }),
        NORMAL => EntryPayload::Normal(Batch(Arc::from(body))),
        MEMBERSHIP => EntryPayload::Membership(whole(body, membership)?),
        number => return Err(CodecError::Unknown { what: "entry kind", number }),
    };
    Ok(Entry { log_id: LogId::new_term_index(term, index_of(position)), payload })
}

/// The bytes of a vote.
pub fn encode_vote(vote: &Vote) -> Vec<u8> {
    let mut out = Vec::with_capacity(17);
    put_u64(&mut out, vote.leader_id.term());
    put_u64(&mut out, *vote.leader_id.node_id());
    out.push(u8::from(vote.committed));
    out
}

/// The vote of its bytes.
pub fn decode_vote(bytes: &[u8]) -> Result<Vote, CodecError> {
    whole(bytes, |r| {
        let (term, node) = (r.u64("vote term")?, r.u64("vote node")?);
        Ok(match r.u8("vote committed")? {
            0 => Vote::new(term, node),
            1 => Vote::new_committed(term, node),
            number => return Err(CodecError::Unknown { what: "vote kind", number }),
        })
    })
}

/// The bytes of a snapshot's metadata: its last entry and the membership in force there.
pub fn encode_meta(meta: &SnapshotMeta) -> Vec<u8> {
    let mut out = vec![META_FORMAT];
    put_log_id(&mut out, meta.last_log_id.as_ref());
    put_log_id(&mut out, meta.last_membership.log_id().as_ref());
    put_membership(&mut out, meta.last_membership.membership());
    out
}

/// The metadata of its bytes.
pub fn decode_meta(bytes: &[u8]) -> Result<SnapshotMeta, CodecError> {
    whole(bytes, |r| {
        match r.u8("snapshot format")? {
            META_FORMAT => {}
            number => return Err(CodecError::Unknown { what: "snapshot format", number }),
        }
        let last_log_id = log_id(r)?;
        let at = log_id(r)?;
        let last_membership = StoredMembership::new(at, membership(r)?);
        Ok(SnapshotMeta { last_log_id, last_membership })
    })
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Counts here are of voters and nodes: never near 2^32.
fn put_len(out: &mut Vec<u8>, len: usize) {
    out.extend_from_slice(&u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes());
}

fn put_log_id(out: &mut Vec<u8>, id: Option<&LogId>) {
    out.push(u8::from(id.is_some()));
    put_u64(out, id.map_or(0, |id| id.leader_id.term));
    put_u64(out, id.map_or(0, |id| id.index));
}

fn put_membership(out: &mut Vec<u8>, membership: &Membership) {
    put_len(out, membership.get_joint_config().len());
    for voters in membership.get_joint_config() {
        put_len(out, voters.len());
        voters.iter().for_each(|id| put_u64(out, *id));
    }
    put_len(out, membership.nodes().count());
    for (id, node) in membership.nodes() {
        put_u64(out, *id);
        put_len(out, node.addr.len());
        out.extend_from_slice(node.addr.as_bytes());
    }
}

/// A cursor that names the field it could not read.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize, what: &'static str) -> Result<&'a [u8], CodecError> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(CodecError::Short { what })?;
        self.0 = rest;
        Ok(head)
    }

    fn u8(&mut self, what: &'static str) -> Result<u8, CodecError> {
        Ok(self.take(1, what)?[0])
    }

    fn u64(&mut self, what: &'static str) -> Result<u64, CodecError> {
        let bytes = self.take(8, what)?.try_into().expect("take gives as many bytes as asked");
        Ok(u64::from_le_bytes(bytes))
    }

    fn len(&mut self, what: &'static str) -> Result<u32, CodecError> {
        let bytes = self.take(4, what)?.try_into().expect("take gives as many bytes as asked");
        Ok(u32::from_le_bytes(bytes))
    }
}

fn whole<T>(
    bytes: &[u8],
    read: impl FnOnce(&mut Cursor<'_>) -> Result<T, CodecError>,
) -> Result<T, CodecError> {
    let mut cursor = Cursor(bytes);
    let value = read(&mut cursor)?;
    match cursor.0.len() {
        0 => Ok(value),
        left => Err(CodecError::Trailing { left }),
    }
}

fn log_id(r: &mut Cursor<'_>) -> Result<Option<LogId>, CodecError> {
    let present = r.u8("position mark")? != 0;
    let (term, index) = (r.u64("position term")?, r.u64("position index")?);
    Ok(present.then(|| LogId::new_term_index(term, index)))
}

fn membership(r: &mut Cursor<'_>) -> Result<Membership, CodecError> {
    let mut configs = Vec::new();
    for _ in 0..r.len("voter sets")? {
        let mut voters = BTreeSet::new();
        for _ in 0..r.len("voters")? {
            voters.insert(r.u64("voter id")?);
        }
        configs.push(voters);
    }
    let mut nodes = BTreeMap::new();
    for _ in 0..r.len("nodes")? {
        let id = r.u64("node id")?;
        let len = r.len("address length")? as usize;
        let addr = String::from_utf8_lossy(r.take(len, "address")?).into_owned();
        nodes.insert(id, BasicNode { addr });
    }
    if configs.is_empty() {
        return Ok(Membership::default());
    }
    Membership::new(configs, nodes).map_err(|e| CodecError::Membership { why: e.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn three_voters() -> Membership {
        let node = |addr: &str| BasicNode { addr: addr.to_owned() };
        Membership::new(
            vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])],
            BTreeMap::from([(1, node("a:1")), (2, node("")), (3, node("c:3")), (9, node("d"))]),
        )
        .unwrap()
    }

    #[test]
    fn entries_read_back_as_written() {
        for payload in [
            EntryPayload::Blank,
            EntryPayload::Normal(Batch(Arc::from(&b"batch"[..]))),
            EntryPayload::Normal(Batch(Arc::from(&b""[..]))),
            EntryPayload::Membership(three_voters()),
        ] {
            let entry = Entry { log_id: LogId::new_term_index(7, 41), payload };
            let bytes = encode_payload(&entry);
            assert_eq!(decode_entry(42, 7, &bytes), Ok(entry));
        }
    }

    #[test]
    fn votes_and_metadata_read_back_as_written() {
        for vote in [Vote::new(3, 1), Vote::new_committed(u64::MAX, 5)] {
            assert_eq!(decode_vote(&encode_vote(&vote)), Ok(vote));
        }
        let stored = StoredMembership::new(Some(LogId::new_term_index(1, 0)), three_voters());
        for meta in [
            SnapshotMeta::default(),
            SnapshotMeta {
                last_log_id: Some(LogId::new_term_index(2, 9)),
                last_membership: stored,
            },
        ] {
            assert_eq!(decode_meta(&encode_meta(&meta)), Ok(meta));
        }
    }

    #[test]
    fn every_cut_of_a_record_is_refused() {
        let entry = Entry {
            log_id: LogId::new_term_index(1, 0),
            payload: EntryPayload::Membership(three_voters()),
        };
        let bytes = encode_payload(&entry);
        for cut in 0..bytes.len() {
            assert!(decode_entry(1, 1, &bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert_eq!(decode_entry(1, 1, &[BLANK, 0]), Err(CodecError::Trailing { left: 1 }));
        assert_eq!(
            decode_entry(1, 1, &[9]),
            Err(CodecError::Unknown { what: "entry kind", number: 9 })
        );
        assert!(decode_vote(&[0; 16]).is_err());
    }
}
