//! What enforces limits on a node, in words: a limit that nobody enforces is said by name.

use proto::v1::{LimitsBy, NodeResources};

/// In full, for `docket doctor`.
pub fn enforced(by: &LimitsBy) -> String {
    let mem = match by.mem.as_str() {
        "rlimits" => {
            "--mem by rlimits, for each process of a job and not for all together".to_owned()
        }
        "none" | "" => "--mem is reserved, but not enforced".to_owned(),
        version => format!("--mem by {version}"),
    };
    let other = |what: &str, by: &str| match by {
        "none" | "" => format!("{what} not enforced"),
        version => format!("{what} by {version}"),
    };
    let cpus = match by.cpus.as_str() {
        "none" | "" => "--cpus is counted, but not enforced".to_owned(),
        version => format!("--cpus by {version}"),
    };
    format!("{mem}; {cpus}; {}", other("number of processes", &by.pids))
}

/// The note of `docket nodes`; `None` of a node that did not say.
pub fn note(has: &NodeResources) -> Option<String> {
    let Some(by) = &has.limits_by else { return older(&has.limits) };
    let mem = match by.mem.as_str() {
        "rlimits" => "mem limited by process".to_owned(),
        "none" | "" => "mem not limited".to_owned(),
        _ => String::new(),
    };
    let free = |what: &str, by: &str| match by {
        "none" | "" => format!("{what} not limited"),
        _ => String::new(),
    };
    let lacks = [mem, free("cpus", &by.cpus), free("processes", &by.pids)];
    let lacks: Vec<String> = lacks.into_iter().filter(|text| !text.is_empty()).collect();
    let versions = [&by.mem, &by.cpus, &by.pids].map(String::as_str);
    let version = ["v2", "v1"].into_iter().find(|version| versions.contains(version));
    let holds = version.map(|version| format!("{version} limits"));
    Some(holds.into_iter().chain(lacks).collect::<Vec<_>>().join(", "))
}

/// Of an agent that says only what enforces memory.
fn older(limits: &str) -> Option<String> {
    match limits {
        "" => None,
        "none" => Some("no limits".to_owned()),
        "rlimits" => Some("rlimits only".to_owned()),
        other => Some(format!("{} limits", super::escape::line(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by([mem, cpus, pids]: [&str; 3]) -> LimitsBy {
        LimitsBy { mem: mem.into(), cpus: cpus.into(), pids: pids.into() }
    }

    #[test]
    fn what_nobody_enforces_is_named() {
        let note =
            |words| note(&NodeResources { limits_by: Some(by(words)), ..Default::default() });
        for (words, expected) in [
            (["v2", "v2", "v2"], "v2 limits"),
            (["v1", "v1", "v1"], "v1 limits"),
            (["v2", "none", "v1"], "v2 limits, cpus not limited"),
            (
                ["rlimits", "none", "none"],
                "mem limited by process, cpus not limited, processes not limited",
            ),
        ] {
            assert_eq!(note(words).as_deref(), Some(expected));
        }
        let full = enforced(&by(["rlimits", "none", "none"]));
        for part in ["for each process", "--cpus is counted, but not enforced", "processes not"] {
            assert!(full.contains(part), "{full}");
        }
        assert_eq!(
            enforced(&by(["v1"; 3])),
            "--mem by v1; --cpus by v1; number of processes by v1"
        );
    }

    #[test]
    fn an_older_agent_says_what_it_said_before() {
        let note =
            |limits: &str| note(&NodeResources { limits: limits.to_owned(), ..Default::default() });
        assert_eq!(note(""), None);
        assert_eq!(note("none").as_deref(), Some("no limits"));
        assert_eq!(note("v1").as_deref(), Some("v1 limits"));
    }
}
