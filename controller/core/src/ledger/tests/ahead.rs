//! Any valid log, and the same with its facts moved ahead of what they are about: the same ends.

use super::image::bytes;
use super::world::*;
use crate::ledger::{Ledger, Outcome};
use proptest::prelude::*;
use proto::v1::{self, command::Kind as Command, fact, finish_fact::End};
use proto::{JobId, Seq};
use std::collections::BTreeMap;

const NODES: [&str; 3] = ["agent-1", "agent-2", "agent-3"];

/// An entry of a log.
#[derive(Clone, Debug)]
enum Item {
    Submit,
    Assign { job: u64, agent: String },
    Fact { agent: String, kind: Box<fact::Kind> },
}

/// What a job lives through, in order.
fn life(job: u64, node: u8, kind: u8) -> Vec<Item> {
    let agent = NODES[usize::from(node) % NODES.len()].to_owned();
    let start = |attempt| v1::StartFact {
        start_wall_ms: 1_700_000_000_000 + job * 1_000,
        pid: 100 + job as u32,
        ..start_of(JobId(job), attempt)
    };
    let finish = |attempt, end| v1::FinishFact {
        start: Some(start(attempt)),
        finish_wall_ms: 1_700_000_000_500 + job * 1_000,
        ..finish_of(JobId(job), attempt, end)
    };
    let tell = |agent: &str, kind| Item::Fact { agent: agent.to_owned(), kind: Box::new(kind) };
    let started = |attempt| tell(&agent, fact::Kind::Start(start(attempt)));
    let ended = |attempt, end| tell(&agent, fact::Kind::Finish(finish(attempt, end)));
    let assign = |agent: &str| Item::Assign { job, agent: agent.to_owned() };
    let mut items = vec![Item::Submit];
    match kind % 5 {
        0 => items.extend([assign(&agent), ended(1, End::WaitStatus(0))]),
        1 => items.extend([assign(&agent), started(1), ended(1, End::WaitStatus(7 << 8))]),
        2 => items.extend([assign(&agent), started(1), ended(1, End::WaitStatus(9))]),
        3 => items.extend([assign(&agent), started(1)]),
        _ => {
            // A node of its own fails it: one that failed is kept out, which is not the matter here.
            let bad = format!("agent-bad-{job}");
            let refused = v1::RefusedFact {
                attempt: Some(attempt_ref(JobId(job), 1)),
                token: Some(v1::Token { generation: 1, attempt: 1 }),
                failure: Some(node_failure()),
            };
            items.extend([assign(&bad), tell(&bad, fact::Kind::Refused(refused))]);
            items.extend([assign(&agent), started(2), ended(2, End::WaitStatus(0))]);
        }
    }
    items
}

/// One log of all these lives, mixed as the dice say; submits in order of their ids.
fn log(lives: &[(u8, u8)], dice: &[u16]) -> Vec<Item> {
    let mut lives: Vec<Vec<Item>> =
        (1u64..).zip(lives).map(|(job, (node, kind))| life(job, *node, *kind)).collect();
    lives.iter_mut().for_each(|life| life.reverse());
    let (mut out, mut submitted) = (Vec::new(), 0);
    for die in dice.iter().cycle() {
        let open: Vec<usize> =
            (0..lives.len()).filter(|n| *n <= submitted && !lives[*n].is_empty()).collect();
        let Some(n) = open.get(usize::from(*die) % open.len().max(1)).copied() else { break };
        let item = lives[n].pop().expect("it is open");
        submitted += usize::from(matches!(item, Item::Submit));
        out.push(item);
    }
    out
}

/// The same with facts moved ahead as far as the dice say, each agent's in their order.
fn ahead(log: &[Item], dice: &[u16]) -> Vec<Item> {
    let mut placed: Vec<(usize, usize, Item)> = Vec::new();
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    let mut dice = dice.iter().cycle();
    for (n, item) in log.iter().enumerate() {
        let at = match item {
            Item::Fact { agent, .. } => {
                let die = usize::from(*dice.next().expect("it is a cycle"));
                let first = last.get(agent).copied().unwrap_or(0);
                let at = first + die % (n - first + 1);
                last.insert(agent.clone(), at);
                at
            }
            _ => n,
        };
        // Before what stands there, behind what was moved there before.
        placed.push((at, if at == n { usize::MAX } else { n }, item.clone()));
    }
    placed.sort_by_key(|(at, n, _)| (*at, *n));
    placed.into_iter().map(|(_, _, item)| item).collect()
}

/// How a log is applied.
#[derive(Clone, Copy, Default)]
struct How {
    /// Read back from an image before this item.
    image_at: Option<usize>,
    /// The time to live passes before this item, and all that is due is settled.
    pass_at: Option<usize>,
    unknown_finish_max: u64,
}

/// State, reason, code, signal, attempt, node, start, finish.
type End1 = (String, Option<i32>, Option<i32>, u32, Option<String>, Option<u64>, Option<u64>);

struct Run {
    world: World,
    again: Vec<(String, fact::Kind)>,
}

