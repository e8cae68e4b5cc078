//! What the keeper of this user holds jobs with: the cgroups that end a whole tree, and what enforces
//! each limit. Found out as the keeper does it, so that both say the same.

use crate::render::limits::enforced;
use crate::render::{Check, Health};
use worker_agent::keeper::{Holds, holds};

/// The lines of `docket doctor`.
pub fn cgroups() -> [Check; 2] {
    let holds = holds();
    [trees(&holds), limits(&holds)]
}

fn trees(holds: &Holds) -> Check {
    let (health, found) = match holds.cgroups {
        true => (Health::Good, "v2 holds and ends the tree of a job"),
        false => (
            Health::Note,
            "none that this user may write: the tree of a job is held by session and token",
        ),
    };
    Check { what: "cgroups", health, found: found.to_owned() }
}

fn limits(holds: &Holds) -> Check {
    let by = &holds.limits;
    let all = [&by.mem, &by.cpus, &by.pids].into_iter().all(|by| by == "v1" || by == "v2");
    let health = if all { Health::Good } else { Health::Note };
    Check { what: "limits", health, found: enforced(by) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::v1::LimitsBy;

    fn held(cgroups: bool, [mem, cpus, pids]: [&str; 3]) -> Holds {
        let limits = LimitsBy { mem: mem.into(), cpus: cpus.into(), pids: pids.into() };
        Holds { cgroups, limits }
    }

    #[test]
    fn good_is_only_what_holds_the_whole_tree() {
        for (by, health) in [
            (["v2", "v2", "v2"], Health::Good),
            (["v1", "v1", "v2"], Health::Good),
            (["rlimits", "v1", "v1"], Health::Note),
            (["v2", "none", "v2"], Health::Note),
            (["rlimits", "none", "none"], Health::Note),
        ] {
            let check = limits(&held(true, by));
            assert_eq!(check.health, health, "{by:?}: {}", check.found);
        }
        assert_eq!(trees(&held(true, ["v2"; 3])).health, Health::Good);
        assert_eq!(trees(&held(false, ["v2"; 3])).health, Health::Note);
    }

    #[test]
    fn this_machine_is_asked_and_left_as_it_was() {
        let [trees, limits] = cgroups();
        assert!(!trees.found.is_empty() && limits.found.contains("--mem"), "{}", limits.found);
    }
}
