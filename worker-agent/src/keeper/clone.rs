//! A child that shares memory with its suspended parent thread (vfork), on a stack of its own and,
//! where the kernel can, born inside its cgroup: half the cost of fork, and nothing of the keeper
//! is copied. Only the spawner thread is suspended. The one place of assembly.
#![allow(unsafe_code)]

use super::sys::{self, Waited};
use std::ffi::c_void;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::{self, NonNull};

/// Enough for the straight calls of the child; it allocates nothing and does not recurse.
const STACK_BYTES: usize = 128 << 10;

/// Below the stack, inaccessible: an overflow faults in the child instead of writing elsewhere.
const GUARD_BYTES: usize = 64 << 10;

/// What runs in the child. It must end by exec or `_exit` and must not allocate, panic or lock.
pub(crate) type ChildMain = unsafe extern "C" fn(*mut c_void) -> !;

/// A memory mapping for the child's stack; used by one child at a time.
pub(crate) struct ChildStack {
    base: NonNull<c_void>,
}

// SAFETY: the mapping belongs to this value alone; nothing in it is tied to a thread.
unsafe impl Send for ChildStack {}

impl ChildStack {
    pub(crate) fn new() -> io::Result<ChildStack> {
        let (bytes, prot) = (GUARD_BYTES + STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        // SAFETY: a fresh private mapping; then its lowest pages become inaccessible.
        unsafe {
            let base = libc::mmap(ptr::null_mut(), bytes, prot, flags, -1, 0);
            if base == libc::MAP_FAILED {
                return Err(io::Error::last_os_error());
            }
            let Some(base) = NonNull::new(base) else { return Err(io::ErrorKind::Other.into()) };
            let stack = ChildStack { base };
            if libc::mprotect(base.as_ptr(), GUARD_BYTES, libc::PROT_NONE) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(stack)
        }
    }

    fn lowest(&self) -> *mut c_void {
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().byte_add(GUARD_BYTES) }
    }

    fn top(&self) -> *mut c_void {
        // SAFETY: one past the end of the mapping, page-aligned.
        unsafe { self.lowest().byte_add(STACK_BYTES) }
    }
}

impl Drop for ChildStack {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this size; no child runs on it, for `spawn` waits.
        unsafe { libc::munmap(self.base.as_ptr(), GUARD_BYTES + STACK_BYTES) };
    }
}

/// A new child: it has executed its program or ended when this exists.
pub(crate) struct Child {
    pub pid: u32,
    pub pidfd: OwnedFd,
    /// It was born in the cgroup that was asked for.
    pub in_cgroup: bool,
}

/// Runs `main(arg)` in a child and returns when that has executed another program or ended. Where
/// clone3 is refused (an old seccomp filter, another machine) the child starts in the parent's
/// cgroup and must join by itself.
///
/// # Safety
/// `main` must keep to [`ChildMain`]'s rules, and `arg` must be valid for it.
pub(crate) unsafe fn spawn(
    stack: &mut ChildStack,
    cgroup: Option<BorrowedFd<'_>>,
    main: ChildMain,
    arg: *mut c_void,
) -> io::Result<Child> {
    // SAFETY: passed on.
    match unsafe { clone3(stack, cgroup, main, arg) } {
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            // SAFETY: passed on.
            unsafe { clone2(stack, main, arg) }
        }
        result => result,
    }
}

/// Whether a child lives that is born in this cgroup. `false` too where it cannot be born there.
pub(crate) fn lives_when_born_in(cgroup: BorrowedFd<'_>) -> bool {
    unsafe extern "C" fn exit(_: *mut c_void) -> ! {
        // SAFETY: ends the child at once, without touching the parent's memory.
        unsafe { libc::_exit(0) }
    }
    let Ok(mut stack) = ChildStack::new() else { return false };
    // SAFETY: `exit` takes no argument and keeps to the rules.
    let Ok(child) = (unsafe { clone3(&mut stack, Some(cgroup), exit, ptr::null_mut()) }) else {
        return false;
    };
    matches!(sys::wait_for(child.pid), Ok(Waited::Ended(reaped)) if reaped.status == 0)
}

