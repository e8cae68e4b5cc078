//! A run order in the keeper's terms: who, with which environment, into which files. What the
//! node cannot do for this user becomes a refusal that the keeper journals, so that it reaches
//! the controller like any other end.

use crate::agent::CoreConfig;
use crate::environment::{JobPlace, job_environment};
use crate::pattern::{Names, output_path};
use crate::slurm::{SlurmPlace, add_slurm};
use crate::user::{NoUser, User, account_of};
use prost::Message as _;
use proto::AttemptId;
use proto::v1;

/// Largest frame of the keeper's socket.
pub const KEEPER_FRAME_MAX_BYTES: usize = 4 << 20;

/// Of a frame, kept free for the message around a run.
const FRAME_SLACK_BYTES: usize = 1 << 10;

const E2BIG: i32 = 7;
const EINVAL: i32 = 22;

/// Path prefix of an attempt's run files: `RUNS/<job>/<task>.<attempt>`, task 0 if there is none.
pub fn run_file(runs_dir: &[u8], attempt: AttemptId) -> Vec<u8> {
    let AttemptId { task, attempt } = attempt;
    let name = format!("/{}/{}.{attempt}", task.job, task.index.unwrap_or(0));
    [runs_dir, name.as_bytes()].concat()
}

/// The keeper's request; `None`: the order names no attempt or has no token. A leased run begins
/// with the last echo of its session, if there was one.
pub fn keeper_run(
    config: &CoreConfig,
    cluster_id: &str,
    order: v1::RunOrder,
    found: &Result<User, NoUser>,
    last_echo_ms: Option<u64>,
) -> Option<v1::KeeperRun> {
    let attempt = AttemptId::from_wire(order.attempt.as_ref()).ok()?;
    order.token.as_ref()?;
    let bare = v1::KeeperRun {
        order_id: order.order_id,
        attempt: order.attempt,
        token: order.token,
        user: order.user.clone(),
        uid: order.uid,
        mem_bytes: order.mem_bytes,
        time_limit_ms: order.time_limit_ms,
        gpus: order.gpus.clone(),
        cluster_id: cluster_id.to_owned(),
        fence_after_ms: order.fence_after_ms,
        h_ms: order.fence_after_ms.and(last_echo_ms),
        default_grace_ms: config.kill_grace_ms,
        run_file: run_file(&config.runs_dir, attempt),
        output_max_bytes: config.output_max_bytes,
        ..v1::KeeperRun::default()
    };
    let filled = account_of(config, &order, found)
        .and_then(|user| fill(config, bare.clone(), order, attempt, user));
    Some(filled.unwrap_or_else(|why| v1::KeeperRun { refuse: Some(why), ..bare }))
}

fn fill(
    config: &CoreConfig,
    bare: v1::KeeperRun,
    order: v1::RunOrder,
    attempt: AttemptId,
    user: User,
) -> Result<v1::KeeperRun, v1::StartFailure> {
    let spec = v1::JobSpec::decode(&order.spec[..]).map_err(|why| garbled("spec", &why))?;
    let env = v1::EnvBlob::decode(&order.env[..]).map_err(|why| garbled("environment", &why))?;
    let names = Names { attempt, node: &config.name, name: &spec.name, user: &user.name };
    let path = |pattern: &Option<Vec<u8>>| match pattern {
        Some(pattern) if !pattern.is_empty() => output_path(&spec.dir, pattern, &names),
        _ => Vec::new(),
    };
    let offers = config.resources.gpus > 0 || !order.gpus.is_empty();
    let gpus = offers.then_some(&*order.gpus);
    let place = JobPlace { attempt, node: &config.name, cpus: order.cpus, gpus };
    let mut env = job_environment(env.vars, &place, &user);
    if spec.slurm_env {
        let (mem_bytes, uid) = (order.mem_bytes, order.uid);
        add_slurm(&mut env, &spec, &SlurmPlace { place, mem_bytes, uid, user: &user.name });
    }
    let run = v1::KeeperRun {
        stdout_path: path(&spec.stdout_pattern),
        stderr_path: path(&spec.stderr_pattern),
        env,
        spec: order.spec,
        stdin: order.stdin,
        gid: user.gid,
        groups: user.groups,
        ..bare
    };
    let size = run.encoded_len();
    if size > KEEPER_FRAME_MAX_BYTES - FRAME_SLACK_BYTES {
        let message = format!(
            "specification, environment and stdin are {size} bytes, a node takes at most {}",
            KEEPER_FRAME_MAX_BYTES - FRAME_SLACK_BYTES
        );
        return Err(failure("exec", E2BIG, message, false));
    }
    Ok(run)
}

/// A controller sent what this build cannot read: the node's fault, another may do better.
fn garbled(what: &str, why: &prost::DecodeError) -> v1::StartFailure {
    failure("order", EINVAL, format!("cannot read the job's {what}: {why}"), true)
}

fn failure(step: &str, errno: i32, message: String, node_fault: bool) -> v1::StartFailure {
    v1::StartFailure { step: step.to_owned(), errno, message, node_fault, ..Default::default() }
}
