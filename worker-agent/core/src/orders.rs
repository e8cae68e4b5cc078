//! Orders for the keeper, in the order in which they came: a kill never overtakes the run that
//! still waits for its user to be looked up.

use crate::agent::AgentCore;
use crate::event::Action;
use crate::join::Link;
use crate::run_order::keeper_run;
use crate::user::{NoUser, User};
use proto::v1;
use proto::v1::keeper_request::Kind as ToKeeper;
use std::collections::{BTreeMap, VecDeque};

/// Orders that may wait for a look-up. Past it the user database hangs: the session is given up,
/// and the next join's manifest says what never arrived.
const WAITING_MAX: usize = 16_384;

/// Users remembered; past it all are asked for again.
const USERS_MAX: usize = 1_024;

/// How long a look-up holds: long enough for a burst of jobs, short enough for `usermod`.
const USER_FRESH_MS: u64 = 60_000;

/// How long a failed one holds: `useradd` and a second try must work.
const NO_USER_FRESH_MS: u64 = 1_000;

/// An order of the controller about one attempt.
#[derive(Debug)]
pub enum Order {
    Run(Box<v1::RunOrder>),
    Kill(v1::KillOrder),
    Suspend(v1::SuspendOrder),
    Resume(v1::ResumeOrder),
    Limit(v1::LimitOrder),
    Forget(v1::ForgetOrder),
}

/// Orders not handed on yet, and the users known.
#[derive(Debug, Default)]
pub struct Orders {
    waiting: VecDeque<Order>,
    /// A look-up that is under way.
    looking_up: Option<u32>,
    users: BTreeMap<u32, (Result<User, NoUser>, u64)>,
}

impl Orders {
    pub(crate) fn clear(&mut self) {
        self.waiting.clear();
    }

    /// Those to run, while all that wait are dropped.
    pub(crate) fn drop_all(&mut self) -> Vec<v1::RunOrder> {
        let runs = |order| if let Order::Run(run) = order { Some(*run) } else { None };
        self.waiting.drain(..).filter_map(runs).collect()
    }

    /// The look-up under way was never made; the next order that needs it asks again.
    pub(crate) fn forget_look_up(&mut self) {
        self.looking_up = None;
    }

    fn known(&self, uid: u32, now_ms: u64) -> Option<&Result<User, NoUser>> {
        let (user, at_ms) = self.users.get(&uid)?;
        let fresh_ms = if user.is_ok() { USER_FRESH_MS } else { NO_USER_FRESH_MS };
        (now_ms.saturating_sub(*at_ms) <= fresh_ms).then_some(user)
    }
}

impl AgentCore {
    pub(crate) fn take_order(&mut self, order: Order, now_ms: u64) {
        let Link::Joined(session) = &self.link else { return };
        let no = session.no;
        if let (Order::Run(run), false) = (&order, self.out_of_place.why().is_empty()) {
            return self.refuse_run(run);
        }
        if self.keeper.is_none() {
            if let Order::Run(run) = &order {
                self.run_finds_no_keeper(run);
            }
            // The keeper's return makes a new join, whose manifest shows what is missing.
            self.warn_once("dropped orders: the keeper is away".to_owned());
            return;
        }
        if self.orders.waiting.len() >= WAITING_MAX {
            self.give_up(no, "looking up users takes too long, too many orders wait", now_ms);
            return;
        }
        self.orders.waiting.push_back(order);
        self.hand_orders_on(now_ms);
    }

    pub(crate) fn user_looked_up(&mut self, uid: u32, user: Result<User, NoUser>, now_ms: u64) {
        if self.orders.users.len() >= USERS_MAX {
            self.orders.users.clear();
        }
        self.orders.users.insert(uid, (user, now_ms));
        if self.orders.looking_up == Some(uid) {
            self.orders.looking_up = None;
        }
        self.hand_orders_on(now_ms);
    }

    fn hand_orders_on(&mut self, now_ms: u64) {
        while let Some(order) = self.orders.waiting.pop_front() {
            let request = match order {
                Order::Run(run) => {
                    let Some(user) = self.orders.known(run.uid, now_ms) else {
                        return self.wait_for_user(run);
                    };
                    let h_ms = self.last_echo_ms();
                    keeper_run(&self.config, &self.saved.cluster_id, *run, user, h_ms)
                        .map(ToKeeper::Run)
                }
                other => passed_on(other),
            };
            match request {
                Some(request) => self.tell_keeper(request),
                None => {
                    let text = "refused an order that names no attempt or has no token";
                    self.out.push(Action::Warn(text.to_owned()));
                }
            }
        }
    }

    fn wait_for_user(&mut self, run: Box<v1::RunOrder>) {
        let uid = run.uid;
        self.orders.waiting.push_front(Order::Run(run));
        if self.orders.looking_up.is_none() {
            self.orders.looking_up = Some(uid);
            self.out.push(Action::LookUpUser(uid));
        }
    }
}

/// The keeper's form of every order but a run; `None`: it names nothing.
fn passed_on(order: Order) -> Option<ToKeeper> {
    match order {
        Order::Run(_) => None,
        Order::Kill(kill) => Some(ToKeeper::Kill(v1::KeeperKill {
            order_id: kill.order_id,
            attempt: Some(kill.attempt?),
            token: Some(kill.token?),
            cause: kill.cause,
            // On the keeper's wire 0 means "the attempt's own", on the controller's an absence does.
            grace_ms: kill.grace_ms.map_or(0, |ms| ms.max(1)),
            signal: kill.signal,
        })),
        Order::Suspend(v1::SuspendOrder { order_id, attempt, token }) => {
            let (attempt, token) = (Some(attempt?), Some(token?));
            Some(ToKeeper::Suspend(v1::KeeperSuspend { order_id, attempt, token }))
        }
        Order::Resume(v1::ResumeOrder { order_id, attempt, token }) => {
            let (attempt, token) = (Some(attempt?), Some(token?));
            Some(ToKeeper::Resume(v1::KeeperResume { order_id, attempt, token }))
        }
        Order::Limit(v1::LimitOrder { order_id, attempt, token, time_limit_ms }) => {
            let (attempt, token) = (Some(attempt?), Some(token?));
            Some(ToKeeper::Limit(v1::KeeperLimit { order_id, attempt, token, time_limit_ms }))
        }
        Order::Forget(v1::ForgetOrder { order_id, attempt }) => {
            let attempt = Some(attempt?);
            Some(ToKeeper::Forget(v1::KeeperForget { order_id, attempt }))
        }
    }
}
