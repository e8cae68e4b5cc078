//! Every metric of `/metrics`, named once: what it is called, its unit, and what it tells. Gauges
//! and the ledger's own counts are read when somebody asks; what only this process can see is
//! counted where it happens, at one atomic each. docs/operations.md lists them, held by a test.

use crate::pump::View;
use docket_core::leader::NodeState;
use docket_core::ledger::{Counters, Outcome, StateName};
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeMetric, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};
use proto::v1::{self, DownCause, command};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a metric is in the Prometheus text form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows; its name ends in `_total` where it is served.
    Counter,
    /// Counts in buckets.
    Histogram,
    /// Facts about the program, as labels of a constant 1.
    Info,
}

/// One metric.
#[derive(Debug, PartialEq, Eq)]
pub struct Name {
    /// Without its unit.
    base: &'static str,
    /// Last part of its name; empty: it counts things.
    unit: &'static str,
    kind: Kind,
    /// Names of its labels, for people; empty: none.
    labels: &'static str,
    help: &'static str,
}

const fn gauge(base: &'static str, labels: &'static str, help: &'static str) -> Name {
    Name { base, unit: "", kind: Kind::Gauge, labels, help }
}

const fn counter(base: &'static str, labels: &'static str, help: &'static str) -> Name {
    Name { base, unit: "", kind: Kind::Counter, labels, help }
}

const fn histogram(base: &'static str, unit: &'static str, help: &'static str) -> Name {
    Name { base, unit, kind: Kind::Histogram, labels: "", help }
}

const BUILD: Name = Name {
    base: "docket_build",
    unit: "",
    kind: Kind::Info,
    labels: "version, features",
    help: "Version of this program and what was compiled in beyond the product",
};
const LEADING: Name = gauge("docket_leading", "", "1 while this controller leads, else 0");
const APPLIED: Name =
    gauge("docket_applied_position", "", "Log position of the last applied entry");
const DISK_FULL: Name = gauge(
    "docket_disk_full",
    "",
    "1 while the log's disk is below its reserve and submits are refused",
);
const TASKS: Name = gauge("docket_tasks", "state", "Tasks in the ledger by state");
const PENDING: Name = gauge("docket_queue_tasks", "", "Tasks that wait for a node (queue depth)");
const UNKNOWN: Name = gauge("docket_unknown_tasks", "", "Tasks of which nobody knows (UNKWN)");
const UNKNOWN_OLDEST: Name = Name {
    unit: "seconds",
    ..gauge(
        "docket_unknown_oldest",
        "",
        "Led time since the longest unknown task became so; 0: none",
    )
};
const NODES: Name =
    gauge("docket_nodes", "state", "Nodes by state, as the leader sees them; absent elsewhere");
const STRAYS: Name =
    gauge("docket_strays", "", "Attempts that nodes hold and that the ledger does not know");
const IGNORED: Name = counter(
    "docket_facts_ignored",
    "why",
    "Facts that were counted and changed nothing: late ones, duplicates, other attempts",
);
const REGISTRY: Name =
    gauge("docket_registry_facts", "", "Facts that wait for the submit or assignment of their job");
const QUARANTINE: Name = gauge(
    "docket_quarantine_facts",
    "",
    "Facts whose job did not come in time (orphans); applied if it ever comes",
);
const DEFERRED: Name =
    counter("docket_registry_deferred", "", "Facts that were put into the registry");
const DRAINED: Name =
    counter("docket_registry_drained", "", "Facts out of the registry that took effect");
const EXPIRED: Name = counter(
    "docket_registry_expired",
    "",
    "Facts that waited in the registry longer than unknown_finish_ttl",
);
const ORPHANS_DRAINED: Name =
    counter("docket_quarantine_drained", "", "Orphans that took effect after all");
