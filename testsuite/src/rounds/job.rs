//! A job whose end is known before it is submitted, and which writes down that it began and ended.

use super::Chance;
use crate::patience::{LATER, poll};
use crate::world::World;
use std::time::Duration;

/// How it ends if nobody disturbs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// With this exit code.
    Code(i64),
    /// By this signal.
    Signal(i64),
    /// It cannot be started: there is no such program.
    NoProgram,
}

/// What it leaves behind when its main process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Children {
    None,
    /// A child in a session of its own.
    Setsid,
    /// One that ignores TERM.
    Stubborn,
}

/// One job of a round.
#[derive(Clone, Debug)]
pub(super) struct Job {
    pub number: usize,
    pub ending: Ending,
    pub children: Children,
    /// `--on-disconnect unknown`; else `exit`.
    pub survives: bool,
    pub takes: Duration,
    /// When it is submitted, from the begin of the round.
    pub submitted_at: Duration,
}

const CODES: [i64; 8] = [0, 0, 0, 1, 2, 42, 127, 255];
const SIGNALS: [i64; 4] = [9, 10, 11, 15];

/// A long job outlives every blow of a round, a short one ends between two messages.
const LONG: Duration = Duration::from_millis(4000);
const SHORT: Duration = Duration::from_millis(60);

/// Pause between two tries to submit.
const TRY_AGAIN: Duration = Duration::from_millis(200);

impl Job {
    /// Draws one for a round whose blows fall within `span`.
    pub fn draw(chance: &mut Chance, number: usize, span: Duration) -> Job {
        let ending = match chance.below(10) {
            0 => Ending::NoProgram,
            1 | 2 => Ending::Signal(chance.one_of(&SIGNALS)),
            _ => Ending::Code(chance.one_of(&CODES)),
        };
        let children =
            chance.one_of(&[Children::None, Children::None, Children::Setsid, Children::Stubborn]);
        let limit = chance.one_of(&[SHORT, span, LONG]);
        Job {
            number,
            ending,
            children,
            survives: chance.once_in(2),
            takes: chance.span(limit),
            submitted_at: chance.span(span),
        }
    }

    /// Submits it under a key of its own, again and again until the controller is there: a try that
    /// was not answered may have had its effect (P8).
    pub fn submit(&self, world: &World) -> u64 {
        let policy = if self.survives { "unknown" } else { "exit" };
        let (key, script) = (format!("round-job-{}", self.number), self.script());
        let mut words = vec!["submit", "--key", &key, "--on-disconnect", policy];
        words.extend(["--kill-grace", "500ms", "--"]);
        match self.ending {
            Ending::NoProgram => words.push("./no-such-program"),
            _ => words.extend(["sh", "-c", &script]),
        }
        let mut last = String::new();
        let id = poll(LATER, TRY_AGAIN, || {
            let ran = world.docket(&words);
            last = ran.describe();
            (ran.code == Some(0)).then(|| ran.text())
        });
        let id = id.unwrap_or_else(|| panic!("never acknowledged: {last}"));
        id.trim_end().parse().unwrap_or_else(|_| panic!("submit printed {id:?}, not an id"))
    }

    fn script(&self) -> String {
        let n = self.number;
        let children = match self.children {
            Children::None => "",
            Children::Setsid => "setsid sleep 1000 &\n",
            Children::Stubborn => "sh -c 'trap \"\" TERM; while :; do sleep 0.2; done' &\n",
        };
        let end = match self.ending {
            Ending::Code(code) => format!("exit {code}"),
            Ending::Signal(signal) => format!("kill -{signal} $$; sleep 1000"),
            Ending::NoProgram => String::new(),
        };
        // `>>` appends: whoever runs a second time leaves a second line.
        format!(
            "echo \"$DOCKET_ATTEMPT $$\" >> began.{n}\n{children}sleep {}\necho >> ended.{n}\n{end}",
            self.takes.as_secs_f64()
        )
    }

    /// Lines that its runs wrote first: one a run.
    pub fn began(&self, world: &World) -> usize {
        world.lines(&format!("began.{}", self.number)).len()
    }

    /// Did a run come to its own end?
    pub fn came_to_its_end(&self, world: &World) -> bool {
        world.file(&format!("ended.{}", self.number)).exists()
    }
}
