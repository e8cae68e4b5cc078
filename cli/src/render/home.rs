//! `docket` alone: what is there, and five things to type.

use super::escape::line;
use super::quantity::{count, span};
use proto::v1::StatusAnswer;

/// What a bare `docket` found.
#[derive(Debug, Clone)]
pub enum Home {
    /// A server answered.
    Served(Box<StatusAnswer>),
    /// None did; why.
    Nobody(String),
}

const COMMANDS: &str =
    "  docket run -- CMD      run and wait        docket list       what is there
  docket submit -- CMD   run in background   docket logs ID    its output
  docket explain ID      why is it so        docket help       everything
";

/// The screen of a bare `docket`.
pub fn home(version: &str, home: &Home) -> String {
    let first = match home {
        Home::Served(status) => format!("docket {version}   {}", served(status)),
        Home::Nobody(why) => format!("docket {version}   {}", line(why)),
    };
    format!("{first}\n{COMMANDS}")
}

fn served(status: &StatusAnswer) -> String {
    let of = |name: &str| status.tasks_by_state.get(name).copied().unwrap_or(0);
    let mut parts = vec![format!("up {}", span(status.uptime_ms))];
    for (name, always) in [("RUN", true), ("PEND", true), ("SUSP", false), ("UNKWN", false)] {
        if always || of(name) > 0 {
            parts.push(format!("{} {name}", count(of(name))));
        }
    }
    parts.push(format!("{} ended", count(of("DONE") + of("EXIT"))));
    let kind = if status.embedded { "node" } else { "cluster" };
    let host = line(&status.host);
    format!("{kind} of {} on {host}: {}", line(&status.user), parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_docket_shows_what_runs_and_what_to_type() {
        let status = StatusAnswer {
            embedded: true,
            user: "mia".into(),
            host: "login2".into(),
            uptime_ms: 180_000,
            tasks_by_state: [("RUN".to_owned(), 1), ("DONE".to_owned(), 1), ("EXIT".to_owned(), 1)]
                .into(),
            ..Default::default()
        };
        let text = home("0.1.0", &Home::Served(Box::new(status)));
        assert_eq!(
            text.lines().next(),
            Some("docket 0.1.0   node of mia on login2: up 3m, 1 RUN, 0 PEND, 2 ended")
        );
        let rest: Vec<&str> = text.lines().skip(1).collect();
        assert!(rest.len() == 3 && rest.iter().all(|line| line.starts_with("  docket ")), "{text}");
        assert!(text.lines().all(|line| line.len() <= 80));
    }
}
