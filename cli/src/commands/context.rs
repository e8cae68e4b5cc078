//! What every command needs to know about who runs it, and where it goes.

use crate::args::{Global, Output};
use crate::client::{Client, Places};
use crate::config::client_server;
use crate::failure::Failure;
use crate::render::{self, Render, View};
use jiff::tz::TimeZone;
use proto::TaskId;
use rustix::termios::tcgetwinsize;
use std::ffi::OsString;
use std::io::IsTerminal;
use std::time::{SystemTime, UNIX_EPOCH};

/// Width of a paragraph whose reader tells none.
const USUAL_WIDTH: usize = 80;
/// Narrower than this no table is readable.
const NARROWEST: usize = 40;

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

/// The job numbers of ids; a member of an array is refused, for no job has members yet.
pub fn jobs(ids: &[TaskId]) -> Result<Vec<u64>, Failure> {
    ids.iter().map(job).collect()
}

/// The job number of an id.
pub fn job(id: &TaskId) -> Result<u64, Failure> {
    match id.index {
        None => Ok(id.job.0),
        Some(_) => Err(Failure::NoSuchTask(*id)),
    }
}
