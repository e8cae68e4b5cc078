//! What a `Set` asks for, checked: one change at a time, within its bounds.

use super::convert::{CPUS_MAX, Invalid, NAME_MAX_BYTES, invalid, text};
use super::edit::Edit;
use proto::v1::{self, set_command::Change, time_change::To};

/// Checks what a `Set` asks for.
pub fn set(request: &v1::SetRequest) -> Result<Edit, Invalid> {
    let mut changes = Vec::new();
    changes.extend(request.priority.map(priority));
    changes.extend(request.array_limit.map(|limit| array_limit(request, limit)));
    changes.extend(request.name.as_ref().map(|name| named(name)));
    changes.extend(request.time.as_ref().map(time));
    changes.extend(request.cpus.map(cpus));
    changes.extend(request.mem_bytes.map(|bytes| Ok(Edit::Set(Change::MemBytes(bytes)))));
    if changes.len() > 1 {
        return Err(invalid("set", "several changes", "one at a time"));
    }
    let nothing =
        || Err(invalid("set", "nothing to change", "a priority, a time limit or another"));
    changes.pop().unwrap_or_else(nothing)
}

fn priority(priority: i32) -> Result<Edit, Invalid> {
    match priority {
        -1000..=1000 => Ok(Edit::Priority(priority)),
        _ => Err(invalid("priority", priority.to_string(), "-1000 to 1000")),
    }
}

fn array_limit(request: &v1::SetRequest, limit: u32) -> Result<Edit, Invalid> {
    match request.tasks.is_empty() {
        true => Ok(Edit::ArrayLimit(limit)),
        false => Err(invalid("array limit", "some tasks", "whole arrays")),
    }
}

fn named(name: &str) -> Result<Edit, Invalid> {
    text("--name", name, NAME_MAX_BYTES)?;
    match name.is_empty() {
        true => Err(invalid("--name", "an empty name", "at least one character")),
        false => Ok(Edit::Set(Change::Name(name.to_owned()))),
    }
}

fn time(change: &v1::TimeChange) -> Result<Edit, Invalid> {
    match change.to {
        None | Some(To::LimitMs(0)) => Err(invalid("--time", "0", "more than 0, or none")),
        Some(_) => Ok(Edit::Set(Change::Time(*change))),
    }
}

fn cpus(cpus: u32) -> Result<Edit, Invalid> {
    match cpus {
        1..=CPUS_MAX => Ok(Edit::Set(Change::Cpus(cpus))),
        _ => Err(invalid("--cpus", cpus.to_string(), format!("1 to {CPUS_MAX}"))),
    }
}
