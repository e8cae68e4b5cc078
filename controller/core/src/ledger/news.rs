//! Who waits is told: each start and end that somebody waits for is news, and news takes effect in the step
//! that made it. What is beyond a bound is kept, in log order, and told by Ticks that follow at once.

use super::book::Ledger;
use super::cause::What;
use super::depend::{Stage, Verdict};
use super::exit::ExitReason;
use super::job::Job;
use super::ranges::Ranges;
use super::settle::Told;
use super::state::{Kind, State};
use super::table::Entry;
use super::targets::ranges;
use super::waits::Waiter;
use proto::{JobId, TaskId, v1};
use std::sync::Arc;

/// A job, or tasks of an array, started or ended, and not all who wait for it were told.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct News {
    /// What is waited for.
    pub job: JobId,
    /// Which tasks of it; none of a plain job.
    pub tasks: Ranges,
    /// The last of the arrays that wait task by task that was told.
    pub told: Waiter,
}

impl News {
    pub fn freeze(&self) -> v1::ImageNews {
        let (array, index) = (self.told.0.0, self.told.1);
        v1::ImageNews { job: self.job.0, tasks: self.tasks.to_wire(), array, index }
    }

    pub fn thaw(image: &v1::ImageNews) -> Result<News, String> {
        let (job, tasks) = (JobId(image.job), ranges(&image.tasks)?);
        Ok(News { job, tasks, told: (JobId(image.array), image.index) })
    }
}

impl Ledger {
    /// A task has moved. That is news only if it got further and somebody waits for that: a job that is
    /// touched a hundred times starts nothing a second time.
    pub(super) fn note_stage(&mut self, id: TaskId, before: Stage, after: Stage) {
        if before == after || !self.waits.watches(id.job) {
            return;
        }
        if let Some(number) = id.index {
            self.waits.moved(id.job, number, before, after);
        }
        let tasks = Ranges::of(id.index.map(|number| (number, number)));
        self.news.push_back(News { job: id.job, tasks, told: Waiter::default() });
    }

    /// The same of many tasks of an array.
    pub(super) fn note_stages(&mut self, id: JobId, which: Option<&Ranges>) {
        if !self.waits.watches(id) {
            return;
        }
        let Some(array) = self.jobs.array(id) else { return };
        self.waits.recount(array);
        let tasks = which.cloned().unwrap_or_else(|| array.numbers());
        self.news.push_back(News { job: id, tasks, told: Waiter::default() });
    }

    /// Nothing of a job waits for others any more.
    pub(super) fn stop_waiting(&mut self, id: JobId) {
        let blocked = match self.jobs.entry(id) {
            Some(Entry::Job(job)) if job.waits.is_some() => job.kind() == Kind::Blocked,
            Some(Entry::Array(array)) if array.head().waits.is_some() => {
                array.tally().of(Kind::Blocked) > 0
            }
            _ => return,
        };
        if !blocked
            && let Some(head) = self.jobs.head_mut(id)
            && let Some(waits) = head.waits.take()
        {
            self.waits.forget(id, head.dependencies(), &waits);
        }
    }

    /// Tells who waits, at most so many of them; gives how many it told.
    pub(super) fn tell(&mut self, most: u32) -> u32 {
        let mut told = 0;
        while let Some(news) = self.news.front().cloned() {
            let progress = self.progress(news.job);
            while told < most
                && let Some((waiter, verdict)) =
                    self.waits.decided(news.job, &progress, &news.tasks)
            {
                self.settle_dependency(waiter, verdict);
                told += 1;
            }
            let mut last = news.told;
            while told < most
                && let Some(waiter) = self.waits.next_each(news.job, last)
            {
                self.settle_each(waiter, &news.tasks);
                (last, told) = (waiter, told + 1);
            }
            if told >= most {
                if let Some(front) = self.news.front_mut() {
                    front.told = last;
                }
                break;
            }
            self.news.pop_front();
        }
        told
    }

    fn dependency(&self, (id, index): Waiter) -> Option<v1::Dependency> {
        self.entry(id)?.head().dependencies().get(index as usize).cloned()
    }

    fn settle_dependency(&mut self, waiter: Waiter, verdict: Verdict) {
        let Some(dep) = self.dependency(waiter) else { return };
        match verdict {
            Verdict::Never => self.fail_waiting(waiter.0, None, self.failure(&dep)),
            _ => self.meet(waiter, &dep),
        }
    }

    /// A dependency is met for all tasks of the job that waits.
    fn meet(&mut self, (id, index): Waiter, dep: &v1::Dependency) {
        let what = What::DependencyMet { index };
        let cause = self.cause(self.by_leader(), what.clone());
        self.waits.close((id, index), dep);
        if let Some(head) = self.jobs.head_mut(id) {
            if let Some(waits) = &mut head.waits {
                waits.open.remove(index);
                waits.each.remove(index);
            }
            head.note(cause);
        }
        self.touched(id);
        self.release_ready(id, None, what);
    }

