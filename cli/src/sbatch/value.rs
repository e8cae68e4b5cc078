//! Values of Slurm's options in Slurm's own readings. What has none there has none here: nothing that is
//! not understood becomes "no limit".

use std::time::Duration;

/// Files of a job: as a plain job, and as a task of an array, which in Slurm has a number of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Of a plain job.
    pub plain: String,
    /// Of a task of an array: `%j` is `%A_%a`.
    pub array: String,
}

/// A time limit; `None`: no limit.
pub fn time(text: &str) -> Result<Option<Duration>, String> {
    let wrong = || {
        format!(
            "`{text}` is no time: Slurm reads M, M:S, H:M:S, D-H, D-H:M, D-H:M:S, and UNLIMITED or 0 for none"
        )
    };
    if ["unlimited", "infinite"].contains(&text.to_ascii_lowercase().as_str()) {
        return Ok(None);
    }
    let (days, clock) = match text.split_once('-') {
        Some((days, clock)) => (Some(digits(days).ok_or_else(wrong)?), clock),
        None => (None, text),
    };
    let fields: Option<Vec<u64>> = clock.split(':').map(digits).collect();
    let fields = fields.ok_or_else(wrong)?;
    let seconds = match (days, &fields[..]) {
        (None, [m]) => sum(&[(*m, 60)]),
        (None, [m, s]) => sum(&[(*m, 60), (*s, 1)]),
        (None, [h, m, s]) => sum(&[(*h, 3600), (*m, 60), (*s, 1)]),
        (Some(d), [h]) => sum(&[(d, 86_400), (*h, 3600)]),
        (Some(d), [h, m]) => sum(&[(d, 86_400), (*h, 3600), (*m, 60)]),
        (Some(d), [h, m, s]) => sum(&[(d, 86_400), (*h, 3600), (*m, 60), (*s, 1)]),
        _ => None,
    };
    match seconds.ok_or_else(wrong)? {
        0 => Ok(None),
        some => {
            let time = Duration::from_secs(some);
            units::duration(&units::exact_duration(time)).map_err(|why| why.to_string()).map(Some)
        }
    }
}

fn sum(parts: &[(u64, u64)]) -> Option<u64> {
    parts.iter().try_fold(0u64, |sum, (count, each)| sum.checked_add(count.checked_mul(*each)?))
}

fn digits(text: &str) -> Option<u64> {
    let all = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| all)
}

/// Memory in bytes: MiB unless it has a unit, which may be followed by a B.
pub fn memory(text: &str) -> Result<u64, String> {
    let at = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(at);
    let shift = match unit.to_ascii_uppercase().as_str() {
        "K" | "KB" => 10,
        "" | "M" | "MB" => 20,
        "G" | "GB" => 30,
        "T" | "TB" => 40,
        _ => return Err(no_memory(text)),
    };
    match digits(number).ok_or_else(|| no_memory(text))? {
        0 => Err("0 (all memory of the node) is not in docket: reserve what the job needs, or leave it out to \
             reserve none"
            .to_owned()),
        some => some.checked_mul(1 << shift).ok_or_else(|| no_memory(text)),
    }
}

fn no_memory(text: &str) -> String {
    format!("`{text}` is no memory: Slurm reads a number of MiB, or one with K, M, G or T")
}

/// A count from 1.
pub fn count(text: &str) -> Result<u32, String> {
    let number = digits(text).and_then(|number| u32::try_from(number).ok());
    number
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("`{text}` is no count: give 1 or more"))
}

/// Numbers of nodes that one node satisfies.
pub fn nodes(text: &str) -> Result<(), String> {
    let (least, most) = text.split_once('-').unwrap_or((text, text));
    let (least, most) = (count(least)?, count(most)?);
    match (least, most) {
        (1, 1..) => Ok(()),
        _ => Err(format!(
            "{text}: docket runs a job on one node: ask for 1, or submit one job for each node"
        )),
    }
}

/// One node by name.
pub fn node(text: &str) -> Result<String, String> {
    if text.is_empty() || text.contains(['[', ',', ' ', '/', '*']) {
        return Err(format!(
            "`{text}` is not one node: docket runs a job on one; mark several with a label and give \
             --constraint"
        ));
    }
    Ok(text.to_owned())
}

/// A number of gpus, and their type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpus {
    /// How many.
    pub count: u32,
    /// Of which type.
    pub kind: Option<String>,
}

