//! `#SBATCH` lines: what they ask for in docket's terms, or why docket refuses it. Begin with [`read`];
//! [`table`] has every option.

mod line;
mod meaning;
mod table;
#[cfg(test)]
mod tests;
mod value;

pub use meaning::Sbatch;

use table::{Does, SlurmOption};

/// What the lines of one script ask for.
#[derive(Debug, Default)]
pub struct Asked {
    /// What docket does for them.
    pub sbatch: Sbatch,
    /// Options that are without effect, each once.
    pub without_effect: Vec<&'static str>,
}

/// Reads the lines of a script, each with its number and what stands behind `#SBATCH`; of options that
/// repeat the last one counts.
pub fn read(lines: &[(usize, String)]) -> Result<Asked, (usize, String)> {
    let mut asked = Asked::default();
    for (number, text) in lines {
        let wrong = |why| (*number, why);
        for (option, value) in line::options(text).map_err(wrong)? {
            take(&mut asked, option, value.as_deref())
                .map_err(|why| wrong(format!("--{}: {why}", option.name)))?;
        }
    }
    asked.sbatch.agree().map_err(|why| (lines.first().map_or(0, |(number, _)| *number), why))?;
    Ok(asked)
}

fn take(
    asked: &mut Asked,
    option: &'static SlurmOption,
    value: Option<&str>,
) -> Result<(), String> {
    match option.does {
        Does::Sets(what) => asked.sbatch.set(what, value),
        Does::Anyway => Ok(()),
        Does::Nothing => {
            if !asked.without_effect.contains(&option.name) {
                asked.without_effect.push(option.name);
            }
            Ok(())
        }
        Does::Refused => Err(format!("not in docket: {}", option.words)),
    }
}
