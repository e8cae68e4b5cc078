//! A controller and one agent as processes of their own: what most failures need.

use super::{Daemon, Disks, Link, World};
use crate::patience::wait_by_command;
use std::path::Path;
use std::time::Duration;

/// The controller's socket, in its directory.
const SOCKET: &str = "docket.sock";

/// The time-outs of a world, in the proportions that docket demands of them.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Between two words of an agent.
    pub heartbeat: Duration,
    /// Silence after which its jobs are unknown.
    pub silence: Duration,
    /// How long a job may be unknown.
    pub unknown_max: Duration,
}

impl Pace {
    /// Seconds where the defaults have minutes; losses are not settled within a test.
    pub const QUICK: Pace = Pace {
        heartbeat: Duration::from_secs(1),
        silence: Duration::from_secs(4),
        unknown_max: Duration::from_secs(120),
    };

    /// The same, and what is unknown for 3 s is lost.
    pub const FORGETFUL: Pace = Pace { unknown_max: Duration::from_secs(3), ..Pace::QUICK };

    /// The defaults, but a lost job is settled after one minute instead of five.
    pub const REAL: Pace = Pace {
        heartbeat: Duration::from_secs(10),
        silence: Duration::from_secs(30),
        unknown_max: Duration::from_secs(60),
    };
}

/// A world in which a controller and an agent run apart.
pub struct Split {
    /// The controller, unless a test took it away.
    pub controller: Daemon,
    /// The agent, unless a test took it away.
    pub agent: Daemon,
    /// Where they live; the last to end.
    pub world: World,
    address: String,
    /// Whom the agent dials: the controller, or what stands between.
    dials: String,
}

impl Split {
    /// Name of the node.
    pub const NODE: &str = "n1";

    /// Directory of the controller, in the world.
    pub const CONTROLLER: &str = "controller";

    /// Cpus of the node: room for every job of a test at once.
    pub const CPUS: u32 = 64;

    /// Starts both; they serve jobs of the calling user, root included.
    #[track_caller]
    pub fn start(world: World, pace: Pace) -> Split {
        let address = World::free_address();
        Self::start_at(world, pace, &address, &address)
    }

    /// The same with a controller at `address` and an agent that dials `dials`.
    #[track_caller]
    pub fn start_at(world: World, pace: Pace, address: &str, dials: &str) -> Split {
        // A socket file is reached from every network namespace.
        let socket = world.dir().join(Self::CONTROLLER).join(SOCKET);
        Self::start_with(world, pace, &socket, address, dials)
    }

    /// The same, with the controller and the agent on a disk of `mib` MiB each; `None` (and said so)
    /// where this machine does not let us.
    #[track_caller]
    pub fn on_small_disks(
        test: &str,
        mut world: World,
        pace: Pace,
        mib: u32,
    ) -> Option<(Split, Disks)> {
        let disks = Disks::make(test, &mut world, &[Self::CONTROLLER, Self::NODE], mib)?;
        let address = World::free_address();
        let socket = disks.path(Self::CONTROLLER).join(SOCKET);
        Some((Self::start_with(world, pace, &socket, &address, &address), disks))
    }

    #[track_caller]
    fn start_with(
        mut world: World,
        pace: Pace,
        socket: &Path,
        address: &str,
        dials: &str,
    ) -> Split {
        let text = |span: Duration| format!("{}ms", span.as_millis());
        world.set("DOCKET_SERVER", &socket.display().to_string());
        world.set("DOCKET_AGENT__HEARTBEAT_INTERVAL", &text(pace.heartbeat));
        world.set("DOCKET_AGENT__KILL_GRACE", "1s");
        world.set("DOCKET_AGENT__ALLOW_ROOT_JOBS", "true");
        world.set("DOCKET_CONTROLLER__HEARTBEAT_TIMEOUT", &text(pace.silence));
        world.set("DOCKET_CONTROLLER__TRANSIENT_JOB_TIMEOUT", &text(pace.unknown_max));
        let controller = world.controller(address);
        let agent = world.agent(dials, Self::NODE, Self::CPUS);
        Split { world, controller, agent, address: address.to_owned(), dials: dials.to_owned() }
    }

    /// The same in a network namespace of their own; `None` (and said so) where this machine does
    /// not let us.
    #[track_caller]
    pub fn in_namespace(test: &str, mut world: World, pace: Pace) -> Option<(Split, Link)> {
        const ADDRESS: &str = "127.0.0.1:7460";
        let link = Link::make(test, &mut world, ADDRESS)?;
        Some((Self::start_at(world, pace, ADDRESS, ADDRESS), link))
    }

    /// Address of the controller.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Starts the controller again, on the same directory and address.
    #[track_caller]
    pub fn controller_again(&mut self) {
        self.controller = self.world.controller(&self.address);
    }

    /// Starts a controller on the same directory and address, and waits for nothing.
    #[track_caller]
    pub fn controller_unseen(&self) -> Daemon {
        self.world.controller_unseen(&self.address)
    }

    /// `kill -9` of the controller, and a new one.
    #[track_caller]
    pub fn bounce_controller(&mut self) {
        self.controller.kill9();
        self.controller_again();
    }

    /// Starts the agent again, on the same directory, and waits for its node.
    #[track_caller]
    pub fn agent_again(&mut self) {
        self.agent = self.world.agent_unseen(&self.dials, Self::NODE, Self::CPUS);
        self.node_is_up();
    }

    /// Starts the agent again and waits for nothing.
    #[track_caller]
    pub fn agent_unseen_again(&mut self) {
        self.agent = self.world.agent_unseen(&self.dials, Self::NODE, Self::CPUS);
    }

    /// Waits until the node is up.
    #[track_caller]
    pub fn node_is_up(&mut self) {
        wait_by_command("the node is up", || {
            self.agent.must_live();
            self.world.node_state(Self::NODE).as_deref() == Some("up")
        });
    }

    /// The incarnation of the node's newest session.
    #[track_caller]
    pub fn incarnation(&self) -> u64 {
        let out = self.world.ok(&["nodes", "-o", "json"]);
        let nodes: serde_json::Value = serde_json::from_str(&out).expect("nodes prints JSON");
        nodes[0]["incarnation"].as_u64().expect("a node has an incarnation")
    }

    /// The data directory of the agent.
    pub fn agent_data(&self) -> std::path::PathBuf {
        self.world.dir().join(Self::NODE)
    }

    /// `kill -9` of everything that a power cut of the agent's machine would end: agent, guard,
    /// keeper and jobs; the controller's machine stays.
    #[track_caller]
    pub fn power_off_node(&mut self) {
        self.agent.kill9();
        self.world.kill_all_but(&self.controller);
    }
}