/// `N` or `TYPE:N`.
pub fn gpus(text: &str) -> Result<Gpus, String> {
    let wrong = || format!("`{text}` is no number of gpus: give N or TYPE:N");
    let (kind, number) = match text.split_once(':') {
        Some((kind, number)) if is_name(kind) => (Some(kind.to_owned()), number),
        Some(_) => return Err(wrong()),
        None => (None, text),
    };
    let number = digits(number).and_then(|number| u32::try_from(number).ok());
    Ok(Gpus { count: number.ok_or_else(wrong)?, kind })
}

/// What `--gres` asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Gres {
    /// Gpus.
    pub gpus: Option<Gpus>,
    /// Other resources, each with its number.
    pub others: Vec<(String, u64)>,
}

/// Generic resources: `gpu[:TYPE][:N]`, `NAME[:N]`, several with commas.
pub fn gres(text: &str) -> Result<Gres, String> {
    let mut gres = Gres::default();
    if text.eq_ignore_ascii_case("none") {
        return Ok(gres);
    }
    let one = |kind: Option<&str>| Gpus { count: 1, kind: kind.map(str::to_owned) };
    for part in text.split(',') {
        let gpus = match part.split(':').collect::<Vec<_>>()[..] {
            ["gpu"] => one(None),
            ["gpu", kind] if digits(kind).is_none() && is_name(kind) => one(Some(kind)),
            ["gpu", rest] => gpus(rest)?,
            ["gpu", kind, number] => gpus(&format!("{kind}:{number}"))?,
            _ => {
                gres.others.push(counted(part)?);
                continue;
            }
        };
        if gres.gpus.replace(gpus).is_some() {
            return Err(format!("{text}: docket gives a job gpus of one type: ask for one kind"));
        }
    }
    Ok(gres)
}

/// Licences: `NAME` or `NAME:N`, several with commas.
pub fn licenses(text: &str) -> Result<Vec<(String, u64)>, String> {
    text.split(',').map(counted).collect()
}

/// `NAME` or `NAME:N`.
fn counted(text: &str) -> Result<(String, u64), String> {
    let (name, number) = text.split_once([':', '=']).unwrap_or((text, "1"));
    match digits(number) {
        Some(number) if is_name(name) => Ok((name.to_owned(), number)),
        _ => Err(format!(
            "`{text}` is no resource: docket reads NAME and NAME:N, with commas for several"
        )),
    }
}

fn is_name(text: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    !text.is_empty() && text.chars().all(allowed)
}

/// Features that a node must have, all of them.
pub fn features(text: &str) -> Result<Vec<String>, String> {
    let features: Vec<String> = text.split('&').map(|one| one.trim().to_owned()).collect();
    if features.iter().all(|one| is_name(one)) {
        return Ok(features);
    }
    Err(format!(
        "`{text}`: docket reads F and F&G: nodes with the labels F=true and G=true; alternatives, counts and \
         brackets are not in docket: mark the nodes that will do with one label"
    ))
}

/// Which variables of the submitter's a job gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Export {
    /// All.
    pub all: bool,
    /// These, if not all.
    pub names: Vec<String>,
    /// These values.
    pub values: Vec<String>,
}

/// `ALL`, `NONE`, `NAME,…`, `NAME=value`; single quotes keep commas.
pub fn export(text: &str) -> Result<Export, String> {
    let mut export = Export::default();
    for part in unquoted_commas(text) {
        match part.to_ascii_uppercase().as_str() {
            "ALL" => export.all = true,
            "NONE" | "NIL" => {}
            "" => return Err("an empty name between commas".to_owned()),
            _ if part.contains('=') => export.values.push(part),
            _ => export.names.push(part),
        }
    }
    Ok(export)
}

fn unquoted_commas(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut quoted = false;
    for c in text.chars() {
        match (c, parts.last_mut()) {
            ('\'', _) => quoted = !quoted,
            (',', _) if !quoted => parts.push(String::new()),
            (c, Some(last)) => last.push(c),
            (_, None) => {}
        }
    }
    parts
}

/// A begin time in the form that `--begin` takes.
pub fn begin(text: &str) -> Result<String, String> {
    let lower = text.to_ascii_lowercase();
    Ok(match lower.as_str() {
        "midnight" => "00:00".to_owned(),
        "noon" => "12:00".to_owned(),
        "elevenses" => "11:00".to_owned(),
        "fika" => "15:00".to_owned(),
        "teatime" => "16:00".to_owned(),
        "today" | "now" => "now".to_owned(),
        _ => match lower.strip_prefix("now+") {
            Some(rest) => format!("now+{}", later(rest)?),
            None => text.to_owned(),
        },
    })
}

