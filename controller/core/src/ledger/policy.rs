//! The values of the cluster that the ledger uses (design 7, marked *), and what they may be.

use super::outcome::Rejection;
use proto::v1::{OnDisconnect, Policy};

/// The defaults of design 7.
pub(super) fn default_policy() -> Policy {
    Policy {
        heartbeat_timeout_ms: 30_000,
        transient_job_timeout_ms: 300_000,
        unknown_finish_ttl_ms: 60_000,
        unknown_finish_max: 65_536,
        on_disconnect: OnDisconnect::Exit as i32,
        max_queue: 1_000_000,
        job_ttl_ms: 7 * 24 * 3600 * 1000,
        max_completed: 100_000,
        fence_after_ms: 10 * 60 * 1000,
        default_time_ms: None,
        max_time_ms: None,
    }
}

/// Completes and judges a policy: 0 and unspecified mean the default where 0 makes no sense.
pub(super) fn judge(policy: &Policy) -> Result<Policy, Rejection> {
    let default = default_policy();
    let or = |given: u64, default: u64| if given == 0 { default } else { given };
    let on_disconnect = match policy.on_disconnect() {
        OnDisconnect::Unspecified => OnDisconnect::Exit,
        given => given,
    };
    let judged = Policy {
        heartbeat_timeout_ms: or(policy.heartbeat_timeout_ms, default.heartbeat_timeout_ms),
        transient_job_timeout_ms: or(
            policy.transient_job_timeout_ms,
            default.transient_job_timeout_ms,
        ),
        unknown_finish_ttl_ms: or(policy.unknown_finish_ttl_ms, default.unknown_finish_ttl_ms),
        unknown_finish_max: or(policy.unknown_finish_max, default.unknown_finish_max),
        on_disconnect: on_disconnect as i32,
        max_queue: or(policy.max_queue, default.max_queue),
        job_ttl_ms: or(policy.job_ttl_ms, default.job_ttl_ms),
        max_completed: or(policy.max_completed, default.max_completed),
        fence_after_ms: or(policy.fence_after_ms, default.fence_after_ms),
        default_time_ms: policy.default_time_ms.filter(|ms| *ms > 0),
        max_time_ms: policy.max_time_ms.filter(|ms| *ms > 0),
    };
    if judged.fence_after_ms <= judged.heartbeat_timeout_ms {
        return Err(Rejection::malformed(
            "policy.fence_after_ms",
            format!(
                "{} ms does not exceed heartbeat_timeout, {} ms: a lease must outlast a silence",
                judged.fence_after_ms, judged.heartbeat_timeout_ms
            ),
        ));
    }
    if let (Some(default), Some(max)) = (judged.default_time_ms, judged.max_time_ms)
        && default > max
    {
        let why = format!("{default} ms is above max_time, {max} ms");
        return Err(Rejection::malformed("policy.default_time_ms", why));
    }
    Ok(judged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_takes_its_default() {
        assert_eq!(judge(&Policy::default()), Ok(default_policy()));
    }

    #[test]
    fn a_fence_that_does_not_outlast_a_silence_is_refused() {
        let short = Policy { fence_after_ms: 30_000, ..Policy::default() };
        assert!(judge(&short).is_err());
        let long = Policy { fence_after_ms: 30_001, ..Policy::default() };
        assert!(judge(&long).is_ok());
    }
}
