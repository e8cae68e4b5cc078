//! The legal moves of a task. `docs/job-states.md` says the same for people; a test walks every
//! state by every cause and compares all three.

use super::state::Kind::{
    self, Blocked, Dispatched, Done, Exit, Held, Queued, Running, Suspended, Unknown, Waiting,
};

/// From a state, by a cause, to one of these states. What is not in [`MOVES`] moves nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Move {
    /// The state before.
    pub from: Kind,
    /// The cause, as the test and the document name it.
    pub by: &'static str,
    /// The states it may lead to.
    pub to: &'static [Kind],
}

const fn go(from: Kind, by: &'static str, to: &'static [Kind]) -> Move {
    Move { from, by, to }
}

/// Every move there is. `Done` and `Exit` have none: terminal is absorbing (P5).
pub const MOVES: &[Move] = &[
    go(Queued, "assign", &[Dispatched]),
    go(Queued, "hold", &[Held]),
    go(Queued, "new generation", &[Held]),
    go(Queued, "cancel", &[Exit]),
    go(Held, "release", &[Queued]),
    go(Held, "cancel", &[Exit]),
    go(Blocked, "dependency met", &[Queued, Held, Blocked]),
    go(Blocked, "dependency failed", &[Exit]),
    go(Blocked, "begin reached", &[Queued, Held, Blocked]),
    go(Blocked, "cancel", &[Exit]),
    go(Waiting, "proof: finish", &[Queued, Held]),
    go(Waiting, "proof: reboot", &[Queued, Held]),
    go(Waiting, "proof: confirmed", &[Queued, Held]),
    go(Waiting, "proof: lease", &[Queued, Held]),
    go(Waiting, "manifest: missing", &[Queued, Held]),
    go(Waiting, "manifest: node reset", &[Queued, Held]),
    go(Waiting, "cancel", &[Exit]),
    go(Dispatched, "start", &[Running]),
    go(Dispatched, "finish", &[Queued, Done, Exit]),
    go(Dispatched, "node fault", &[Queued, Exit]),
    go(Dispatched, "order refused", &[Queued, Exit]),
    go(Dispatched, "agent died", &[Unknown]),
    go(Dispatched, "silence", &[Unknown]),
    go(Dispatched, "new term", &[Unknown]),
    go(Dispatched, "manifest: running", &[Running]),
    go(Dispatched, "manifest: suspended", &[Suspended]),
    go(Dispatched, "manifest: missing", &[Dispatched, Exit]),
    go(Dispatched, "manifest: journal lost", &[Waiting, Exit]),
    go(Dispatched, "manifest: node reset", &[Queued, Exit]),
    go(Running, "finish", &[Queued, Done, Exit]),
    go(Running, "node fault", &[Queued, Exit]),
    go(Running, "suspended", &[Suspended]),
    go(Running, "agent died", &[Waiting, Unknown, Exit]),
    go(Running, "silence", &[Unknown]),
    go(Running, "new term", &[Unknown]),
    go(Running, "manifest: suspended", &[Suspended]),
    go(Running, "manifest: missing", &[Queued, Exit]),
    go(Running, "manifest: journal lost", &[Waiting, Exit]),
    go(Running, "manifest: node reset", &[Queued, Exit]),
    go(Suspended, "finish", &[Queued, Done, Exit]),
    go(Suspended, "node fault", &[Queued, Exit]),
    go(Suspended, "resumed", &[Running]),
    go(Suspended, "agent died", &[Waiting, Unknown, Exit]),
    go(Suspended, "silence", &[Unknown]),
    go(Suspended, "new term", &[Unknown]),
    go(Suspended, "manifest: running", &[Running]),
    go(Suspended, "manifest: missing", &[Queued, Exit]),
    go(Suspended, "manifest: journal lost", &[Waiting, Exit]),
    go(Suspended, "manifest: node reset", &[Queued, Exit]),
    go(Unknown, "start", &[Running, Unknown]),
    go(Unknown, "finish", &[Queued, Done, Exit]),
    go(Unknown, "node fault", &[Queued, Exit]),
    go(Unknown, "order refused", &[Queued, Unknown, Exit]),
    go(Unknown, "manifest: accepted", &[Dispatched, Running, Suspended]),
    go(Unknown, "manifest: running", &[Running]),
    go(Unknown, "manifest: suspended", &[Suspended]),
    go(Unknown, "manifest: missing", &[Queued, Dispatched, Exit]),
    go(Unknown, "manifest: journal lost", &[Queued, Waiting, Exit]),
    go(Unknown, "manifest: node reset", &[Queued, Exit]),
    go(Unknown, "time to live over", &[Queued, Waiting, Exit]),
];

/// Whether some move leads from one to the other; staying is always legal.
pub(super) fn legal(from: Kind, to: Kind) -> bool {
    from == to || MOVES.iter().any(|m| m.from == from && m.to.contains(&to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_leads_out_of_a_terminal_state() {
        assert!(MOVES.iter().all(|m| !m.from.terminal()));
        assert!(!legal(Done, Exit) && !legal(Exit, Queued) && legal(Exit, Exit));
    }

    #[test]
    fn the_document_says_what_the_table_says() {
        let document = include_str!("../../../../docs/job-states.md");
        let rows: Vec<Vec<String>> = document
            .lines()
            .filter_map(|line| line.strip_prefix("| `")?.strip_suffix("` |"))
            .map(|row| row.split("` | `").map(str::to_owned).collect())
            .filter(|cells: &Vec<String>| cells.len() == 3)
            .collect();
        let table: Vec<Vec<String>> = MOVES
            .iter()
            .map(|m| {
                let to: Vec<String> = m.to.iter().map(|kind| format!("{kind:?}")).collect();
                vec![format!("{:?}", m.from), m.by.to_owned(), to.join("`, `")]
            })
            .collect();
        assert_eq!(rows, table);
        for kind in Kind::ALL {
            let name = kind.name();
            let row = format!("| `{kind:?}` | `{name}` |");
            assert!(document.contains(&row), "docs/job-states.md lacks {row}");
        }
    }
}
