//! What every command needs to know about who runs it, and where it goes.

use crate::args::{Global, Output};
use crate::client::{Client, Places};
use crate::config::client_server;
use crate::failure::Failure;
use crate::parse::Named;
use crate::render::{self, Render, View};
use jiff::tz::TimeZone;
use proto::{JobId, TaskId, v1};
use rustix::termios::tcgetwinsize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::{SystemTime, UNIX_EPOCH};

/// Width of a paragraph whose reader tells none.
const USUAL_WIDTH: usize = 80;
/// Narrower than this no table is readable.
const NARROWEST: usize = 40;

/// Most jobs and tasks that a command names one by one; the server's limit of a request.
const EACH_MAX: usize = 10_000;

/// The command line and its surroundings.
pub struct Context {
    /// Every word as typed: script headers are read together with the options.
    pub words: Vec<OsString>,
    /// Where servers can be.
    pub places: Places,
}

impl Context {
    /// Looks around.
    pub fn new(words: Vec<OsString>, global: &Global) -> Result<Self, Failure> {
        let named = global.server.is_some() || std::env::var_os("DOCKET_SERVER").is_some();
        // A file that is wrong must not stop a command that does not need it.
        let file = if named { None } else { client_server()? };
        Ok(Context { words, places: Places::here(global.server.clone(), file) })
    }

    /// The server.
    pub async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::find(&self.places).await?)
    }

    /// A renderer for whoever reads stdout.
    pub fn renderer(&self, form: Output) -> Box<dyn Render> {
        render::renderer(form, view())
    }
}

/// The reader of stdout: a terminal with its width and colours, or something else.
pub fn view() -> View {
    let columns = columns();
    View {
        now_ms: now_ms(),
        zone: TimeZone::system(),
        width: columns.unwrap_or(USUAL_WIDTH).max(NARROWEST),
        cuts: columns.is_some(),
        colour: colour(),
    }
}

/// Now, UTC ms.
pub fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// As COLUMNS says, else of the terminal; `None`: neither.
fn columns() -> Option<usize> {
    let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let seen = tcgetwinsize(std::io::stdout()).ok().map(|size| usize::from(size.ws_col));
    told.or(seen).filter(|columns| *columns > 0)
}

/// Colours go to terminals whose owner did not say no (no-color.org).
pub fn colour() -> bool {
    let no = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    !no && !dumb && std::io::stdout().is_terminal()
}

/// What ids name, as requests carry it: whole jobs, and tasks of arrays.
pub fn parts(ids: &[Named]) -> (Vec<u64>, Vec<v1::TaskSet>) {
    let whole = ids.iter().filter(|named| named.tasks.is_empty()).map(|named| named.job);
    let some = ids.iter().filter(|named| !named.tasks.is_empty());
    let set = |named: &Named| v1::TaskSet { job: named.job, ranges: named.tasks.clone() };
    (whole.collect(), some.map(set).collect())
}

/// The same of ids one by one.
pub fn requested(ids: &[TaskId]) -> (Vec<u64>, Vec<v1::TaskSet>) {
    let whole = ids.iter().filter(|id| id.index.is_none()).map(|id| id.job.0);
    let mut sets: Vec<v1::TaskSet> = Vec::new();
    for (id, index) in ids.iter().filter_map(|id| Some((id, id.index?))) {
        let range = v1::TaskRange { first: index, last: index, step: 1 };
        match sets.last_mut().filter(|set| set.job == id.job.0) {
            Some(set) => set.ranges.push(range),
            None => sets.push(v1::TaskSet { job: id.job.0, ranges: vec![range] }),
        }
    }
    (whole.collect(), sets)
}

/// What ids name, one by one: a plain job or a whole array by its id, tasks by theirs. Each once.
pub fn each(ids: &[Named]) -> Result<Vec<TaskId>, Failure> {
    let mut each = BTreeSet::new();
    for named in ids {
        let job = JobId(named.job);
        if named.tasks.is_empty() {
            each.insert(TaskId::plain(job));
        }
        for range in &named.tasks {
            let step = usize::try_from(range.step.max(1)).unwrap_or(usize::MAX);
            for index in (range.first..=range.last).step_by(step) {
                each.insert(TaskId { job, index: Some(index) });
                if each.len() > EACH_MAX {
                    return Err(Failure::Usage(format!(
                        "more than {EACH_MAX} jobs and tasks: name whole arrays by their ids"
                    )));
                }
            }
        }
    }
    Ok(each.into_iter().collect())
}
