//! Orders from the client: each is idempotent, judged by (task, attempt, token), and noted in the
//! journal whatever becomes of it, so that the manifest's O means something.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use prost::Message;
use proto::AttemptId;
use proto::digest::Digest;
use proto::v1::journal_record::Kind;
use proto::v1::{
    Accepted, Acked, Closed, FinishFact, JobSpec, JournalRecord, KeeperHello, KeeperKill,
    KeeperLimit, KeeperManifest, KeeperRun, KillCause, LimitNoted, ManifestItem, OrderSeen, Phase,
    RefusedFact, StartFailure, finish_fact, keeper_request,
};
use rustix::process::Signal;

use super::book::{self, Key};
use super::cgroup::Slots;
use super::child::Step;
use super::commit::journal_failure;
use super::identity;
use super::journal::hex;
use super::lease::Lease;
use super::plan::{directory_gone, fault};
use super::run::{After, Health, Keeper, PARKED_MAX};
use super::spawn::{QUEUE_MAX, SpawnOrder};
use super::task::Task;
use super::wire::Reading;

/// Items of one manifest: with some 60 bytes each it stays within a message. What is over the limit
/// is ended, so a fact; and an order for it would only be noted.
const MANIFEST_MAX: usize = 40_000;

impl Keeper {
    /// Reads a connection and takes what it says.
    pub(super) fn serve(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let reading = connection.read();
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return };
            match connection.next_request() {
                Ok(Some(request)) => self.take_request(id, request),
                Ok(None) => break,
                Err(e) => {
                    self.log.say(format!("connection closed: {e}"));
                    self.connections.remove(&id);
                    return;
                }
            }
        }
        if reading == Reading::Closed {
            self.connections.remove(&id);
        }
    }

    fn take_request(&mut self, from: u64, request: keeper_request::Kind) {
        use keeper_request::Kind as Request;
        if let Request::Hello(hello) = &request {
            return self.hello(from, hello);
        }
        if !self.connections.get(&from).is_some_and(|c| c.greeted) {
            self.log.say("a request before Hello: connection closed");
            self.connections.remove(&from);
            return;
        }
        match request {
            Request::Hello(_) => {}
            Request::Run(run) => self.order_run(run),
            Request::Kill(kill) => self.order_kill(&kill),
            Request::Suspend(order) => {
                let key = Key::from_wire(order.attempt.as_ref(), order.token.as_ref());
                self.order_suspend(order.order_id, key, true);
            }
            Request::Resume(order) => {
                let key = Key::from_wire(order.attempt.as_ref(), order.token.as_ref());
                self.order_suspend(order.order_id, key, false);
            }
            Request::Limit(order) => self.order_limit(order),
            Request::Forget(order) => {
                self.note_order(order.order_id);
                if let Ok(attempt) = AttemptId::from_wire(order.attempt.as_ref()) {
                    self.volatile.retain(|key, _| key.attempt != attempt);
                }
            }
            // Only the newest counts: they do not pile up while the disk is full.
            Request::Ack(ack) => self.quiet = vec![record(Kind::Acked(Acked { to: ack.to }))],
            Request::Manifest(ask) => {
                self.after.push(After::Manifest { connection: from, nonce: ask.nonce });
            }
            Request::Renew(renew) => self.renew(renew.h_ms),
            Request::Ping(ping) => {
                self.after.push(After::Pong { connection: from, nonce: ping.nonce });
            }
            Request::Later(later) => self.tell_later(later.seq),
            Request::Resend(resend) => {
                if let Some(connection) = self.connections.get_mut(&from) {
                    connection.next_fact = resend.from.max(1);
                }
            }
            Request::Stop(stop) => self.stop(stop.kill),
            Request::Upgrade(upgrade) => self.order_upgrade(upgrade.exe),
        }
    }

    /// The newest client wins: the older one is closed, its unread orders with it, before the newer
    /// is answered.
    fn hello(&mut self, from: u64, hello: &KeeperHello) {
        let older: Vec<u64> = self
            .connections
            .iter()
            .filter(|(id, c)| c.greeted && **id != from)
            .map(|(id, _)| *id)
            .collect();
        for id in older {
            self.log.say("a newer client came: the older one is closed");
            self.connections.remove(&id);
        }
        // It found the directory under the name that it has now.
        self.look_at_directory();
        self.board.note_renamed(None);
        if let Some(connection) = self.connections.get_mut(&from) {
            connection.greeted = true;
        }
        self.after.push(After::Welcome { connection: from, resend_from: hello.resend_from });
    }

    pub(super) fn note_order(&mut self, order_id: u64) {
        self.batch.push(record(Kind::Order(OrderSeen { order_id })));
    }

    fn order_run(&mut self, run: KeeperRun) {
        let Some(key) = Key::from_wire(run.attempt.as_ref(), run.token.as_ref()) else {
            self.log.say(format!("order {} names no attempt", run.order_id));
            return self.note_order(run.order_id);
        };
        let known = self.journal.book().knows(key)
            || self.by_key.contains_key(&key)
            || self.volatile.contains_key(&key);
        if known {
            return self.note_order(run.order_id);
        }
        if let Health::Broken(_) = self.health {
            return self.refuse_unjournalled(key);
        }
        if let Some(failure) = run.refuse {
            return self.end_unstarted(key, run.order_id, failure);
        }
        self.look_for_room(identity::boottime_ms());
        match self.accept_run(key, &run) {
            Ok((spec, accepted)) => self.take_run(key, run, spec, accepted),
            Err(failure) => self.refuse(key, run.order_id, failure),
        }
    }

    /// The agent found that the user's own request cannot run here: that is its end, as a fact.
    fn end_unstarted(&mut self, key: Key, order_id: u64, failure: StartFailure) {
        self.note_order(order_id);
        let finish = Some(FinishFact {
            attempt: Some(key.attempt_ref()),
            token: Some(key.token()),
            end: Some(finish_fact::End::StartFailure(failure)),
            finish_wall_ms: identity::wall_ms(),
            ..FinishFact::default()
        });
        self.batch.push(record(Kind::Closed(Closed { finish })));
    }

    /// Everything that speaks against a run before it is taken.
    fn accept_run(
        &mut self,
        key: Key,
        run: &KeeperRun,
    ) -> Result<(JobSpec, Accepted), StartFailure> {
        if self.deleted {
            return Err(directory_gone(&self.dir.path));
        }
        if self.stopping {
            return Err(refusal("keeper", libc::ESHUTDOWN, "the keeper is stopping"));
        }
        if !self.has_room || matches!(self.health, Health::Full) {
            return Err(journal_failure(&io::Error::from_raw_os_error(libc::ENOSPC)));
        }
        if self.spawner.waiting() >= QUEUE_MAX {
            return Err(refusal("spawn-queue", libc::EAGAIN, "too many starts wait on this node"));
        }
        if let Some(other) = self.other_attempt(key) {
            let message = format!("{} still has processes on this node", other.attempt);
            return Err(refusal("previous-attempt", libc::EBUSY, &message));
        }
        self.lease_of(run)?;
        let spec = JobSpec::decode(run.spec.as_slice())
            .map_err(|e| refusal("order", libc::EBADMSG, &format!("no job specification: {e}")))?;
        let run_file = Path::new(OsStr::from_bytes(&run.run_file));
        if !run_file.is_absolute() || run_file.file_name().is_none() {
            return Err(refusal("order", libc::EBADMSG, "the run file is no absolute path"));
        }
        // DIR/runs/JOB/TASK.ATTEMPT: its agent may not know that DIR is elsewhere now.
        if let Some(data) = run_file.ancestors().nth(3).filter(|data| !self.dir.is_at(data)) {
            return Err(directory_gone(data));
        }
        self.accepted(key, run, &spec).map(|accepted| (spec, accepted))
    }

    /// Another attempt of the task that still has processes.
    fn other_attempt(&self, key: Key) -> Option<Key> {
        let bound =
            |attempt, generation| Key { attempt: AttemptId { attempt, ..key.attempt }, generation };
        let range = bound(0, 0)..=bound(u32::MAX, u64::MAX);
        self.by_key.range(range).map(|(other, _)| *other).find(|other| *other != key)
    }

    fn accepted(
        &self,
        key: Key,
        run: &KeeperRun,
        spec: &JobSpec,
    ) -> Result<Accepted, StartFailure> {
        let mut random = [0; 16];
        getrandom::fill(&mut random).map_err(|e| refusal("random", libc::EIO, &e.to_string()))?;
        let mark = format!(
            "{}.{}.{}.{}.{}",
            run.cluster_id,
            key.generation,
            key.attempt.task,
            key.attempt.attempt,
            hex(&random)
        );
        Ok(Accepted {
            attempt: run.attempt,
            token: run.token,
            order_id: run.order_id,
            mark: mark.into_bytes(),
            time_limit_ms: limit_in_force(run, spec),
            accepted_boottime_ms: identity::boottime_ms(),
            boot_id: self.boot_id.clone(),
            kill_grace_ms: spec.kill_grace_ms.unwrap_or(run.default_grace_ms),
            stdout_path: run.stdout_path.clone(),
            stderr_path: run.stderr_path.clone(),
            run_file: run.run_file.clone(),
            uid: run.uid,
            slot: None,
            slot_before: None,
            fence_after_ms: run.fence_after_ms,
            output_max_bytes: run.output_max_bytes,
            warn: spec.warn,
            script: spec.script.is_some(),
            gpus: run.gpus.clone(),
        })
    }

    fn take_run(&mut self, key: Key, run: KeeperRun, spec: JobSpec, mut accepted: Accepted) {
        let slot = match self.slots.as_mut().map(Slots::take).transpose() {
            Ok(slot) => slot,
            Err(e) => return self.refuse(key, run.order_id, fault(Step::Cgroup, &e, b"")),
        };
        accepted.slot = slot.as_ref().map(|slot| slot.path().as_os_str().as_bytes().to_vec());
        accepted.slot_before = slot.as_ref().map(|slot| slot.counts());
        let id = self.next_id;
        self.next_id += 1;
        let mark = accepted.mark.clone();
        let mut task = Task::new(accepted.clone(), key, slot.clone());
        task.lease = run.fence_after_ms.zip(run.h_ms).map(|(after, h)| Lease::new(h, after));
        self.fences_stale |= task.lease.is_some();
        self.tasks.insert(id, task);
        self.by_key.insert(key, id);
        self.batch.push(record(Kind::Accepted(accepted)));
        let order = SpawnOrder { id, run, spec, mark, slot };
        self.after.push(After::Spawn(id, Box::new(order)));
        self.rearm(id);
    }

    fn refuse(&mut self, key: Key, order_id: u64, failure: StartFailure) {
        if self.batch.len() >= PARKED_MAX {
            // Not even refused: the leader sees it missing in the manifest and orders it again.
            return;
        }
        self.log.say(format!("{} refused: {}", key.attempt, failure.message));
        self.note_order(order_id);
        self.batch.push(record(Kind::Refused(RefusedFact {
            attempt: Some(key.attempt_ref()),
            token: Some(key.token()),
            failure: Some(failure),
        })));
    }

    fn order_kill(&mut self, order: &KeeperKill) {
        self.note_order(order.order_id);
        let key = Key::from_wire(order.attempt.as_ref(), order.token.as_ref());
        // Unknown here: it never came, or it is over. Nothing to do is not an error.
        let Some(id) = key.and_then(|key| self.by_key.get(&key).copied()) else { return };
        if let Some(number) = order.signal {
            let suspended = self.tasks.get(&id).is_some_and(|task| task.suspend_wanted);
            return match Signal::from_named_raw(number as i32) {
                // It would go on behind the back of whoever suspended it.
                Some(Signal::CONT) if suspended => {
                    self.log.say(format!("order {}: suspended, so no SIGCONT", order.order_id));
                }
                Some(signal) => {
                    self.signal_tree(id, &[signal]);
                }
                None => self.log.say(format!("order {}: no signal {number}", order.order_id)),
            };
        }
        let own = self.tasks.get(&id).map_or(0, |task| task.accepted.kill_grace_ms);
        let grace_ms = if order.grace_ms > 0 { order.grace_ms } else { own };
        let cause = KillCause::try_from(order.cause).unwrap_or_default();
        let cause = if cause == KillCause::Unspecified { KillCause::Cancel } else { cause };
        self.request_kill(id, cause, grace_ms);
    }

    fn order_suspend(&mut self, order_id: u64, key: Option<Key>, suspend: bool) {
        self.note_order(order_id);
        let Some(id) = key.and_then(|key| self.by_key.get(&key).copied()) else { return };
        self.request_pace(id, suspend);
    }

    /// Its limit is another one now, unless it is being killed for something already.
    fn order_limit(&mut self, order: KeeperLimit) {
        let KeeperLimit { order_id, attempt, token, time_limit_ms } = order;
        let note = LimitNoted { order_id, attempt, token, time_limit_ms };
        self.batch.push(record(Kind::Limit(note)));
        let key = Key::from_wire(attempt.as_ref(), token.as_ref());
        let Some(id) = key.and_then(|key| self.by_key.get(&key).copied()) else { return };
        if let Some(task) = self.tasks.get_mut(&id) {
            task.accepted.time_limit_ms = time_limit_ms;
        }
        self.rearm(id);
    }

    /// Journals a fact again behind the others, for the controller could not take it yet.
    fn tell_later(&mut self, seq: u64) {
        match self.journal.fact_at(seq).and_then(book::record_of) {
            // Another one says what is true now.
            Some(again) if self.is_overtaken(&again) => {}
            Some(again) => self.batch.push(again),
            None => self.log.say(format!("asked to tell fact {seq} later, which is none")),
        }
    }

    /// A suspended or resumed fact that does not hold any more.
    fn is_overtaken(&self, again: &JournalRecord) -> bool {
        let (attempt, token, suspended) = match &again.kind {
            Some(Kind::Suspended(f)) => (f.attempt.as_ref(), f.token.as_ref(), true),
            Some(Kind::Resumed(f)) => (f.attempt.as_ref(), f.token.as_ref(), false),
            _ => return false,
        };
        let id = Key::from_wire(attempt, token).and_then(|key| self.by_key.get(&key));
        id.and_then(|id| self.tasks.get(id)).is_none_or(|task| task.told_suspended != suspended)
    }

    fn stop(&mut self, kill: bool) {
        self.stopping = true;
        if kill {
            self.kill_all(KillCause::Cancel);
        }
    }

    /// Each with its own grace.
    pub(super) fn kill_all(&mut self, cause: KillCause) {
        let ids: Vec<(u64, u64)> =
            self.tasks.iter().map(|(id, task)| (*id, task.accepted.kill_grace_ms)).collect();
        for (id, grace_ms) in ids {
            self.request_kill(id, cause, grace_ms);
        }
    }

    /// Every attempt that is not over for the controller, at exactly this point of the journal.
    pub(super) fn manifest(&self, nonce: u64) -> KeeperManifest {
        let book = self.journal.book();
        let live = self.tasks.values().filter(|task| !task.is_told()).map(|task| {
            let start = task.start.as_ref();
            ManifestItem {
                attempt: Some(task.key.attempt_ref()),
                token: Some(task.key.token()),
                phase: task.phase() as i32,
                pid: start.map_or(0, |s| s.pid),
                pid_start_ticks: start.map_or(0, |s| s.pid_start_ticks),
                start_wall_ms: start.map_or(0, |s| s.start_wall_ms),
                gpus: task.accepted.gpus.clone(),
            }
        });
        let over = book.ended().chain(self.volatile.keys().copied()).chain(parked(&self.batch));
        let ended = over.map(|key| ManifestItem {
            attempt: Some(key.attempt_ref()),
            token: Some(key.token()),
            phase: Phase::Ended as i32,
            ..ManifestItem::default()
        });
        KeeperManifest {
            nonce,
            items: live.chain(ended).take(MANIFEST_MAX).collect(),
            last_seq: book.last_fact(),
            last_order: book.last_order(),
        }
    }

    pub(super) fn digest(&self) -> u64 {
        let live = self.tasks.values().map(|task| (task.key.attempt, task.phase()));
        live.collect::<Digest>().value()
    }
}

/// Attempts whose end waits for room in the journal: over, and not yet a fact. A manifest without
/// them would say that they never came.
fn parked(batch: &[JournalRecord]) -> impl Iterator<Item = Key> {
    batch.iter().filter_map(|record| match record.kind.as_ref()? {
        Kind::Closed(Closed { finish: Some(finish) }) => {
            Key::from_wire(finish.attempt.as_ref(), finish.token.as_ref())
        }
        Kind::Refused(refused) => Key::from_wire(refused.attempt.as_ref(), refused.token.as_ref()),
        _ => None,
    })
}

/// The leader knows what was changed since the submit; an older one tells nothing of it.
fn limit_in_force(run: &KeeperRun, spec: &JobSpec) -> Option<u64> {
    run.time_limit_ms.or(spec.time_limit_ms).filter(|ms| *ms > 0)
}

/// A refusal before the run was taken: never the job's fault.
pub(super) fn refusal(step: &str, errno: i32, message: &str) -> StartFailure {
    StartFailure {
        step: step.into(),
        errno,
        message: format!("{step}: {message}"),
        node_fault: true,
        ..StartFailure::default()
    }
}

pub(super) fn record(kind: Kind) -> JournalRecord {
    JournalRecord { kind: Some(kind) }
}