    /// A dependency can no longer be met: the job, or these tasks of the array, end at once.
    pub(super) fn fail_waiting(
        &mut self,
        id: JobId,
        which: Option<&Ranges>,
        failure: v1::DependencyFailure,
    ) {
        let reason = ExitReason::DependencyFailed(failure);
        let ending = self.ending(false, reason, Told::default(), self.by_leader());
        self.change_blocked(id, which, |job| ending.clone().end(job));
    }

    /// An array waits task by task for one of which these tasks have ended, or started.
    fn settle_each(&mut self, waiter: Waiter, tasks: &Ranges) {
        let Some(dep) = self.dependency(waiter) else { return };
        for (failure, numbers) in self.failures_of_each(&dep, tasks) {
            self.fail_waiting(waiter.0, Some(&numbers), failure);
        }
        // It may have stopped waiting with that.
        if self.entry(waiter.0).is_none_or(|entry| entry.head().waits.is_none()) {
            return;
        }
        match self.progress(JobId(dep.job)).over() {
            true => self.meet(waiter, &dep),
            false => {
                let what = What::DependencyMet { index: waiter.1 };
                self.release_ready(waiter.0, Some(tasks), what);
            }
        }
    }

    /// A job's time has come.
    pub(super) fn begin(&mut self, id: JobId) {
        let what = What::BeginReached;
        let cause = self.cause(self.by_leader(), what.clone());
        if let Some(head) = self.jobs.head_mut(id)
            && let Some(waits) = &mut head.waits
            && let Some(begin) = waits.begin_wall_ms.take()
        {
            self.waits.close_begin(id, begin);
            head.note(cause);
        }
        self.touched(id);
        self.release_ready(id, None, what);
    }

    /// The job, or those of these tasks of the array, for which nothing is open any more are queued.
    fn release_ready(&mut self, id: JobId, tasks: Option<&Ranges>, what: What) {
        let Some(head) = self.entry(id).map(Entry::head) else { return };
        let Some(waits) = &head.waits else { return };
        if !waits.open.is_empty() || waits.begin_wall_ms.is_some() {
            return;
        }
        let mut ready = tasks.cloned();
        for index in waits.each.numbers() {
            let dep = head.dependencies().get(index as usize);
            let other = dep.and_then(|dep| self.array(JobId(dep.job)));
            ready = Some(other.map(|array| array.done_in(ready.as_ref())).unwrap_or_default());
        }
        if ready.as_ref().is_some_and(Ranges::is_empty) {
            return;
        }
        let cause = self.cause(self.by_leader(), what);
        self.change_blocked(id, ready.as_ref(), |job| {
            let held = matches!(job.state, State::Blocked { held: true });
            job.state = if held { State::Held } else { State::Queued };
            // Of a plain job it was noted when it was met.
            if job.causes.last() != Some(&cause) {
                job.note(cause.clone());
            }
        });
    }

    /// Changes what waits for others: a job, or tasks of an array, those that share a record in one step.
    fn change_blocked(
        &mut self,
        id: JobId,
        which: Option<&Ranges>,
        mut edit: impl FnMut(&mut Job),
    ) {
        let Some(array) = self.array(id) else {
            if self.job(id).is_some_and(|job| job.kind() == Kind::Blocked) {
                self.update(id, edit);
            }
            return;
        };
        if let Some(which) = which.filter(|which| which.len() == 1) {
            let Some(task) = which.first().map(|number| array.task_id(number)) else { return };
            if self.job(task).is_some_and(|job| job.kind() == Kind::Blocked) {
                self.update(task, edit);
            }
            return;
        }
        let own = array.own_tasks().filter(|job| job.kind() == Kind::Blocked);
        let own: Vec<TaskId> = own.map(Job::task_id).collect();
        let meant = |task: &TaskId| {
            which.is_none_or(|which| task.index.is_some_and(|number| which.contains(number)))
        };
        for task in own.into_iter().filter(meant) {
            self.update(task, &mut edit);
        }
        self.update_shared(id, which, |job| {
            let blocked = job.kind() == Kind::Blocked;
            if blocked {
                edit(job);
            }
            blocked
        });
    }

    /// Enters what a job that has just come waits for; the first dependency that can never be met ends it.
    pub(super) fn begin_to_wait(&mut self, id: JobId, waits: super::Waits, never: Option<u32>) {
        let Some(head) = self.jobs.head_mut(id) else { return };
        let spec = Arc::clone(&head.spec);
        let deps = &spec.spec.dependencies;
        head.waits = Some(Box::new(waits.clone()));
        self.waits.enter(&self.jobs, id, deps, &waits);
        if let Some(dep) = never.and_then(|index| deps.get(index as usize)) {
            return self.fail_waiting(id, None, self.failure(dep));
        }
        // What ended before is news to the tasks that wait for it alone.
        let told = (JobId(id.0 - 1), u32::MAX);
        for index in waits.each.numbers() {
            let Some(dep) = deps.get(index as usize) else { continue };
            let Some(array) = self.array(JobId(dep.job)) else { continue };
            if array.tally().ended() > 0 {
                let news = News { job: array.id(), tasks: array.numbers(), told };
                self.news.push_back(news);
            }
        }
    }
}
