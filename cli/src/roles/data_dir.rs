//! The data directory: made for its owner alone, refused where others could reach into it.

use super::RoleError;
use std::fs::{DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Makes the directory, or checks the one that is there; gives its absolute path.
pub fn prepare(dir: &Path) -> Result<PathBuf, RoleError> {
    let failed = |why| RoleError::Directory { path: dir.to_owned(), why };
    let dir = std::path::absolute(dir).map_err(failed)?;
    match DirBuilder::new().recursive(true).mode(0o700).create(&dir) {
        Err(e) if matches!(e.kind(), ErrorKind::AlreadyExists | ErrorKind::NotADirectory) => {
            return Err(RoleError::NoDirectory { path: dir });
        }
        made => made.map_err(failed)?,
    }
    let meta = std::fs::metadata(&dir).map_err(failed)?;
    let (owner, mode) = (meta.uid(), meta.mode() & 0o777);
    if owner != rustix::process::geteuid().as_raw() {
        return Err(RoleError::NotYours { dir, owner });
    }
    if mode & 0o022 != 0 {
        return Err(RoleError::Open { dir, mode });
    }
    if mode & 0o077 != 0 {
        std::fs::set_permissions(&dir, Permissions::from_mode(0o700)).map_err(failed)?;
    }
    Ok(dir)
}

/// Name of the network file system that a path lies on: there, locks and fdatasync promise less.
pub fn network_file_system(path: &Path) -> io::Result<Option<&'static str>> {
    let existing = path.ancestors().find(|part| part.exists()).unwrap_or(path);
    let kind = rustix::fs::statfs(existing)?.f_type;
    // Magic numbers of linux/magic.h and of the out-of-tree systems, as 32 bits.
    let known: [(u32, &str); 11] = [
        (0x6969, "nfs"),
        (0xff53_4d42, "cifs"),
        (0xfe53_4d42, "smb2"),
        (0x517b, "smb"),
        (0x5346_414f, "afs"),
        (0x00c3_6400, "ceph"),
        (0x0bd0_0bd0, "lustre"),
        (0x4750_4653, "gpfs"),
        (0x1983_0326, "beegfs"),
        (0x0102_1997, "9p"),
        (0x6573_5546, "fuse"),
    ];
    // The field is signed and of the machine's width; the magic is its lower half.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
    let magic = kind as u64 as u32;
    Ok(known.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_made_for_its_owner_alone_and_tightened() {
        let base = tempfile::tempdir().unwrap();
        let dir = prepare(&base.path().join("a/b")).unwrap();
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&dir, Permissions::from_mode(0o755)).unwrap();
        prepare(&dir).unwrap();
        assert_eq!(dir.metadata().unwrap().mode() & 0o777, 0o700);
        std::fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(prepare(&dir), Err(RoleError::Open { .. })));
    }

    #[test]
    fn what_is_no_directory_or_somebody_elses_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        std::fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("below")] {
            let error = prepare(&path).unwrap_err().to_string();
            assert!(error.contains("is not a directory"), "{error}");
        }
        if rustix::process::geteuid().is_root() {
            let theirs = base.path().join("theirs");
            std::fs::create_dir(&theirs).unwrap();
            std::os::unix::fs::chown(&theirs, Some(65_534), None).unwrap();
            let error = prepare(&theirs).unwrap_err();
            assert!(matches!(error, RoleError::NotYours { owner: 65_534, .. }));
            assert_eq!(error.exit_code(), 77);
        }
    }

    #[test]
    fn a_local_directory_is_no_network_file_system() {
        assert_eq!(network_file_system(Path::new("/proc/self")).unwrap(), None);
        assert_eq!(network_file_system(Path::new("/dev/shm/not/there")).unwrap(), None);
    }
}
