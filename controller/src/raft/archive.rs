//! Log segments below the snapshots: kept for `history_retention`, oldest removed first, and never
//! one that is younger than a day (design 4, Snapshots, history, backup).

use crate::config::Retention;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Whatever the configuration says, this much of the past stays.
const KEPT_AT_LEAST: Duration = Duration::from_secs(86_400);

/// The directory that purged segments move to.
#[derive(Clone, Debug)]
pub struct Archive {
    /// Where it is; made with the first purge.
    pub dir: PathBuf,
    /// How long files stay.
    pub retention: Retention,
}

/// One archived segment.
struct Segment {
    path: PathBuf,
    age: Duration,
    bytes: u64,
}

impl Archive {
    /// Removes what is too old, then the oldest until the rest fits. Blocks on the file system.
    pub fn prune(&self) -> io::Result<()> {
        let segments = match self.oldest_first() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
            segments => segments?,
        };
        let mut bytes: u64 = segments.iter().map(|segment| segment.bytes).sum();
        for segment in segments {
            let over = segment.age > self.retention.age || bytes > self.retention.bytes;
            if !over || segment.age < KEPT_AT_LEAST {
                return Ok(()); // those behind it are younger
            }
            std::fs::remove_file(&segment.path)?;
            bytes -= segment.bytes;
            tracing::info!(segment = %segment.path.display(), "archived segment removed");
        }
        Ok(())
    }

    fn oldest_first(&self) -> io::Result<Vec<Segment>> {
        let now = SystemTime::now();
        let mut segments = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let meta = std::fs::metadata(&path)?;
            if meta.is_file() && path.extension().is_some_and(|extension| extension == "wal") {
                let age = now.duration_since(meta.modified()?).unwrap_or_default();
                segments.push(Segment { path, age, bytes: meta.len() });
            }
        }
        segments.sort_by_key(|segment| std::cmp::Reverse(segment.age));
        Ok(segments)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    /// Makes segments of 100 bytes with these ages in days, prunes, and gives the ages that stay.
    fn staying(retention: Retention, ages: &[u32]) -> Vec<u32> {
        let dir = tempfile::tempdir().unwrap();
        let archive = Archive { dir: dir.path().join("archive"), retention };
        archive.prune().unwrap();
        std::fs::create_dir(&archive.dir).unwrap();
        let path = |age: u32| archive.dir.join(format!("{age}.wal"));
        for age in ages {
            let file = std::fs::File::create(path(*age)).unwrap();
            file.set_len(100).unwrap();
            let half = DAY / 2;
            file.set_modified(SystemTime::now() - DAY * *age - half).unwrap();
        }
        archive.prune().unwrap();
        ages.iter().copied().filter(|age| path(*age).exists()).collect()
    }

    #[test]
    fn the_oldest_go_first_and_the_last_day_stays() {
        let ages = [0, 1, 5, 10];
        let keep = |days: u32, bytes| Retention { age: DAY * days, bytes };
        assert_eq!(staying(keep(90, 1000), &ages), ages);
        assert_eq!(staying(keep(7, 1000), &ages), [0, 1, 5]);
        assert_eq!(staying(keep(90, 250), &ages), [0, 1]);
        assert_eq!(staying(keep(0, 0), &ages), [0]);
    }
}
