//! Which of the nodes that could take a task gets it. Each score is one function in one list.

use super::feasible::feasible;
use super::reserve::Reservations;
use super::view::{Free, View};
use crate::ledger::{Ask, Line};
use proto::JobId;

type Score = fn(&Free, &Ask) -> u64;

/// Lower is better, the first counts most: fill what is nearly full, so that large tasks find
/// room; nodes with GPUs last for those that ask for none.
const SCORES: [Score; 3] = [gpus_left, cpus_left, memory_left];

/// The best node's place in the view; `None`: none takes it.
pub(super) fn choose(
    line: &Line,
    id: JobId,
    view: &View<'_>,
    reservations: &Reservations<'_>,
) -> Option<usize> {
    let ask = &line.ask;
    view.nodes
        .iter()
        .enumerate()
        .filter(|(_, (agent, _))| !view.taken_on(id, agent))
        .filter(|(_, (agent, free))| feasible(ask, agent, free, view.led_ms).is_none())
        .filter(|(number, _)| reservations.allow(*number, line, view))
        .min_by_key(|(_, (_, free))| SCORES.map(|score| score(free, ask)))
        .map(|(number, _)| number)
}

fn gpus_left(free: &Free, ask: &Ask) -> u64 {
    free.gpus.saturating_sub(u64::from(ask.gpus))
}

fn cpus_left(free: &Free, ask: &Ask) -> u64 {
    free.cpus.saturating_sub(u64::from(ask.cpus))
}

fn memory_left(free: &Free, ask: &Ask) -> u64 {
    free.mem_bytes.saturating_sub(ask.mem_bytes)
}