const REFUSED: Name = counter(
    "docket_registry_refused",
    "",
    "Facts that their keeper was asked to tell again later, for the registry was full",
);
const LATE: Name = counter(
    "docket_late_outcomes",
    "",
    "Real ends that came after their task was settled without them",
);
const NODE_FAULTS: Name =
    counter("docket_node_faults", "", "Attempts closed through the fault of their node");
const EVICTIONS: Name = counter("docket_evictions", "", "Ended jobs that left the ledger");
const HEARTBEATS_LOST: Name = counter(
    "docket_heartbeats_lost",
    "",
    "Agents given up as silent by this leader since it started",
);
const ORPHANS_KILLED: Name = counter(
    "docket_orphans_killed",
    "",
    "Attempts over for the ledger that manifests still held, so that they are killed; since start",
);
const APPLY_DELAY: Name = histogram(
    "docket_apply_delay",
    "seconds",
    "From the commit of an entry of this leader until it was applied",
);
const BATCH: Name =
    histogram("docket_proposal_commands", "", "Commands in one entry of this leader");
const PROPOSER: Name =
    gauge("docket_proposer_queue_commands", "", "Commands of callers that wait to be proposed");
const BACKLOG: Name = gauge(
    "docket_leader_backlog_commands",
    "",
    "Commands of the leader's duties that wait to be proposed",
);

#[cfg(test)]
/// Every metric, in the order in which they are served.
pub const NAMES: [&Name; 27] = [
    &BUILD,
    &LEADING,
    &APPLIED,
    &DISK_FULL,
    &TASKS,
    &PENDING,
    &UNKNOWN,
    &UNKNOWN_OLDEST,
    &NODES,
    &STRAYS,
    &IGNORED,
    &REGISTRY,
    &QUARANTINE,
    &DEFERRED,
    &DRAINED,
    &EXPIRED,
    &ORPHANS_DRAINED,
    &REFUSED,
    &LATE,
    &NODE_FAULTS,
    &EVICTIONS,
    &HEARTBEATS_LOST,
    &ORPHANS_KILLED,
    &APPLY_DELAY,
    &BATCH,
    &PROPOSER,
    &BACKLOG,
];

/// What only this process can see. Clones count into the same.
#[derive(Clone, Debug)]
pub struct Live {
    heartbeats_lost: Counter,
    orphans_killed: Counter,
    apply_delay: Histogram,
    batch: Histogram,
}

impl Default for Live {
    fn default() -> Self {
        Live {
            heartbeats_lost: Counter::default(),
            orphans_killed: Counter::default(),
            // 50 µs to 1.6 s.
            apply_delay: Histogram::new(exponential_buckets(0.000_05, 2.0, 16)),
            // 1 to 4,096, the largest batch.
            batch: Histogram::new(exponential_buckets(1.0, 4.0, 7)),
        }
    }
}

impl Live {
    /// Takes note of an entry that this leader proposed and that is applied now.
    pub fn applied(&self, delay: Duration, commands: &[v1::Command], outcomes: &[Outcome]) {
        self.apply_delay.observe(delay.as_secs_f64());
        self.batch.observe(f64::from(u32::try_from(commands.len()).unwrap_or(u32::MAX)));
        for (command, outcome) in commands.iter().zip(outcomes) {
            match (&command.kind, outcome) {
                (Some(command::Kind::AgentDown(down)), Outcome::AgentDown { .. })
                    if down.cause() == DownCause::Silence =>
                {
                    self.heartbeats_lost.inc();
                }
                (_, Outcome::Manifest(judged)) => {
                    self.orphans_killed.inc_by(judged.kill.len() as u64);
                }
                _ => {}
            }
        }
    }
}

/// What the ledger and the leader tell at one moment.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    leading: bool,
    applied: u64,
    tasks: BTreeMap<StateName, u64>,
    pending: u64,
    unknown_oldest_ms: u64,
    nodes: Option<BTreeMap<&'static str, u64>>,
    strays: u64,
    counters: Counters,
    /// In the registry, in its quarantine.
    deferred: (u64, u64),
}

