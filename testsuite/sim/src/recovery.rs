//! A pretend keeper that starts again: what its journal, the guard's file and the marks of
//! processes tell of the attempts that it had accepted (design 6).

use crate::journal::Record;
use crate::keeper::Stage;
use crate::process::Key;
use crate::world::{Event, World};
use proto::mutants::Mutant;
use proto::v1::{FinishFact, finish_fact};

impl World {
    pub(crate) fn keeper_start(&mut self, n: usize) {
        if self.nodes[n].keeper.up || !self.nodes[n].booted {
            return;
        }
        let keeper = &mut self.nodes[n].keeper;
        keeper.up = true;
        keeper.life += 1;
        let found: Vec<Key> = keeper.journal.live.keys().copied().collect();
        self.trace.note(self.now, || format!("keeper {n} starts"));
        for key in found {
            self.keeper_recovers(n, key);
        }
        self.keeper_turn(n);
    }

    /// What the guard's file and the marks of processes tell of an accepted attempt.
    fn keeper_recovers(&mut self, n: usize, key: Key) {
        let Some(process) = self.nodes[n].processes.get(&key).copied() else {
            let node = &self.nodes[n];
            let rebooted = node.keeper.journal.live.get(&key).is_some_and(|l| l.boot != node.boot);
            let end = if Mutant::ExitAssumedZero.active() {
                finish_fact::End::WaitStatus(0)
            } else if rebooted {
                finish_fact::End::NodeRebooted(true)
            } else {
                finish_fact::End::UnknownStatus(true)
            };
            let fact = FinishFact { started_unknown: true, ..self.finish_of(n, key, end) };
            self.nodes[n].keeper.pending.push(Record::Closed { key, fact });
            return;
        };
        if Mutant::SpawnedTwice.active() {
            let life = self.nodes[n].keeper.life;
            self.nodes[n].keeper.tasks.insert(key, Stage::Spawning { kill: None });
            return self.at(1, Event::Spawn { node: n, life, key });
        }
        self.note_start(n, key, process);
        let found = &self.truth.processes[process];
        if found.rebooted && Mutant::ExitAssumedZero.active() {
            let fact = self.finish_of(n, key, finish_fact::End::WaitStatus(0));
            self.nodes[n].keeper.pending.push(Record::Closed { key, fact });
        } else if found.rebooted {
            let fact = self.finish_of(n, key, finish_fact::End::NodeRebooted(true));
            self.nodes[n].keeper.pending.push(Record::Closed { key, fact });
        } else if found.runs() || Mutant::DeadClaimedRunning.active() {
            self.nodes[n].keeper.tasks.insert(key, Stage::Running { process });
        } else {
            self.nodes[n].keeper.tasks.insert(key, Stage::Closing { process });
            if !found.lives() {
                self.keeper_closes(n, process);
            }
        }
    }

    pub(crate) fn keeper_crash(&mut self, n: usize) {
        if !self.nodes[n].keeper.up {
            return;
        }
        self.trace.note(self.now, || format!("keeper {n} dies"));
        self.nodes[n].keeper.forget();
        self.keeper_link_breaks(n);
    }
}
