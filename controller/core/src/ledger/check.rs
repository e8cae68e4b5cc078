//! The invariants, by name. Everything derived is computed again from first principles.

use super::book::Ledger;
use super::cause::CAUSES_MAX;
use super::deferred::About;
use super::index::Indexes;
use super::job::Job;
use super::policy;
use super::ranges::Ranges;
use super::settle::NODE_FAULTS_MAX;
use super::state::{Kind, State};
use super::table::Slot;
use super::waits::{Dependants, Waiter};
use proto::{JobId, OrderId};
use std::collections::{BTreeMap, BTreeSet};

impl Ledger {
    /// Checks every invariant.
    ///
    /// # Panics
    /// With the name of the first one that is broken.
    pub fn check(&self) {
        assert_eq!(
            Indexes::of(&self.jobs, &self.leftovers, &self.policy),
            self.index,
            "the indexes are what the jobs make them"
        );
        self.check_content();
        assert!(self.settings.bounded(), "requests of settings are bounded");
        self.check_waits();
        self.check_deferred();
        self.check_given();
        let mut newest_led = 0;
        for (id, slot) in self.jobs.slots() {
            assert!(self.gave(id), "job {id} has an id that was given");
            let (submit_led, by) = match slot {
                Slot::Job(job) => {
                    assert_eq!(job.id, id, "job {id} stands under its id");
                    self.check_job(job);
                    assert_eq!(job.waits.is_some(), job.kind() == Kind::Blocked, "job {id}: waits");
                    (job.submit_led_ms, &job.by)
                }
                Slot::Array(array) => {
                    assert_eq!(array.id(), id, "array {id} stands under its id");
                    array.check();
                    array.records().for_each(|job| self.check_job(job));
                    let waits = array.tally().of(Kind::Blocked) > 0;
                    assert_eq!(array.head().waits.is_some(), waits, "array {id}: waits");
                    assert!(array.records().all(|job| job.waits.is_none()), "array {id}: once");
                    let limit = array.limit().map_or(u64::MAX, u64::from);
                    // A limit that was lowered, or what a restore adopted, is above it for a while.
                    assert!(limit > 0, "array {id}: its limit lets something run");
                    (array.head().submit_led_ms, &array.head().by)
                }
                Slot::Request(old) => (old.submit_led_ms, &old.by),
                Slot::Empty => continue,
            };
            assert!(submit_led >= newest_led, "led time grows with the id, job {id}");
            newest_led = submit_led;
            let user = self.users.number(by.number);
            assert_eq!(user.as_ref(), Some(by), "job {id} belongs to a known user");
        }
        assert!(newest_led <= self.led_ms, "nothing is newer than the newest entry");
        assert!(self.term_led_ms <= self.led_ms, "the term began in the past");
        for (id, agent) in &self.agents {
            assert_eq!(*id, agent.id, "an agent stands under its id");
            assert_eq!(*agent.journal, *agent.join.journal_id, "{id}: its journal is the join's");
            assert!(agent.incarnation() > 0, "{id}: sessions count from 1");
            assert_eq!(*agent.boot, *agent.join.boot_id, "{id}: its boot is the join's");
            assert!(agent.confirms.bounded(), "{id}: requests are bounded");
        }
    }

    /// A gpu is given once, and what is over and binds nothing is not kept. Of what a restored ledger adopted
    /// (order 0) only its node knows what it has.
    fn check_given(&self) {
        assert_eq!(*self.offers, policy::offers(&self.policy), "what the cluster offers");
        for (id, left) in self.leftovers() {
            assert!(!left.empty(), "{id}: what is left over binds something");
            assert!(left.since_led_ms <= self.led_ms, "{id}: over in the past");
            assert!(!self.rebooted_since(&left.grant), "{id}: a reboot is a proof");
            let live = self.job(id.task).filter(|job| job.attempt == id.attempt);
            let live = live.and_then(|job| job.state.binding());
            assert!(live.is_none(), "{id}: it is over");
        }
        for agent in self.agents.keys() {
            let live = self.held_by(agent).chain(self.waiting_on(agent));
            let live = live.filter_map(|job| job.state.binding());
            let left = self.leftovers_of(agent).filter(|(_, left)| left.on_node().is_some());
            let grants = live.chain(left.map(|(_, left)| &left.grant));
            let own = grants.filter(|grant| grant.order != OrderId(0));
            let mut given = BTreeSet::new();
            for index in own.flat_map(|grant| grant.given.iter().flat_map(|given| &given.gpus)) {
                assert!(given.insert(index), "{agent}: gpu {index} is given once");
            }
        }
    }

    fn check_deferred(&self) {
        self.deferred.check(self.led_ms);
        assert!(self.drainable.is_empty(), "what waited for a change was looked at in its step");
        for entry in self.deferred.iter() {
            let about = About::of(&entry.fact);
            let waits = about.is_some_and(|about| self.still_waits(&about));
            assert!(waits, "a deferred fact waits for what is not here: {entry:?}");
            assert!(self.agents.contains_key(&entry.agent), "a deferred fact has a known agent");
            assert!(entry.position <= self.applied, "a deferred fact comes from the past");
        }
    }