/// The queues of this process at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Queues {
    /// Commands of callers.
    pub proposer: u64,
    /// Commands of the leader's duties.
    pub backlog: u64,
    /// The log's disk is below its reserve.
    pub disk_full: bool,
}

impl Figures {
    /// Reads them: a few counts, and a look at each node.
    pub fn of(view: &View<'_>) -> Figures {
        let ledger = view.ledger;
        let views = view.leader.node_views(ledger, view.now_ms);
        Figures {
            leading: view.leader.leads(),
            applied: ledger.applied(),
            tasks: ledger.counts(),
            pending: ledger.pending_count(),
            unknown_oldest_ms: view.leader.unknown_oldest_ms(ledger, view.now_ms),
            nodes: view.leader.leads().then(|| {
                let mut nodes: BTreeMap<&'static str, u64> = [
                    NodeState::Up,
                    NodeState::Silent,
                    NodeState::Down,
                    NodeState::Drained,
                    NodeState::Left,
                ]
                .map(|state| (state.as_str(), 0))
                .into();
                for node in &views {
                    *nodes.entry(node.state.as_str()).or_default() += 1;
                }
                nodes
            }),
            strays: ledger.agents().map(|agent| agent.strays().len() as u64).sum(),
            counters: ledger.counters().clone(),
            deferred: ledger.deferred_counts(),
        }
    }
}

/// How the metrics are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The text form of Prometheus, 0.0.4.
    Text,
    /// OpenMetrics 1.0.0, which ends in `# EOF`.
    OpenMetrics,
}

