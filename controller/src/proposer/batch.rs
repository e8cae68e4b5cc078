//! One proposal in the making: commands in the order they came, each distinct blob once.

use super::{Item, Replies};
use prost::Message as _;
use proto::v1;
use std::collections::BTreeSet;

/// Commands of one entry: their ordinal must fit into the 12 low bits of an order id.
pub const BATCH_MAX_COMMANDS: usize = 1024;

/// Bytes at which an entry is closed. A single larger command goes alone, or ends a batch.
pub const BATCH_MAX_BYTES: usize = 256 * 1024;

/// Commands with their replies, ready to be stamped.
pub struct Gathered {
    pub commands: Vec<v1::Command>,
    pub blobs: Vec<v1::Blob>,
    pub replies: Replies,
}

/// Collects items up to the limits.
pub struct Gathering {
    gathered: Gathered,
    seen: BTreeSet<Vec<u8>>,
    bytes: usize,
}

impl Gathering {
    /// A batch that begins with `first`.
    pub fn new(first: Item) -> Self {
        let gathered = Gathered { commands: Vec::new(), blobs: Vec::new(), replies: Vec::new() };
        let mut gathering = Gathering { gathered, seen: BTreeSet::new(), bytes: 0 };
        gathering.push(first);
        gathering
    }

    /// Whether one more command may be added.
    pub fn has_room(&self) -> bool {
        self.gathered.commands.len() < BATCH_MAX_COMMANDS && self.bytes < BATCH_MAX_BYTES
    }

    /// Adds a command, its reply, and those of its blobs that are not here yet.
    pub fn push(&mut self, item: Item) {
        self.bytes += item.command.encoded_len();
        for blob in item.blobs {
            if self.seen.insert(blob.hash.clone()) {
                self.bytes += blob.encoded_len();
                self.gathered.blobs.push(blob);
            }
        }
        self.gathered.commands.push(item.command);
        self.gathered.replies.push(item.reply);
    }

    /// The batch.
    pub fn finish(self) -> Gathered {
        self.gathered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(hash: u8, bytes: usize) -> Item {
        let mut item = Item::own(v1::Command { kind: None });
        item.blobs = vec![v1::Blob { hash: vec![hash; 32], data: vec![0; bytes] }];
        item
    }

    #[test]
    fn each_distinct_blob_is_carried_once() {
        let mut gathering = Gathering::new(item(1, 100));
        (0..9).for_each(|_| gathering.push(item(1, 100)));
        gathering.push(item(2, 100));
        let gathered = gathering.finish();
        assert_eq!((gathered.commands.len(), gathered.replies.len()), (11, 11));
        let hashes: Vec<u8> = gathered.blobs.iter().map(|blob| blob.hash[0]).collect();
        assert_eq!(hashes, [1, 2]);
    }

    #[test]
    fn a_batch_ends_at_its_commands_or_bytes() {
        let mut gathering = Gathering::new(item(1, 10));
        while gathering.has_room() {
            gathering.push(item(1, 10));
        }
        assert_eq!(gathering.finish().commands.len(), BATCH_MAX_COMMANDS);
        let large = Gathering::new(item(1, BATCH_MAX_BYTES));
        assert!(!large.has_room(), "a larger command goes alone");
    }
}
