//! Whatever happens in whatever order: the promises of a session hold and nothing panics.
#![allow(clippy::unwrap_used, clippy::panic, reason = "test code: a surprise must end the test")]

mod world;

use proptest::prelude::*;
use proto::v1;
use proto::v1::agent_message::Kind as Up;
use proto::v1::keeper_event::Kind as FromKeeper;
use proto::v1::keeper_request::Kind as ToKeeper;
use proto::v1::leader_message::Kind as Down;
use worker_agent_core::{Action, Event, SessionNo};
use world::{JOURNAL, World, ada, kill_order, run_order};

#[derive(Clone, Debug)]
enum Move {
    Pass(u64),
    Connect,
    Break,
    BreakOlder,
    Welcome { term: u64, generation: u64 },
    Refuse { hint: bool },
    Run { job: u64, term: u64, incarnation_off: u64, leased: bool },
    Kill { job: u64, term: u64, of_older: bool },
    Ack(u64),
    Resend(u64),
    AskManifest,
    Beat { h_ms: u64 },
    Pong { h_ms: u64 },
    KeeperUp(u64),
    KeeperDown,
    Facts { from: u64, count: u64 },
    Manifest,
    User(bool),
    NotSaved,
}

fn moves() -> impl Strategy<Value = Move> {
    prop_oneof![
        4 => (1u64..3_000).prop_map(Move::Pass),
        6 => Just(Move::Connect),
        1 => Just(Move::Break),
        1 => Just(Move::BreakOlder),
        6 => (1u64..5, 1u64..3).prop_map(|(term, generation)| Move::Welcome { term, generation }),
        1 => any::<bool>().prop_map(|hint| Move::Refuse { hint }),
        3 => (1u64..9, 1u64..5, 0u64..2, any::<bool>()).prop_map(
            |(job, term, incarnation_off, leased)| Move::Run { job, term, incarnation_off, leased }
        ),
        3 => (1u64..9, 1u64..5, any::<bool>())
            .prop_map(|(job, term, of_older)| Move::Kill { job, term, of_older }),
        2 => (0u64..20).prop_map(Move::Ack),
        1 => (0u64..20).prop_map(Move::Resend),
        1 => Just(Move::AskManifest),
        3 => (0u64..60).prop_map(|h_ms| Move::Beat { h_ms }),
        3 => (1u64..60).prop_map(|h_ms| Move::Pong { h_ms }),
        3 => (0u64..5).prop_map(Move::KeeperUp),
        1 => Just(Move::KeeperDown),
        4 => (0u64..20, 0u64..4).prop_map(|(from, count)| Move::Facts { from, count }),
        2 => Just(Move::Manifest),
        2 => any::<bool>().prop_map(Move::User),
        1 => Just(Move::NotSaved),
    ]
}

/// What the actions so far must add up to.
#[derive(Default)]
struct Judge {
    saved_incarnation: u64,
    saved_epoch: (u64, u64),
    joined: u64,
    dials: u64,
    /// Next fact that may go up in this session at the latest.
    next_fact: Option<u64>,
    released: u64,
    /// The newest session that was welcomed.
    welcomed: u64,
    /// The dialled session is not abandoned and not released.
    open: bool,
    /// Highest h that a heartbeat of this session sent up, and the last one told to the keeper.
    h_sent: u64,
    h_told: Option<u64>,
}

impl Judge {
    fn see(&mut self, action: &Action) {
        match action {
            Action::Save(saved) => {
                assert!(saved.incarnation >= self.saved_incarnation, "the incarnation went back");
                let epoch = (saved.generation, saved.term);
                assert!(epoch >= self.saved_epoch, "the epoch went back");
                (self.saved_incarnation, self.saved_epoch) = (saved.incarnation, epoch);
            }
            Action::Dial { session, .. } => {
                assert_eq!(session.0, self.dials + 1, "sessions are numbered one by one");
                assert!(!self.open, "dialled over a session whose socket nobody keeps");
                self.dials += 1;
                (self.open, self.h_sent, self.h_told) = (true, 0, None);
            }
            Action::ToLeader { session, message } => {
                assert!(session.0 > self.released || self.released == 0 || session.0 == self.dials);
                self.see_up(message);
            }
            Action::ReleaseBefore(session) => {
                (self.released, self.welcomed) = (session.0 - 1, session.0);
            }
            Action::Abandon(session) => self.open &= session.0 != self.dials,
            Action::Release(session) => {
                assert!(session.0 > self.welcomed, "closed a session that had joined");
                self.open &= session.0 != self.dials;
            }
            Action::ToKeeper(request) => self.see_down(request),
            _ => {}
        }
    }

    fn see_down(&mut self, request: &v1::KeeperRequest) {
        match &request.kind {
            Some(ToKeeper::Renew(renew)) => {
                assert!(renew.h_ms <= self.h_sent, "renewed by what was never sent up");
                assert!(self.h_told < Some(renew.h_ms), "an h went back");
                self.h_told = Some(renew.h_ms);
            }
            Some(ToKeeper::Run(run)) => {
                let expected = run.fence_after_ms.and(self.h_told);
                assert_eq!(run.h_ms, expected, "a run of another session's lease");
            }
            _ => {}
        }
    }