impl Form {
    /// As the answer names it.
    pub fn content_type(self) -> &'static str {
        match self {
            Form::Text => "text/plain; version=0.0.4; charset=utf-8",
            Form::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The text that `/metrics` answers.
pub fn text(
    form: Form,
    live: &Live,
    figures: &Figures,
    queues: Queues,
) -> Result<String, std::fmt::Error> {
    let page = page(live, figures, queues);
    let mut out = String::new();
    encode(&mut out, &page.registry)?;
    Ok(match form {
        Form::OpenMetrics => out,
        Form::Text => plain(&out, &page.names),
    })
}

/// OpenMetrics as the older text form: the samples are the same, but there a type belongs to the
/// name of the samples, units have no line, and nothing marks the end.
fn plain(page: &str, names: &[&Name]) -> String {
    let mut out = String::with_capacity(page.len());
    for line in page.lines() {
        let mut words = line.splitn(4, ' ');
        let head = (words.next(), words.next(), words.next(), words.next());
        let line = match head {
            (Some("#"), Some("EOF" | "UNIT"), ..) => continue,
            (Some("#"), Some(what), Some(family), Some(rest)) => {
                let kind = names.iter().find(|name| name.family() == family).map(|name| name.kind);
                let (end, rest) = match (kind, what) {
                    (Some(Kind::Counter), _) => ("_total", rest),
                    (Some(Kind::Info), "TYPE") => ("_info", "gauge"),
                    (Some(Kind::Info), _) => ("_info", rest),
                    _ => ("", rest),
                };
                format!("# {what} {family}{end} {rest}")
            }
            _ => line.to_owned(),
        };
        out.push_str(&line);
        out.push('\n');
    }
    out
}

fn page(live: &Live, figures: &Figures, queues: Queues) -> Page {
    let mut page = Page::default();
    let features = match proto::FEATURES {
        [] => "none".to_owned(),
        some => some.join(","),
    };
    let version = env!("CARGO_PKG_VERSION").to_owned();
    page.put(&BUILD, Info::new(vec![("version", version), ("features", features)]));
    page.gauge(&LEADING, u64::from(figures.leading));
    page.gauge(&APPLIED, figures.applied);
    page.gauge(&DISK_FULL, u64::from(queues.disk_full));
    let of = |state: StateName| figures.tasks.get(&state).copied().unwrap_or(0);
    page.gauges(&TASKS, StateName::ALL.map(|state| (state.as_str(), of(state))));
    page.gauge(&PENDING, figures.pending);
    page.gauge(&UNKNOWN, of(StateName::Unkwn));
    page.put(&UNKNOWN_OLDEST, ConstGauge::new(seconds(figures.unknown_oldest_ms)));
    page.gauges(&NODES, figures.nodes.clone().unwrap_or_default());
    page.gauge(&STRAYS, figures.strays);
    page.ledger_counts(&figures.counters, figures.deferred);
    page.put(&HEARTBEATS_LOST, live.heartbeats_lost.clone());
    page.put(&ORPHANS_KILLED, live.orphans_killed.clone());
    page.put(&APPLY_DELAY, live.apply_delay.clone());
    page.put(&BATCH, live.batch.clone());
    page.gauge(&PROPOSER, queues.proposer);
    page.gauge(&BACKLOG, queues.backlog);
    page
}

/// Milliseconds as seconds; exact far beyond any task's life.
#[allow(clippy::cast_precision_loss, reason = "2^53 ms are 285,000 years")]
fn seconds(ms: u64) -> f64 {
    ms as f64 / 1000.0
}

#[derive(Default)]
struct Page {
    registry: Registry,
    names: Vec<&'static Name>,
}

impl Page {
    fn put(&mut self, name: &'static Name, metric: impl Metric) {
        self.names.push(name);
        match name.unit {
            "" => self.registry.register(name.base, name.help, metric),
            unit => {
                let unit = Unit::Other(unit.to_owned());
                self.registry.register_with_unit(name.base, name.help, unit, metric);
            }
        }
    }

    fn gauge(&mut self, name: &'static Name, value: u64) {
        self.put(name, ConstGauge::new(value));
    }

    fn counter(&mut self, name: &'static Name, value: u64) {
        self.put(name, ConstCounter::new(value));
    }

    fn gauges(
        &mut self,
        name: &'static Name,
        values: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        self.put(name, Sorted { name, values: values.into_iter().collect() });
    }

    fn ledger_counts(&mut self, counters: &Counters, (waiting, orphans): (u64, u64)) {
        let ignored = [
            ("after_end", counters.after_end),
            ("repeated", counters.repeated),
            ("other_attempt", counters.other_attempt),
            ("wrong_agent", counters.wrong_agent),
            ("evicted", counters.evicted),
            ("malformed", counters.malformed),
            ("unknown_attempt", counters.unknown_attempt),
        ];
        self.put(&IGNORED, Sorted { name: &IGNORED, values: ignored.into() });
        self.gauge(&REGISTRY, waiting);
        self.gauge(&QUARANTINE, orphans);
        self.counter(&DEFERRED, counters.deferred);
        self.counter(&DRAINED, counters.drained);
        self.counter(&EXPIRED, counters.expired);
        self.counter(&ORPHANS_DRAINED, counters.orphans_drained);
        self.counter(&REFUSED, counters.refused);
        self.counter(&LATE, counters.late_outcomes);
        self.counter(&NODE_FAULTS, counters.node_faults);
        self.counter(&EVICTIONS, counters.evictions);
    }
}

/// One metric for each value of its label, always in the same order: the crate's own families are
/// hash maps, and what changes place without a change is hard to read and to compare.
#[derive(Debug)]
struct Sorted {
    name: &'static Name,
    values: BTreeMap<&'static str, u64>,
}

impl EncodeMetric for Sorted {
    fn encode(&self, mut encoder: MetricEncoder<'_>) -> Result<(), std::fmt::Error> {
        for (value, &count) in &self.values {
            let labels = [(self.name.labels, *value)];
            let one = encoder.encode_family(&labels)?;
            match self.name.kind {
                Kind::Counter => ConstCounter::new(count).encode(one)?,
                _ => ConstGauge::new(count).encode(one)?,
            }
        }
        Ok(())
    }

    fn metric_type(&self) -> MetricType {
        match self.name.kind {
            Kind::Counter => MetricType::Counter,
            _ => MetricType::Gauge,
        }
    }
}

impl Name {
    /// As it is served, before what a kind appends to its samples.
    fn family(&self) -> String {
        match self.unit {
            "" => self.base.to_owned(),
            unit => format!("{}_{unit}", self.base),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The list of docs/operations.md, from the names.
    fn documented() -> String {
        let mut out = "| metric | kind | what it tells |\n|---|---|---|\n".to_owned();
        for name in NAMES {
            let (suffix, kind) = match name.kind {
                Kind::Gauge => ("", "gauge"),
                Kind::Counter => ("_total", "counter"),
                Kind::Histogram => ("", "histogram"),
                Kind::Info => ("_info", "info"),
            };
            let labels = match name.labels {
                "" => String::new(),
                labels => format!("{{{labels}}}"),
            };
            let family = name.family();
            out += &format!("| `{family}{suffix}{labels}` | {kind} | {} |\n", name.help);
        }
        out
    }

    #[test]
    fn the_operators_page_lists_every_metric_as_it_is() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once("<!-- metrics -->\n").unwrap();
        let (listed, after) = rest.split_once("<!-- end of metrics -->\n").unwrap();
        let expected = documented();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let text =
                format!("{before}<!-- metrics -->\n{expected}<!-- end of metrics -->\n{after}");
            std::fs::write(path, text).unwrap();
            return;
        }
        assert_eq!(listed, expected, "write it anew: UPDATE_DOCS=1 cargo test -p controller");
    }

    #[test]
    fn every_name_is_served_once_with_its_kind_and_help_and_nothing_else() {
        let leading = Figures { nodes: Some([("up", 1)].into()), ..Figures::default() };
        let page = text(Form::OpenMetrics, &Live::default(), &leading, Queues::default()).unwrap();
        let served: Vec<&str> = page.lines().filter(|line| line.starts_with("# TYPE ")).collect();
        let word = |kind| match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
            Kind::Info => "info",
        };
        let named: Vec<String> =
            NAMES.iter().map(|n| format!("# TYPE {} {}", n.family(), word(n.kind))).collect();
        assert_eq!(served, named);
        for name in NAMES {
            assert!(page.contains(&format!("# HELP {} {}", name.family(), name.help)), "{name:?}");
        }
        assert!(
            page.contains("docket_build_info{version=\"0.1.0\",features=\"none\"} 1"),
            "{page}"
        );
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn silences_and_kills_by_manifest_are_counted_and_other_ends_are_not() {
        let live = Live::default();
        let down = |cause: DownCause| v1::Command {
            kind: Some(command::Kind::AgentDown(v1::AgentDownCommand {
                cause: cause.into(),
                ..v1::AgentDownCommand::default()
            })),
        };
        let commands = [down(DownCause::Silence), down(DownCause::Rdhup), down(DownCause::Silence)];
        let gone = Outcome::AgentDown { ended: 0, unknown: 1 };
        let stale = Outcome::Stale { what: "another session".to_owned() };
        live.applied(Duration::from_millis(1), &commands, &[gone.clone(), gone, stale]);
        let mut judged = docket_core::ledger::ManifestOutcome::default();
        let attempt = proto::AttemptId { task: proto::TaskId::plain(proto::JobId(1)), attempt: 1 };
        judged.kill = vec![attempt, attempt];
        let page =
            v1::Command { kind: Some(command::Kind::Manifest(v1::ManifestCommand::default())) };
        live.applied(Duration::from_millis(1), &[page], &[Outcome::Manifest(judged)]);
        let page = text(Form::OpenMetrics, &live, &Figures::default(), Queues::default()).unwrap();
        assert!(page.contains("docket_heartbeats_lost_total 1\n"), "{page}");
        assert!(page.contains("docket_orphans_killed_total 2\n"), "{page}");
        assert!(page.contains("docket_apply_delay_seconds_count 2\n"), "{page}");
        assert!(page.contains("docket_proposal_commands_sum 4.0\n"), "{page}");
    }
}
