//! DIR/keeper.log: what keeper and guard have to say to the operator. Two files of at most 1 MiB;
//! a line that cannot be written is dropped, for the log must never stop the keeper.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::identity;

/// Above this the file becomes `keeper.log.1`, over the older one.
const FILE_MAX_BYTES: u64 = 1 << 20;

/// Longer lines are cut: a path or message of a job must not fill the file at once.
const LINE_MAX_BYTES: usize = 2048;

/// Appends lines under the name of its process.
pub(crate) struct KeeperLog {
    path: PathBuf,
    file: Option<File>,
    written: u64,
    who: &'static str,
}

impl KeeperLog {
    /// `who` stands in front of every line.
    pub(crate) fn open(dir: &Path, who: &'static str) -> KeeperLog {
        let path = dir.join("keeper.log");
        let file = open_append(&path);
        let written = file.as_ref().and_then(|f| f.metadata().ok()).map_or(0, |m| m.len());
        KeeperLog { path, file, written, who }
    }

    /// The directory has another name.
    pub(crate) fn follow(&mut self, dir: &Path) {
        self.path = dir.join("keeper.log");
    }

    /// One line, with UTC time and pid.
    pub(crate) fn say(&mut self, message: impl AsRef<str>) {
        if self.written > FILE_MAX_BYTES {
            self.rotate();
        }
        let message: String =
            message.as_ref().chars().map(|c| if c.is_control() { '?' } else { c }).collect();
        let cut = message.floor_char_boundary(LINE_MAX_BYTES);
        let line = format!(
            "{} {}[{}] {}\n",
            utc(identity::wall_ms()),
            self.who,
            std::process::id(),
            &message[..cut]
        );
        if let Some(file) = &mut self.file
            && file.write_all(line.as_bytes()).is_ok()
        {
            self.written += line.len() as u64;
        }
    }

    fn rotate(&mut self) {
        let older = self.path.with_extension("log.1");
        // A failure leaves the file growing by lines until the next try: better than silence.
        if std::fs::rename(&self.path, older).is_ok() {
            self.file = open_append(&self.path);
        }
        self.written = 0;
    }
}

fn open_append(path: &Path) -> Option<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path).ok()
}

/// `2026-01-31T23:59:59.123Z`.
fn utc(wall_ms: u64) -> String {
    let (days, ms) = (wall_ms / 86_400_000, wall_ms % 86_400_000);
    // Days since 0000-03-01, in the calendar that repeats each 400 years (146,097 days).
    let z = days + 719_468;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + z / 146_097 * 400 + u64::from(month <= 2);
    let (h, m, s, f) = (ms / 3_600_000, ms / 60_000 % 60, ms / 1000 % 60, ms % 1000);
    format!("{year:04}-{month:02}-{day:02}T{h:02}:{m:02}:{s:02}.{f:03}Z")
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    #[test]
    fn times_are_utc() {
        assert_eq!(utc(0), "1970-01-01T00:00:00.000Z");
        assert_eq!(utc(951_782_400_000), "2000-02-29T00:00:00.000Z");
        assert_eq!(utc(1_735_689_599_999), "2024-12-31T23:59:59.999Z");
    }

    #[test]
    fn the_file_stays_bounded_and_lines_stay_lines() {
        let dir = tempfile::tempdir().unwrap();
        let mut log = KeeperLog::open(dir.path(), "test");
        let long = "x\ny".repeat(2000);
        for _ in 0..1500 {
            log.say(&long);
        }
        let size = std::fs::metadata(dir.path().join("keeper.log")).unwrap().len();
        assert!(size <= FILE_MAX_BYTES + 2 * LINE_MAX_BYTES as u64, "{size}");
        assert!(dir.path().join("keeper.log.1").exists());
        let text = std::fs::read_to_string(dir.path().join("keeper.log")).unwrap();
        assert!(text.lines().all(|line| line.contains(" test[") && line.len() < 2200));
    }
}
