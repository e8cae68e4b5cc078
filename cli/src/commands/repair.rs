//! `docket wal repair`: says what a damaged log of a controller would lose, asks, and gives it up.

use crate::commands::WalError;
use crate::exit;
use crate::failure::Failure;
use crate::render::quantity::count;
use crate::say::{note, print};
use controller::Repair;
use std::fmt::Write;
use std::io::{BufRead, IsTerminal, Write as _};
use std::path::Path;

/// Explains, asks, repairs.
pub fn repair(dir: &Path, yes: bool) -> Result<u8, Failure> {
    let failed = |error| WalError::Repair { dir: dir.to_owned(), error };
    let Some(repair) = Repair::plan(dir).map_err(failed)? else {
        print(&format!("{}: no repair is needed: the log may be opened\n", dir.display()))?;
        return Ok(exit::DONE);
    };
    print(&explained(dir, &repair))?;
    if !yes && !agreed()? {
        note("nothing was changed");
        return Ok(exit::FAILED);
    }
    let aside = repair.carry_out().map_err(failed)?;
    print(&format!(
        "repaired; the damaged files are in {}\nnext: docket wal verify {dir}, start the \
         controller, look at docket list, then docket release what has not run\n",
        aside.display(),
        dir = dir.display()
    ))?;
    Ok(exit::DONE)
}

/// Asks on the terminal; without one only `--yes` is an answer.
fn agreed() -> Result<bool, Failure> {
    if !std::io::stdin().is_terminal() {
        let why = "wal repair gives up acknowledged data and asks first: there is no terminal to ask \
                   on; read the above, then say --yes";
        return Err(Failure::Usage(why.to_owned()));
    }
    print("Give up what is lost and repair the log? [y/N] ")?;
    std::io::stdout().flush()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Failure::Input)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

fn explained(dir: &Path, repair: &Repair) -> String {
    let log = repair.log();
    let mut out = String::new();
    let _ = writeln!(out, "{}: {}\n", dir.display(), log.why);
    let _ = match log.first <= log.last {
        true => writeln!(out, "kept       entries {} to {}", log.first, log.last),
        false => writeln!(out, "kept       no entry"),
    };
    if let Some(snapshot) = repair.snapshot() {
        let _ = writeln!(out, "           and the snapshot of everything up to entry {snapshot}");
    }
    let _ = match repair.lost() {
        Some((first, last)) => writeln!(
            out,
            "given up   entries {first} to {last} ({}), and whatever came behind them",
            count(last + 1 - first)
        ),
        None => writeln!(out, "given up   whatever came behind: no such entry is known"),
    };
    if let Some(cut) = &log.cut {
        let _ = writeln!(out, "cut        {} at {}", cut.file, cut.offset);
    }
    for file in &log.moved {
        let _ = writeln!(out, "moved      {file}");
    }
    out.push_str(
        "\nA better copy of the data directory is always to be preferred. With the repair\n\
         - submits, starts and ends that were acknowledged in what is given up are forgotten;\n\
         - jobs that wait are held, for they may have run: docket release lets them start;\n\
         - jobs that nodes still run and the log has forgotten are listed (docket nodes --strays),\n\
         \x20 not killed;\n\
         - job ids go on 1,000,000 higher, so that none is given twice.\n\
         The damaged files are kept beside the log.\n",
    );
    out
}