    fn see_up(&mut self, message: &v1::AgentMessage) {
        match &message.kind {
            Some(Up::Join(join)) => {
                assert!(join.incarnation > self.joined, "an incarnation was used twice");
                assert_eq!(join.incarnation, self.saved_incarnation, "joined before it was saved");
                self.joined = join.incarnation;
                self.next_fact = None;
            }
            Some(Up::Facts(facts)) => {
                assert!(facts.from <= facts.to);
                if let Some(next) = self.next_fact {
                    assert!(facts.from <= next, "a fact was skipped");
                }
                self.next_fact = Some(facts.to + 1);
            }
            Some(Up::Heartbeat(beat)) => self.h_sent = self.h_sent.max(beat.h_ms),
            _ => {}
        }
    }
}

struct Play {
    world: World,
    judge: Judge,
    manifest_nonces: Vec<u64>,
    ping_nonces: Vec<u64>,
}

impl Play {
    fn down(&mut self, term: u64, older: bool, kind: Down) {
        let no = self.judge.dials.saturating_sub(u64::from(older));
        let incarnation = self.world.core.saved().incarnation;
        self.world.leader_says(no, term, incarnation, kind);
    }

    fn make(&mut self, step: Move) {
        let no = self.judge.dials;
        let world = &mut self.world;
        match step {
            Move::Pass(ms) => world.pass(ms),
            Move::Connect => world.connects(no),
            Move::Break => world.breaks(no),
            Move::BreakOlder => world.breaks(no.saturating_sub(1)),
            Move::Welcome { term, generation } => {
                let welcome = v1::Welcome { generation, ..World::welcome() };
                self.down(term, false, Down::Welcome(welcome));
            }
            Move::Refuse { hint } => {
                let leader = if hint { "c2:1" } else { "" }.to_owned();
                let refused = v1::Refused { reason: "no".into(), fatal: false, leader };
                self.down(1, false, Down::Refused(refused));
            }
            Move::Run { job, term, incarnation_off, leased } => {
                let incarnation = world.core.saved().incarnation + incarnation_off;
                let fence_after_ms = leased.then_some(600_000);
                let order = v1::RunOrder { fence_after_ms, ..run_order(job) };
                world.leader_says(no, term, incarnation, Down::Run(order));
            }
            Move::Kill { job, term, of_older } => {
                self.down(term, of_older, Down::Kill(kill_order(job)));
            }
            Move::Ack(to) => {
                self.down(4, false, Down::Ack(v1::Ack { journal_id: JOURNAL.to_vec(), to }));
            }
            Move::Resend(from) => {
                let resend = v1::ResendFrom { journal_id: JOURNAL.to_vec(), from };
                self.judge.next_fact = None;
                self.down(4, false, Down::Resend(resend));
            }
            Move::AskManifest => {
                self.down(4, false, Down::SendManifest(v1::SendManifest { nonce: 5 }));
            }
            Move::Beat { h_ms } => {
                self.down(4, false, Down::Heartbeat(v1::HeartbeatAnswer { h_ms }));
            }
            Move::Pong { h_ms } => {
                if let Some(nonce) = self.ping_nonces.pop() {
                    let pong =
                        v1::KeeperPong { nonce, boottime_ms: h_ms, ..v1::KeeperPong::default() };
                    world.keeper(FromKeeper::Pong(pong));
                }
            }
            Move::KeeperUp(acked) => world.keeper_welcomes(acked),
            Move::KeeperDown => world.happens(Event::KeeperLost),
            Move::Facts { from, count } => world.facts(from, from + count),
            Move::Manifest => {
                if let Some(nonce) = self.manifest_nonces.pop() {
                    let manifest = v1::KeeperManifest { nonce, ..v1::KeeperManifest::default() };
                    world.keeper(FromKeeper::Manifest(manifest));
                }
            }
            Move::User(known) => {
                let user = if known { Ok(ada()) } else { Err(worker_agent_core::NoUser::Absent) };
                world.happens(Event::UserLookedUp { uid: 1000, user });
            }
            Move::NotSaved => world.happens(Event::NotSaved { why: "disk".into() }),
        }
    }

    fn look(&mut self) {
        for action in std::mem::take(&mut self.world.actions) {
            self.judge.see(&action);
            let Action::ToKeeper(v1::KeeperRequest { kind: Some(asked) }) = action else {
                continue;
            };
            match asked {
                ToKeeper::Manifest(ask) => self.manifest_nonces.push(ask.nonce),
                ToKeeper::Ping(ping) => self.ping_nonces.push(ping.nonce),
                _ => {}
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn promises_hold_in_any_order_of_events(steps in proptest::collection::vec(moves(), 1..120)) {
        let mut play = Play {
            world: World::new(),
            judge: Judge::default(),
            manifest_nonces: Vec::new(),
            ping_nonces: Vec::new(),
        };
        play.look();
        for step in steps {
            play.make(step);
            play.look();
        }
        // Whatever happened: with all well again, it joins.
        play.world.happens(Event::KeeperLost);
        play.world.keeper_welcomes(0);
        play.look();
        for _ in 0..100 {
            let no = play.judge.dials;
            play.world.connects(no);
            let welcome = v1::Welcome { generation: 9, ..World::welcome() };
            let incarnation = play.world.core.saved().incarnation;
            play.world.leader_says(no, 9, incarnation, Down::Welcome(welcome));
            if play.world.has(&Action::ReleaseBefore(SessionNo(no))) {
                return Ok(());
            }
            play.look();
            play.world.pass(1_000);
            play.look();
        }
        prop_assert!(false, "it never joined again");
    }
}