impl Run {
    fn tell(&mut self, agent: &str, kind: fact::Kind) {
        let told = self.world.facts(agent, vec![kind.clone()]);
        let Outcome::FactsTaken { later, high, .. } = told else { panic!("{told:?}") };
        assert_eq!(high, Seq(*self.world.seq(agent) - 1));
        self.again.extend(later.into_iter().map(|_| (agent.to_owned(), kind.clone())));
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Submit => drop(self.world.submit()),
            Item::Assign { job, agent } => {
                assert_eq!(self.world.assign_to(JobId(*job), agent), Outcome::Assigned);
            }
            Item::Fact { agent, kind } => self.tell(agent, (**kind).clone()),
        }
    }
}

fn apply(log: &[Item], jobs: u64, how: How) -> (World, Vec<End1>) {
    let mut world = World::new();
    let policy =
        Some(v1::Policy { unknown_finish_max: how.unknown_finish_max, ..Default::default() });
    world.apply(Command::Configure(v1::ConfigureCommand { policy, ..Default::default() }));
    NODES.iter().for_each(|node| world.node_up(node, 1, "j"));
    (1..=jobs).for_each(|job| world.node_up(&format!("agent-bad-{job}"), 1, "j"));
    let mut run = Run { world, again: Vec::new() };
    for (n, item) in log.iter().enumerate() {
        if how.image_at == Some(n) {
            let image = bytes(&run.world.ledger.freeze());
            run.world.ledger = Ledger::thaw(image.into_iter()).expect("its own image");
            run.world.ledger.check();
        }
        if how.pass_at == Some(n) {
            run.world.pass(60_000);
            while run.world.tick().1 {}
            assert_eq!(run.world.ledger.deferred_counts().0, 0);
        }
        run.item(item);
    }
    // Keepers tell again what they were told to.
    for _ in 0..1_000 {
        for (agent, kind) in std::mem::take(&mut run.again) {
            run.tell(&agent, kind);
        }
    }
    assert!(run.again.is_empty(), "what was put off is taken in the end");
    let ends = (1..=jobs).map(|job| {
        let t = run.world.task(JobId(job));
        (t.state, t.exit_code, t.signal, t.attempt, t.node, t.start_wall_ms, t.finish_wall_ms)
    });
    let ends = ends.collect();
    (run.world, ends)
}

fn lives() -> impl Strategy<Value = Vec<(u8, u8)>> {
    prop::collection::vec((any::<u8>(), any::<u8>()), 1..8)
}

fn dice() -> impl Strategy<Value = Vec<u16>> {
    prop::collection::vec(any::<u16>(), 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn facts_ahead_of_their_jobs_lead_to_the_same_ends(
        lives in lives(), mix in dice(), moves in dice(), image_at in 0usize..40, pass_at in 0usize..40
    ) {
        let (jobs, plain) = (lives.len() as u64, log(&lives, &mix));
        let moved = ahead(&plain, &moves);
        let (world, ends) = apply(&plain, jobs, How::default());
        prop_assert_eq!(world.ledger.counters().deferred, 0);
        let (early, same) = apply(&moved, jobs, How::default());
        prop_assert_eq!(&same, &ends);
        prop_assert_eq!(early.ledger.deferred_counts(), (0, 0));
        let counters = early.ledger.counters();
        prop_assert_eq!(counters.drained, counters.deferred);
        // Through an image at any point.
        let (thawed, same) = apply(&moved, jobs, How { image_at: Some(image_at), ..How::default() });
        prop_assert_eq!(&same, &ends);
        prop_assert_eq!(bytes(&thawed.ledger.freeze()), bytes(&early.ledger.freeze()));
        // As orphans. A refusal does not become one; but then its assignment waits for a node that
        // tells it again, which this log does not.
        if lives.iter().all(|(_, kind)| kind % 5 != 4) {
            let (late, same) = apply(&moved, jobs, How { pass_at: Some(pass_at), ..How::default() });
            prop_assert_eq!(&same, &ends);
            let counters = late.ledger.counters();
            prop_assert_eq!(counters.orphans_drained, counters.expired);
        }
    }

    #[test]
    fn a_full_registry_puts_facts_off_and_loses_none(
        lives in lives(), mix in dice(), moves in dice(), max in 1u64..4
    ) {
        // Without refusals: one that comes again after its attempt was assigned is another log.
        let lives: Vec<_> = lives.into_iter().map(|(node, kind)| (node, kind % 4)).collect();
        let (jobs, plain) = (lives.len() as u64, log(&lives, &mix));
        let (_, ends) = apply(&plain, jobs, How::default());
        let how = How { unknown_finish_max: max, ..How::default() };
        let (_, same) = apply(&ahead(&plain, &moves), jobs, how);
        prop_assert_eq!(same, ends);
    }
}

/// Guards the tests above: facts that are never ahead would prove nothing.
#[test]
fn moved_logs_fill_the_registry() {
    let lives: Vec<(u8, u8)> = (0..5).map(|kind| (kind, kind)).collect();
    let plain = log(&lives, &[3, 1, 4]);
    let moved = ahead(&plain, &[0]);
    let (world, _) = apply(&moved, 5, How::default());
    assert!(world.ledger.counters().deferred >= 8);
    let moved = ahead(&log(&lives[..4], &[3, 1, 4]), &[0]);
    let (world, _) = apply(&moved, 4, How { unknown_finish_max: 1, ..How::default() });
    assert!(world.ledger.counters().refused >= 4);
}