const FLAGS: i32 = libc::CLONE_VM | libc::CLONE_VFORK | libc::CLONE_PIDFD;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn clone3(
    stack: &mut ChildStack,
    cgroup: Option<BorrowedFd<'_>>,
    main: ChildMain,
    arg: *mut c_void,
) -> io::Result<Child> {
    /// `struct clone_args` of the kernel, its version with a cgroup.
    #[repr(C, align(8))]
    #[derive(Default)]
    struct Args {
        flags: u64,
        pidfd: u64,
        child_tid: u64,
        parent_tid: u64,
        exit_signal: u64,
        stack: u64,
        stack_size: u64,
        tls: u64,
        set_tid: u64,
        set_tid_size: u64,
        cgroup: u64,
    }
    const CLONE_INTO_CGROUP: u64 = 1 << 33;
    let mut pidfd: i32 = -1;
    let mut args = Args {
        flags: FLAGS as u64,
        pidfd: &raw mut pidfd as u64,
        exit_signal: libc::SIGCHLD as u64,
        stack: stack.lowest() as u64,
        stack_size: STACK_BYTES as u64,
        ..Args::default()
    };
    if let Some(cgroup) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = cgroup.as_raw_fd() as u64;
    }
    // SAFETY: `args` and `pidfd` live across the call. The child runs on its own stack and never
    // returns, so the frames of this thread, which sleeps meanwhile, stay as they are.
    let pid = unsafe { raw_clone3(&raw mut args as *mut c_void, size_of::<Args>(), main, arg) };
    if pid < 0 {
        return Err(io::Error::from_raw_os_error(-pid as i32));
    }
    // SAFETY: the kernel stored a new descriptor.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid: pid as u32, pidfd, in_cgroup: cgroup.is_some() })
}

#[cfg(target_arch = "x86_64")]
unsafe fn raw_clone3(args: *mut c_void, size: usize, main: ChildMain, arg: *mut c_void) -> i64 {
    let result: i64;
    // SAFETY: the child (rax = 0) has a fresh 16-aligned stack; it calls `main`, which never returns.
    unsafe {
        std::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") args,
            in("rsi") size,
            in("r12") arg,
            in("r13") main,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

#[cfg(target_arch = "aarch64")]
unsafe fn raw_clone3(args: *mut c_void, size: usize, main: ChildMain, arg: *mut c_void) -> i64 {
    let result: i64;
    // SAFETY: the child (x0 = 0) has a fresh 16-aligned stack; it calls `main`, which never returns.
    unsafe {
        std::arch::asm!(
            "svc 0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x30, xzr",
            "mov x0, x20",
            "blr x21",
            "brk #1",
            "2:",
            inlateout("x0") args => result,
            in("x1") size,
            in("x8") libc::SYS_clone3,
            in("x20") arg,
            in("x21") main,
        );
    }
    result
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
unsafe fn clone3(
    _: &mut ChildStack,
    _: Option<BorrowedFd<'_>>,
    _: ChildMain,
    _: *mut c_void,
) -> io::Result<Child> {
    Err(io::Error::from_raw_os_error(libc::ENOSYS))
}

/// The older call, through the C library; it knows no cgroup.
unsafe fn clone2(stack: &mut ChildStack, main: ChildMain, arg: *mut c_void) -> io::Result<Child> {
    let mut pidfd: i32 = -1;
    // SAFETY: a function that never returns may stand for one that returns an int.
    let main: extern "C" fn(*mut c_void) -> i32 = unsafe { std::mem::transmute(main) };
    // SAFETY: the stack is not in use; with CLONE_PIDFD the fifth argument receives the descriptor.
    let pid = unsafe { libc::clone(main, stack.top(), FLAGS | libc::SIGCHLD, arg, &raw mut pidfd) };
    if pid == -1 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel stored a new descriptor.
    let pidfd = unsafe { OwnedFd::from_raw_fd(pidfd) };
    Ok(Child { pid: pid as u32, pidfd, in_cgroup: false })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;

    unsafe extern "C" fn add_one_and_exit(arg: *mut c_void) -> ! {
        // SAFETY: the tests pass a pointer to a u32 that outlives the call.
        unsafe {
            *arg.cast::<u32>() += 1;
            libc::_exit(5)
        }
    }

    #[test]
    fn both_calls_run_the_child_in_our_memory_and_give_its_pidfd() {
        let mut stack = ChildStack::new().unwrap();
        let mut count = 0u32;
        let arg = (&raw mut count).cast::<c_void>();
        for round in 1..=3 {
            // SAFETY: as `add_one_and_exit` asks.
            let child = unsafe {
                if round == 3 {
                    clone2(&mut stack, add_one_and_exit, arg)
                } else {
                    spawn(&mut stack, None, add_one_and_exit, arg)
                }
            }
            .unwrap();
            // SAFETY: the child has ended: nobody else touches it.
            assert_eq!(unsafe { ptr::read_volatile(&raw const count) }, round);
            let Waited::Ended(reaped) = sys::wait_for(child.pid).unwrap() else { panic!() };
            assert_eq!(reaped.status, 5 << 8);
        }
    }
}
