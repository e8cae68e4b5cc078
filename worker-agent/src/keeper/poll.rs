//! What the loop waits for: epoll with a number per descriptor, and one timer on CLOCK_BOOTTIME, so
//! that deadlines pass while the machine sleeps.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

/// Events taken at once: more are delivered next turn.
const EVENTS_MAX: usize = 256;

/// Whose descriptor became ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Source {
    Listener,
    Children,
    Timer,
    Spawner,
    Notice,
    Connection(u64),
    /// The main process of a task ended.
    Task(u64),
}

const FIXED: [Source; 5] =
    [Source::Listener, Source::Children, Source::Timer, Source::Spawner, Source::Notice];
const CONNECTIONS_FROM: u64 = 1 << 32;
const TASKS_FROM: u64 = 1 << 48;

impl Source {
    fn to_number(self) -> u64 {
        match self {
            Source::Connection(id) => CONNECTIONS_FROM + id,
            Source::Task(id) => TASKS_FROM + id,
            fixed => FIXED.iter().position(|s| *s == fixed).unwrap_or(0) as u64,
        }
    }

    fn from_number(number: u64) -> Option<Source> {
        match number {
            n if n >= TASKS_FROM => Some(Source::Task(n - TASKS_FROM)),
            n if n >= CONNECTIONS_FROM => Some(Source::Connection(n - CONNECTIONS_FROM)),
            n => FIXED.get(n as usize).copied(),
        }
    }
}

/// The loop's one place of waiting.
pub(crate) struct Poll {
    epoll: OwnedFd,
    timer: OwnedFd,
    armed_ms: u64,
    events: Vec<epoll::Event>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Poll> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        let poll = Poll {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            armed_ms: 0,
            events: Vec::with_capacity(EVENTS_MAX),
            timer,
        };
        poll.add(&poll.timer, Source::Timer)?;
        Ok(poll)
    }

    /// Watches a descriptor for input.
    pub(crate) fn add(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(source.to_number()), EventFlags::IN)?)
    }

    /// Watches for input, for room to write, or both.
    pub(crate) fn change(
        &self,
        fd: impl AsFd,
        source: Source,
        read: bool,
        write: bool,
    ) -> io::Result<()> {
        let mut flags = EventFlags::empty();
        flags.set(EventFlags::IN, read);
        flags.set(EventFlags::OUT, write);
        Ok(epoll::modify(&self.epoll, fd, EventData::new_u64(source.to_number()), flags)?)
    }

    /// Stops watching. Closing the descriptor alone does it too, unless it has copies.
    pub(crate) fn remove(&self, fd: impl AsFd) {
        // Not watched any more: then all is well.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits for something to happen, at most until this moment of CLOCK_BOOTTIME.
    pub(crate) fn wait(&mut self, until_ms: u64) -> io::Result<Vec<Source>> {
        self.arm(until_ms)?;
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), None) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(Vec::new()),
            Err(e) => return Err(e.into()),
        }
        let sources = self.events.iter().filter_map(|event| {
            let data = event.data;
            Source::from_number(data.u64())
        });
        let sources: Vec<Source> = sources.collect();
        if sources.contains(&Source::Timer) {
            let mut count = [0; 8];
            // EAGAIN: it was set anew meanwhile.
            let _ = rustix::io::read(&self.timer, &mut count);
            self.armed_ms = 0;
        }
        Ok(sources)
    }

    fn arm(&mut self, until_ms: u64) -> io::Result<()> {
        // 0 would disarm it.
        let until_ms = until_ms.max(1);
        if until_ms == self.armed_ms {
            return Ok(());
        }
        let at = Timespec {
            tv_sec: (until_ms / 1000) as i64,
            tv_nsec: (until_ms % 1000) as i64 * 1_000_000,
        };
        let never = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval: never, it_value: at };
        timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &time)?;
        self.armed_ms = until_ms;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic)]
mod tests {
    use super::*;
    use crate::keeper::identity::boottime_ms;

    #[test]
    fn sources_have_their_own_numbers() {
        let all =
            FIXED.into_iter().chain([Source::Connection(7), Source::Task(0), Source::Task(9)]);
        for source in all {
            assert_eq!(Source::from_number(source.to_number()), Some(source));
        }
    }

    #[test]
    fn waiting_ends_at_the_deadline_also_one_that_has_passed() {
        let mut poll = Poll::new().unwrap();
        let until = boottime_ms() + 20;
        assert_eq!(poll.wait(until).unwrap(), [Source::Timer]);
        assert!(boottime_ms() >= until);
        assert_eq!(poll.wait(until - 10).unwrap(), [Source::Timer]);
    }
}