    /// Nothing that is decided is forgotten: it is either told, or among the news.
    fn check_waits(&self) {
        let again = Dependants::of(&self.jobs);
        assert_eq!(again, self.waits, "who waits for what is what the jobs make it");
        let told = |job| !self.news.iter().any(|news| news.job == job);
        for job in self.waits.targets() {
            assert!(self.entry(job).is_some(), "job {job} is waited for and was evicted");
            if !told(job) {
                continue;
            }
            let tasks = self.array(job).map(|array| array.numbers()).unwrap_or_default();
            let decided = self.waits.decided(job, &self.progress(job), &tasks);
            assert_eq!(decided, None, "job {job}: who waits for it was not told");
            let mut last = (JobId(0), 0);
            while let Some(waiter) = self.waits.next_each(job, last) {
                last = waiter;
                self.check_each(waiter, job);
            }
        }
    }

    fn check_each(&self, (id, _): Waiter, other: JobId) {
        let (Some(array), Some(other)) = (self.array(id), self.array(other)) else { return };
        assert!(!other.terminal(), "array {id} waits for tasks of one that has ended");
        let all = array.numbers();
        for (stretches, job) in other.records_in(&all).filter(|(_, job)| job.kind() == Kind::Exit) {
            let numbers = Ranges::of(stretches);
            let mut waiting = array.records_in(&numbers).map(|(_, job)| job.kind());
            assert!(waiting.all(|kind| kind != Kind::Blocked), "array {id}: {}", job.id);
        }
    }

    fn check_content(&self) {
        let (mut specs, mut blobs) = (BTreeMap::new(), BTreeMap::new());
        for (_, slot) in self.jobs.slots() {
            let job = match slot {
                Slot::Job(job) => job,
                Slot::Array(array) => array.head(),
                Slot::Request(_) | Slot::Empty => continue,
            };
            *specs.entry(job.spec.hash).or_insert(0) += 1;
            *blobs.entry(job.env.hash).or_insert(0) += 1;
            if let Some(stdin) = &job.stdin {
                *blobs.entry(stdin.hash).or_insert(0) += 1;
            }
        }
        assert_eq!(self.specs.uses(), specs, "each specification counts its jobs");
        assert_eq!(self.blobs.uses(), blobs, "each blob counts its jobs");
    }

    fn check_job(&self, job: &Job) {
        let id = job.id;
        let eligible = job.submit_led_ms..=self.led_ms;
        assert!(
            eligible.contains(&job.eligible_led_ms),
            "job {id}: eligible since its submit, or later"
        );
        assert!(job.attempt >= 1, "job {id}: attempts count from 1");
        assert!(job.node_faults <= NODE_FAULTS_MAX, "job {id}: node faults are limited");
        // More where a restored ledger adopted one of which it had not seen the assignment.
        let closed = job.node_faults + job.retried;
        assert!(job.attempt > closed, "job {id}: each node fault and retry opens an attempt");
        assert!(job.retried <= job.retries(), "job {id}: retries are limited");
        assert!(job.edits.as_ref().is_none_or(|edits| edits.bounded()), "job {id}: edits");
        assert!(job.causes.len() <= CAUSES_MAX, "job {id}: causes are limited");
        let positions = job.causes.iter().map(|cause| cause.position);
        assert!(positions.is_sorted(), "job {id}: causes stand in log order");
        assert!(job.changed_position <= self.applied, "job {id}: nothing comes from the future");
        if let Some(grant) = job.state.live_grant() {
            let agent = self.agents.get(&grant.agent);
            let incarnation = agent.map(|agent| agent.incarnation());
            assert!(incarnation >= Some(grant.incarnation), "job {id}: its session has joined");
        }
        match &job.state {
            State::Waiting(fence) => {
                assert_eq!(fence.attempt + 1, job.attempt, "job {id}: the last attempt is closed");
                assert!(fence.since_led_ms <= self.led_ms, "job {id}: closed in the past");
                assert!(job.intents.is_none(), "job {id}: nothing is asked of a closed attempt");
                assert!(!self.rebooted_since(&fence.grant), "job {id}: a reboot is a proof");
            }
            State::Queued | State::Held | State::Blocked { .. } => {
                assert!(job.intents.is_none(), "job {id}: nothing is asked of a job that waits");
            }
            State::Unknown(unknown) => {
                assert!(unknown.since_led_ms <= self.led_ms, "job {id}: unknown since the past");
            }
            State::Done(ended) | State::Exit(ended) => {
                assert!(ended.finish_wall_ms > 0 || self.wall_ms == 0, "job {id}: finish time");
                assert!(ended.ended_led_ms <= self.led_ms, "job {id}: ended in the past");
                let late_allowed = ended.late.is_none() || ended.reason.without_word();
                assert!(late_allowed, "job {id}: late only where nobody had told the end");
                let invented = ended.reason.without_word() && ended.status.is_some();
                assert!(!invented, "job {id}: no code is invented (P3)");
            }
            State::Dispatched(_) | State::Running(_) | State::Suspended(_) => {}
        }
    }
}
