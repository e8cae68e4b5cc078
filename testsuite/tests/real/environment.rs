//! The submitter's environment reaches the job byte for byte, or the submit is refused (failure case
//! I07).

use std::ffi::{CStr, CString};
use std::os::unix::process::CommandExt as _;
use testsuite::world;
use testsuite::world::{Ran, World, finish};

/// Starts `docket ARGS…` with just these entries as its environment, which no shell or library would
/// make: as they are, in this order.
#[allow(unsafe_code)]
fn docket_with_entries(world: &World, args: &[&str], entries: &[&[u8]]) -> Ran {
    let text = |bytes: &[u8]| CString::new(bytes).unwrap();
    let program = text(world.exe().as_os_str().as_encoded_bytes());
    let args: Vec<CString> =
        std::iter::once("docket").chain(args.iter().copied()).map(|a| text(a.as_bytes())).collect();
    let entries: Vec<CString> = entries.iter().map(|entry| text(entry)).collect();
    let mut command = world.docket_command::<&str>(&[]);
    let replace = move || Err(exec(&program, &args, &entries));
    // SAFETY: between fork and exec only `execve` is called, which is async-signal-safe; its arguments
    // were made before.
    unsafe { command.pre_exec(replace) };
    finish(command, &[])
}

/// Replaces this process; gives why it could not.
#[allow(unsafe_code)]
fn exec(program: &CStr, args: &[CString], entries: &[CString]) -> std::io::Error {
    // At most 64 of each: nothing may be allocated between fork and exec.
    let mut lists = [[std::ptr::null(); 64]; 2];
    for (list, strings) in lists.iter_mut().zip([args, entries]) {
        list.iter_mut().zip(strings).take(63).for_each(|(to, text)| *to = text.as_ptr());
    }
    // SAFETY: both lists end with a null and point to strings that outlive the call.
    unsafe { libc::execve(program.as_ptr(), lists[0].as_ptr(), lists[1].as_ptr()) };
    std::io::Error::last_os_error()
}

#[test]
fn an_environment_goes_exactly_or_is_refused_by_the_name_of_its_entry() {
    let world = world!();
    let _node = world.up(2);
    let server = format!("DOCKET_SERVER={}", world.data().join("docket.sock").display());
    let home = format!("HOME={}", world.dir().join("home").display());
    let plain: [&[u8]; 3] = [server.as_bytes(), home.as_bytes(), b"PATH=/usr/bin:/bin"];
    let odd: [&[u8]; 5] = [
        b"LINES3=one\ntwo\n\nfour\n",
        b"BASH_FUNC_x%%=() {  echo \"of bash\"\n}",
        b"RAW=\xff\xfe=\xc3",
        b"N\xff=value",
        b"EMPTY=",
    ];
    let ran =
        docket_with_entries(&world, &["run", "--", "env", "-0"], &[&plain[..], &odd].concat());
    assert_eq!(ran.code, Some(0), "{}", ran.describe());
    let got: Vec<&[u8]> = ran.stdout.split(|byte| *byte == 0).collect();
    for entry in plain[1..].iter().chain(&odd) {
        assert_eq!(got.iter().filter(|var| var == &entry).count(), 1, "{entry:?}: {got:?}");
    }
    let before = world.list_ids().len();
    for (entries, named) in [
        (&[&b"A=1"[..], b"B=2", b"A=3"][..], "`A` twice"),
        (&[b"A=1", b"LONELY"], "`LONELY`, which is no NAME=VALUE"),
        (&[b"=x"], "`=x`"),
    ] {
        let all = [&plain[..], entries].concat();
        let ran = docket_with_entries(&world, &["submit", "--", "true"], &all);
        assert_eq!(ran.code, Some(2), "{}", ran.describe());
        assert!(ran.err().contains(named), "{}", ran.describe());
        let chosen = ["submit", "--env-only", "PATH", "--", "true"];
        assert_eq!(docket_with_entries(&world, &chosen, &all).code, Some(0), "{named}");
    }
    assert_eq!(world.list_ids().len(), before + 3, "a refused one leaves nothing");
}
