//! Small disks of a world's own: a tmpfs on each named room, in a mount namespace that the world's
//! daemons enter and the rest of the machine does not see. A full one harms nobody else.

use super::World;
use crate::skip::{is_root, program, skipped};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What fills a disk, in its directory.
const BALLAST: &str = "ballast";

/// Bytes of a log file that tell whose control groups are left (`cgroups.rs`).
const HEADER: usize = 512;

/// The namespace; it ends with its value and the daemons in it.
pub struct Disks {
    holder: Child,
    world: PathBuf,
    rooms: Vec<String>,
}

impl Disks {
    /// Puts a disk of `mib` MiB under each of `rooms`, directories of the world that are made here,
    /// for the daemons that `world` starts from now on. `None` where this machine does not let us,
    /// which is said under the name of `test`.
    pub fn make(test: &str, world: &mut World, rooms: &[&str], mib: u32) -> Option<Disks> {
        for name in ["unshare", "nsenter", "mount"] {
            if program(name).is_none() {
                skipped(test, &format!("{name} is missing"));
                return None;
            }
        }
        // Not of the world, whose processes are known by its path: a power cut of its node leaves the
        // disks.
        let mut command = Command::new(program("unshare").expect("it was found"));
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command.current_dir(world.dir()).stdin(Stdio::null()).stderr(Stdio::null());
        // Root of this machine needs no user namespace; anybody else becomes root in one.
        command.arg(if is_root() { "-m" } else { "-rm" });
        let script = "size=$1; shift; for room; do \
                      mount -t tmpfs -o size=$size,nr_inodes=2000,mode=700 tmpfs \"$room\" || exit 1; done; \
                      echo ready && unset PWD OLDPWD && exec sleep 100000";
        command.args(["sh", "-c", script, "sh", &format!("{mib}m")]);
        for room in rooms {
            fs::create_dir(world.dir().join(room)).expect("the room is new");
            command.arg(room);
        }
        let mut holder = command.stdout(Stdio::piped()).spawn().expect("unshare starts");
        let ready = says_ready(&mut holder);
        let pid = holder.id().to_string();
        let rooms = rooms.iter().map(|&room| room.to_owned()).collect();
        let disks = Disks { holder, world: world.dir().to_owned(), rooms };
        if !ready {
            skipped(test, "no small file system can be mounted here");
            return None;
        }
        match is_root() {
            true => world.wrap_daemons(&["nsenter", "-t", &pid, "-m"]),
            false => {
                let enter = ["nsenter", "-t", &pid, "-U", "-m", "--preserve-credentials"];
                world.wrap_daemons(&enter);
            }
        }
        Some(disks)
    }

    /// The disk under this room, as it is reached from outside of the namespace.
    pub fn path(&self, room: &str) -> PathBuf {
        let below = self.world.strip_prefix("/").expect("a world's path is absolute");
        PathBuf::from(format!("/proc/{}/root", self.holder.id())).join(below).join(room)
    }

    /// Fills it to its last byte.
    #[track_caller]
    pub fn fill(&self, room: &str) {
        let mut ballast = File::options()
            .append(true)
            .create(true)
            .open(self.path(room).join(BALLAST))
            .expect("a file can be made");
        for size in [1 << 16, 1 << 12, 1] {
            let bytes = vec![b'x'; size];
            loop {
                match ballast.write(&bytes) {
                    Ok(n) if n > 0 => {}
                    Err(e) if e.raw_os_error() != Some(libc::ENOSPC) => panic!("ballast: {e}"),
                    _ => break,
                }
            }
        }
    }

    /// Makes room on it.
    #[track_caller]
    pub fn free(&self, room: &str) {
        fs::remove_file(self.path(room).join(BALLAST)).expect("the ballast is there");
    }

    /// Leaves it its room, but no new file or directory can be made on it.
    #[track_caller]
    pub fn use_up_inodes(&self, room: &str) {
        let dir = self.path(room).join(BALLAST);
        fs::create_dir(&dir).expect("there are inodes left");
        for number in 0.. {
            match File::create(dir.join(number.to_string())) {
                Ok(_) => {}
                Err(e) if e.raw_os_error() == Some(libc::ENOSPC) => return,
                Err(e) => panic!("ballast: {e}"),
            }
        }
    }

    /// Files and directories can be made again.
    #[track_caller]
    pub fn give_inodes(&self, room: &str) {
        fs::remove_dir_all(self.path(room).join(BALLAST)).expect("the ballast is there");
    }

    /// The first bytes of the keepers' journals, kept where the end of the world looks for them.
    fn keep_headers(&self) {
        for room in &self.rooms {
            let journals = fs::read_dir(self.path(room).join("journal")).into_iter().flatten();
            for (number, entry) in journals.flatten().enumerate() {
                let mut head = Vec::new();
                let file = File::open(entry.path());
                let read = file.and_then(|file| file.take(HEADER as u64).read_to_end(&mut head));
                let copy: &Path = &self.world.join("logs").join(format!("{room}-{number}.wal"));
                if read.is_ok() {
                    fs::write(copy, head).ok();
                }
            }
        }
    }
}

fn says_ready(holder: &mut Child) -> bool {
    let mut pipe = holder.stdout.take().expect("stdout is piped");
    let mut bytes = [0; 6];
    // It says so or ends.
    pipe.read_exact(&mut bytes).is_ok() && &bytes == b"ready\n"
}

impl Drop for Disks {
    fn drop(&mut self) {
        self.keep_headers();
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}
