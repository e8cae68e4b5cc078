//! How evicted jobs ended: one bit each, kept for good, so that a dependency on one is decided rightly
//! however long ago it was. Pages of jobs that were all DONE take nothing.

use proto::JobId;
use proto::v1::ImageFailed;
use std::collections::BTreeMap;

/// Ids of a page.
const PAGE: u64 = 64 * 64;

/// Evicted jobs that were not DONE, by bit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Gone {
    pages: BTreeMap<u64, [u64; 64]>,
}

fn place(id: JobId) -> (u64, usize, u64) {
    (id.0 / PAGE, (id.0 % PAGE / 64) as usize, 1 << (id.0 % 64))
}

impl Gone {
    /// An evicted job was not DONE, or of an array not every task.
    pub fn note_failed(&mut self, id: JobId) {
        let (page, word, bit) = place(id);
        if let Some(word) = self.pages.entry(page).or_insert([0; 64]).get_mut(word) {
            *word |= bit;
        }
    }

    /// Whether that was noted.
    pub fn failed(&self, id: JobId) -> bool {
        let (page, word, bit) = place(id);
        self.pages.get(&page).and_then(|page| page.get(word)).is_some_and(|word| word & bit != 0)
    }

    /// As an image holds it.
    pub fn freeze(&self) -> impl Iterator<Item = ImageFailed> + '_ {
        self.pages.iter().map(|(page, words)| ImageFailed { page: *page, words: words.to_vec() })
    }

    /// One page, read back; false if it is none.
    pub fn thaw(&mut self, image: &ImageFailed) -> bool {
        let Ok(words) = <[u64; 64]>::try_from(image.words.as_slice()) else { return false };
        self.pages.insert(image.page, words).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_failed_is_kept_and_it_is_read_back() {
        let mut gone = Gone::default();
        let failed = [1, 63, 64, 4095, 4096, 1 << 40];
        failed.iter().for_each(|id| gone.note_failed(JobId(*id)));
        for id in [0, 1, 2, 62, 63, 64, 65, 4094, 4095, 4096, 4097, 1 << 40, (1 << 40) + 1] {
            assert_eq!(gone.failed(JobId(id)), failed.contains(&id), "job {id}");
        }
        let mut again = Gone::default();
        assert_eq!(gone.freeze().count(), 3);
        assert!(gone.freeze().all(|page| again.thaw(&page)));
        assert_eq!(again, gone);
        assert!(!again.thaw(&ImageFailed { page: 9, words: vec![1] }));
    }
}
