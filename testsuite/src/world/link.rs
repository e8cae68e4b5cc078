//! A network namespace of a world's own, whose loopback can be cut by packet rules: what a partition
//! is to two processes of one machine.

use super::World;
use crate::skip::{is_root, program, skipped};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

/// Which packets are dropped; nobody is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All.
    Both,
    /// Those to the controller.
    Up,
    /// Those from the controller.
    Down,
}

impl Cut {
    /// Every way to cut.
    pub const ALL: [Cut; 3] = [Cut::Both, Cut::Up, Cut::Down];
}

/// The namespace; it ends with its value.
pub struct Link {
    holder: Child,
    port: String,
    enter: Vec<String>,
}

impl Link {
    /// Makes a namespace for the daemons that `world` starts from now on, with a controller at
    /// `address`. `None` where this machine does not let us, which is said under the name of `test`.
    pub fn make(test: &str, world: &mut World, address: &str) -> Option<Link> {
        let missing = ["unshare", "nsenter", "ip", "iptables"]
            .into_iter()
            .find(|name| program(name).is_none());
        if let Some(name) = missing {
            skipped(test, &format!("{name} is missing"));
            return None;
        }
        let address: SocketAddr = address.parse().expect("an address");
        let mut command = world.command(&program("unshare").expect("it was found"));
        // Root of this machine needs no user namespace; anybody else becomes root in one.
        command.arg(if is_root() { "-n" } else { "-rn" });
        command.args(["sh", "-c", "ip link set lo up && echo ready && exec sleep 100000"]);
        let mut holder = command.stdout(Stdio::piped()).spawn().expect("unshare starts");
        let ready = says_ready(&mut holder);
        let pid = holder.id().to_string();
        let enter = match is_root() {
            true => vec!["nsenter", "-t", &pid, "-n"],
            false => vec!["nsenter", "-t", &pid, "-U", "-n", "--preserve-credentials"],
        };
        let enter = enter.into_iter().map(str::to_owned).collect();
        let link = Link { holder, port: address.port().to_string(), enter };
        // What a rule needs (the module, the right) is known only by setting one.
        if !ready || !link.rules("-A", Cut::Both) {
            skipped(test, "no network namespace with packet rules can be made here");
            return None;
        }
        link.heal();
        let words: Vec<&str> = link.enter.iter().map(String::as_str).collect();
        world.wrap_daemons(&words);
        Some(link)
    }

    /// Drops packets from now on.
    #[track_caller]
    pub fn cut(&self, way: Cut) {
        assert!(self.rules("-A", way), "packet rules could be set before");
    }

    /// Lets all packets pass again.
    #[track_caller]
    pub fn heal(&self) {
        assert!(self.iptables(&["-F", "INPUT"]), "packet rules can be removed");
    }

    fn rules(&self, action: &str, way: Cut) -> bool {
        let drop = |side| {
            self.iptables(&[
                action, "INPUT", "-i", "lo", "-p", "tcp", side, &self.port, "-j", "DROP",
            ])
        };
        match way {
            Cut::Both => drop("--dport") && drop("--sport"),
            Cut::Up => drop("--dport"),
            Cut::Down => drop("--sport"),
        }
    }

    fn iptables(&self, args: &[&str]) -> bool {
        let mut command = Command::new(&self.enter[0]);
        command.args(&self.enter[1..]).args(["iptables", "-w"]).args(args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    }
}

fn says_ready(holder: &mut Child) -> bool {
    use std::io::Read;
    let mut pipe = holder.stdout.take().expect("stdout is piped");
    let mut bytes = [0; 6];
    // It says so or ends.
    pipe.read_exact(&mut bytes).is_ok() && &bytes == b"ready\n"
}

impl Drop for Link {
    fn drop(&mut self) {
        self.holder.kill().ok();
        self.holder.wait().ok();
    }
}
