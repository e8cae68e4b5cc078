//! Tick: settles what its deadline has reached, at most 1,000 things at a time. Deadlines are led
//! time: a clock that jumps, or a controller that was down, settles nothing (design 2).

use super::book::Ledger;
use super::cause::What;
use super::exit::ExitReason;
use super::outcome::Outcome;
use super::request::REQUEST_WINDOW_MS;
use super::settle::Told;
use proto::TaskId;
use proto::mutants::Mutant;

/// Things one Tick settles: an entry stays short, another Tick follows at once.
pub(super) const SETTLED_MAX: u32 = 1000;

impl Ledger {
    pub(super) fn tick(&mut self) -> Outcome {
        let mut settled = self.tell(SETTLED_MAX);
        while settled < SETTLED_MAX && self.settle_one() {
            settled += 1;
            settled += self.tell(SETTLED_MAX - settled);
        }
        Outcome::Ticked { settled, more: self.anything_due() }
    }

    /// Settles the first thing that is due; false if nothing is.
    fn settle_one(&mut self) -> bool {
        if let Some((deadline, id)) = self.next_loss()
            && deadline <= self.led_ms
        {
            let who = self.by_leader();
            self.over(id, false, ExitReason::Lost, Told::default(), who);
            return true;
        }
        if let Some((deadline, id)) = self.next_overdue()
            && deadline <= self.led_ms
        {
            self.end_overdue(id);
            return true;
        }
        if let Some((begin, id)) = self.waits.next_begin()
            && begin <= self.wall_ms
        {
            self.begin(id);
            return true;
        }
        if self.next_retention().is_some_and(|deadline| deadline <= self.led_ms) {
            return self.evict_oldest();
        }
        if self.next_forgetting().is_some_and(|deadline| deadline <= self.led_ms) {
            return self.forget_oldest();
        }
        if self.next_expiry().is_some_and(|deadline| deadline <= self.led_ms) {
            self.deferred.expire_oldest();
            self.counters.expired += 1;
            return true;
        }
        false
    }

    fn anything_due(&self) -> bool {
        let begins = self.next_begin_wall().is_some_and(|begin| begin <= self.wall_ms);
        begins
            || [
                self.next_telling(),
                self.next_loss().map(|(deadline, _)| deadline),
                self.next_overdue().map(|(deadline, _)| deadline),
                self.next_retention(),
                self.next_forgetting(),
                self.next_expiry(),
            ]
            .into_iter()
            .flatten()
            .any(|deadline| deadline <= self.led_ms)
    }

    /// The earliest led time, in ms, at which a Tick would settle something or a node that was
    /// kept out may be tried again. It may lie in the past: then a Tick is due now.
    pub fn next_deadline_led(&self) -> Option<u64> {
        let kept_out = self
            .agents
            .values()
            .filter_map(|agent| agent.kept_out(self.led_ms))
            .map(|fault| fault.until_led_ms);
        [
            self.next_telling(),
            self.next_loss().map(|(deadline, _)| deadline),
            self.next_overdue().map(|(deadline, _)| deadline),
            self.next_retention(),
            self.next_forgetting(),
            self.next_expiry(),
        ]
        .into_iter()
        .flatten()
        .chain(kept_out)
        .min()
    }

    /// The earliest begin time that a job waits for, UTC ms: a Tick from then on lets it start. It is no
    /// deadline: it goes by the clock on the wall (design 2, Two times).
    pub fn next_begin_wall(&self) -> Option<u64> {
        self.waits.next_begin().map(|(begin, _)| begin)
    }

    /// News of which not all were told is due at once.
    fn next_telling(&self) -> Option<u64> {
        (!self.news.is_empty()).then_some(self.led_ms)
    }

    /// When an unknown task that is so since the given led time ends as `lost`, in led ms.
    /// In the first `heartbeat_timeout` of a term the time to live is doubled, for the agents to
    /// come back; an election every second still cannot hold a task for ever.
    pub fn lost_at_led(&self, since_led_ms: u64) -> u64 {
        let ttl = self.policy.transient_job_timeout_ms;
        let doubled = since_led_ms.saturating_add(ttl.saturating_mul(2));
        let settled_in = self.term_led_ms.saturating_add(self.policy.heartbeat_timeout_ms);
        since_led_ms.saturating_add(ttl).max(settled_in).min(doubled)
    }

    /// Since when the longest unknown task is so, in led ms.
    pub fn oldest_unknown_led(&self) -> Option<u64> {
        self.index.unknown.first().map(|(since, _)| *since)
    }

    fn next_loss(&self) -> Option<(u64, TaskId)> {
        let (since, id) =
            self.index.unknown.first().filter(|_| !Mutant::UnknownNeverSettled.active())?;
        Some((self.lost_at_led(*since), *id))
    }

    /// The keeper ends what reaches its limit. What it should have ended and told by now the controller
    /// orders to be ended (design 3).
    fn next_overdue(&self) -> Option<(u64, TaskId)> {
        let (due, id) = self.index.overdue.first()?;
        Some((due.saturating_add(self.policy.heartbeat_timeout_ms), *id))
    }

    fn end_overdue(&mut self, id: TaskId) {
        let order = self.order;
        let limit_ms = self.job(id).and_then(|job| job.time_limit_ms()).unwrap_or_default();
        let cause = self.cause(self.by_leader(), What::Overdue { limit_ms });
        self.update(id, |job| {
            job.intents_mut().overdue = Some(order);
            job.note(cause);
        });
    }

    fn next_retention(&self) -> Option<u64> {
        let (ended, _, _) = self.index.ended.first()?;
        let old = ended.saturating_add(self.policy.job_ttl_ms);
        Some(self.limit_evicts_at().map_or(old, |due| due.min(old)))
    }

    fn next_forgetting(&self) -> Option<u64> {
        let id = self.index.remembered.first()?;
        let old = self.jobs.remembered(*id)?;
        Some(old.submit_led_ms.saturating_add(REQUEST_WINDOW_MS))
    }

    /// When the oldest fact in the registry becomes an orphan. It loses nothing by that, so this
    /// time to live is never doubled.
    fn next_expiry(&self) -> Option<u64> {
        Some(self.deferred.oldest()?.saturating_add(self.policy.unknown_finish_ttl_ms))
    }
}
