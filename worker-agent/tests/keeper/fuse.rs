//! A FUSE file system whose server is the test: it answers what it must for a path to be looked up,
//! and an open never, or only when the test lets it. Enough of the kernel's protocol for one file.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const SETATTR: u32 = 4;
const OPEN: u32 = 14;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const FORGET: u32 = 2;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

const HEADER_BYTES: usize = 40;

/// The file in it, and its number.
pub const FILE: &str = "out";
const FILE_NODE: u64 = 2;

/// Mounted until it is dropped.
pub struct Fuse {
    pub at: PathBuf,
    state: Arc<State>,
    server: Option<JoinHandle<()>>,
}

struct State {
    device: File,
    /// Opens are answered.
    answers: AtomicBool,
    /// Numbers of opens that wait.
    held: Mutex<Vec<u64>>,
}

impl Fuse {
    /// `None`: none can be mounted here.
    pub fn mount(at: PathBuf) -> Option<Fuse> {
        fs::create_dir(&at).ok()?;
        let device: OwnedFd = File::options().read(true).write(true).open("/dev/fuse").ok()?.into();
        // For mount(8); other children of this test let go of it at once.
        rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::empty()).ok()?;
        let fd = device.as_raw_fd();
        let options = format!("fd={fd},rootmode=40000,user_id=0,group_id=0,allow_other");
        let mut mount = Command::new("mount");
        mount.args(["-i", "-t", "fuse", "-o", &options, "docket-test"]).arg(&at);
        let mounted = mount.output().ok()?.status.success();
        rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::CLOEXEC).ok()?;
        if !mounted {
            return None;
        }
        let device = File::from(device);
        let state = Arc::new(State {
            device,
            answers: AtomicBool::new(false),
            held: Mutex::new(Vec::new()),
        });
        let serving = Arc::clone(&state);
        let server = std::thread::spawn(move || serving.serve());
        Some(Fuse { at, state, server: Some(server) })
    }

    pub fn file(&self) -> PathBuf {
        self.at.join(FILE)
    }

    /// Opens that hang now.
    pub fn hanging(&self) -> usize {
        self.state.held.lock().unwrap().len()
    }

    /// From now on opens are answered, those that hang too.
    pub fn answers(&self) {
        self.state.answers.store(true, Ordering::SeqCst);
        for unique in std::mem::take(&mut *self.state.held.lock().unwrap()) {
            self.state.opened(unique);
        }
    }

    /// The kernel ends the connection: what hangs fails.
    pub fn aborts(&self) {
        // Busy or not: the connection is gone.
        let _ = Command::new("umount").arg("-f").arg(&self.at).output();
    }
}

impl Drop for Fuse {
    fn drop(&mut self) {
        self.aborts();
        let _ = Command::new("umount").arg("-l").arg(&self.at).output();
        if let Some(server) = self.server.take() {
            // It ends with the connection: reads fail with ENODEV.
            let _ = server.join();
        }
    }
}

impl State {
    fn serve(&self) {
        let mut request = vec![0; 1 << 20];
        while let Ok(n) = (&self.device).read(&mut request) {
            if n < HEADER_BYTES {
                return;
            }
            let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
            let long = |at: usize| u64::from_ne_bytes(request[at..at + 8].try_into().unwrap());
            self.take(word(4), long(8), long(16), &request[HEADER_BYTES..n]);
        }
    }

    fn take(&self, operation: u32, unique: u64, node: u64, body: &[u8]) {
        match operation {
            // 7.31, no flags, room for a page in each write.
            INIT => {
                let mut out = vec![0; 64];
                out[0..4].copy_from_slice(&7u32.to_ne_bytes());
                out[4..8].copy_from_slice(&31u32.to_ne_bytes());
                out[20..24].copy_from_slice(&4096u32.to_ne_bytes());
                self.answer(unique, 0, &out);
            }
            LOOKUP if body.strip_suffix(b"\0") == Some(FILE.as_bytes()) => {
                let mut out = vec![0; 40];
                out[0..8].copy_from_slice(&FILE_NODE.to_ne_bytes());
                out.extend_from_slice(&attributes(FILE_NODE));
                self.answer(unique, 0, &out);
            }
            LOOKUP => self.answer(unique, -libc::ENOENT, &[]),
            GETATTR | SETATTR => {
                let mut out = vec![0; 16];
                out.extend_from_slice(&attributes(node));
                self.answer(unique, 0, &out);
            }
            OPEN if self.answers.load(Ordering::SeqCst) => self.opened(unique),
            OPEN => self.held.lock().unwrap().push(unique),
            FORGET | BATCH_FORGET | INTERRUPT => {}
            FLUSH | RELEASE => self.answer(unique, 0, &[]),
            _ => self.answer(unique, -libc::ENOSYS, &[]),
        }
    }

    fn opened(&self, unique: u64) {
        self.answer(unique, 0, &[0; 16]);
    }

    fn answer(&self, unique: u64, error: i32, body: &[u8]) {
        let mut out = Vec::with_capacity(16 + body.len());
        out.extend_from_slice(&(16 + body.len() as u32).to_ne_bytes());
        out.extend_from_slice(&error.to_ne_bytes());
        out.extend_from_slice(&unique.to_ne_bytes());
        out.extend_from_slice(body);
        // The asker may be gone.
        let _ = (&self.device).write(&out);
    }
}

/// `struct fuse_attr`: an empty file, or the root directory.
fn attributes(node: u64) -> [u8; 88] {
    let mode: u32 = if node == FILE_NODE { 0o100_666 } else { 0o40_777 };
    let mut out = [0; 88];
    out[0..8].copy_from_slice(&node.to_ne_bytes());
    out[60..64].copy_from_slice(&mode.to_ne_bytes());
    out[64..68].copy_from_slice(&1u32.to_ne_bytes());
    out
}