/// `60`, `60seconds`, `2minutes`, `1hour`, `3days`, `1week`.
fn later(text: &str) -> Result<String, String> {
    let at = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(at);
    let wrong = || {
        format!(
            "now+{text}: Slurm reads a number of seconds, or one with minutes, hours, days or weeks"
        )
    };
    let number = digits(number).ok_or_else(wrong)?;
    let (unit, times) = match unit.trim() {
        "" | "s" | "sec" | "second" | "seconds" => ("s", 1),
        "m" | "min" | "minute" | "minutes" => ("m", 1),
        "h" | "hour" | "hours" => ("h", 1),
        "d" | "day" | "days" => ("d", 1),
        "w" | "week" | "weeks" => ("d", 7),
        _ => return Err(wrong()),
    };
    Ok(format!("{}{unit}", number.checked_mul(times).ok_or_else(wrong)?))
}

/// A warning signal in the form that `--signal` takes: its time is in seconds.
pub fn signal(text: &str) -> Result<String, String> {
    if text.starts_with("R:") || text.starts_with("RB:") || text.starts_with("BR:") {
        return Err(format!(
            "{text}: R: is for reservations, which docket does not have: leave it out"
        ));
    }
    match text.split_once('@') {
        None => Ok(text.to_owned()),
        Some((name, seconds)) => match digits(seconds) {
            Some(seconds) => Ok(format!("{name}@{seconds}s")),
            None => Err(format!("{text}: the time is a number of seconds: {name}@60")),
        },
    }
}

/// `append` or `truncate`, of which Slurm reads the first letter.
pub fn append(text: &str) -> Result<bool, String> {
    match text.as_bytes().first() {
        Some(b'a' | b'A') => Ok(true),
        Some(b't' | b'T') => Ok(false),
        _ => Err(format!("`{text}`: it can be append or truncate")),
    }
}

/// A nice value as a priority.
pub fn nice(text: Option<&str>) -> Result<i32, String> {
    let wrong = |text| format!("`{text}` is no number: a nice value of N is a priority of -N");
    let nice: i64 = text.map_or(Ok(100), |text| text.parse().map_err(|_| wrong(text)))?;
    Ok(i32::try_from((-nice).clamp(-1000, 1000)).unwrap_or_default())
}

/// A priority; `None`: hold.
pub fn priority(text: &str) -> Result<Option<i32>, String> {
    match digits(text).and_then(|number| i32::try_from(number).ok()) {
        Some(0) => Ok(None),
        Some(some @ 1..=1000) => Ok(Some(some)),
        _ => Err(format!("`{text}`: priorities of docket go from -1000 to 1000, and 0 is --hold")),
    }
}

/// The name of an output file.
pub fn pattern(text: &str) -> Result<Pattern, String> {
    if text.contains('\\') {
        let literal = text.replace('\\', "").replace('%', "%%");
        return Ok(Pattern { plain: literal.clone(), array: literal });
    }
    let (mut plain, mut array) = (String::new(), String::new());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if c != '%' {
            plain.push(c);
            array.push(c);
            continue;
        }
        let mut width = String::new();
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            width.push(digit);
        }
        let of = |key: char| format!("%{width}{key}");
        let (one, task) = match chars.next() {
            Some('j' | 'J') => (of('j'), format!("{}_%a", of('A'))),
            Some(key @ ('A' | 'a' | 'x' | 'u')) => (of(key), of(key)),
            Some('N') => (of('n'), of('n')),
            Some('n' | 't') => {
                let zeros = "0".repeat(width.parse().unwrap_or(1).clamp(1, 10));
                (zeros.clone(), zeros)
            }
            Some('s') => ("batch".to_owned(), "batch".to_owned()),
            Some('%') => ("%%".to_owned(), "%%".to_owned()),
            key => return Err(no_key(text, key)),
        };
        plain.push_str(&one);
        array.push_str(&task);
    }
    Ok(Pattern { plain, array })
}

fn no_key(text: &str, key: Option<char>) -> String {
    let key = key.map(String::from).unwrap_or_default();
    format!(
        "{text}: there is no %{key}: %j job, %A array, %a task, %x name, %u user, %N node, %n and %t 0, %% a \
         percent sign"
    )
}
