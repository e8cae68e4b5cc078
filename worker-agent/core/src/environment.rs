//! The environment of a job: the submitter's variables, docket's own, and the login names where
//! the submitter gave none (design 6, design 7).

use crate::user::User;
use proto::AttemptId;

/// What docket tells a job about itself.
#[derive(Clone, Copy, Debug)]
pub struct JobPlace<'a> {
    /// Which attempt.
    pub attempt: AttemptId,
    /// Name of the node.
    pub node: &'a str,
    /// Cpus granted.
    pub cpus: u32,
    /// Indices of the gpus granted; `None`: the node offers none, and leaves it to its users what they see.
    pub gpus: Option<&'a [u32]>,
}

/// Names that only docket sets; a submitter's value of them is dropped. The keeper adds the token.
const OURS: [&[u8]; 7] = [
    b"DOCKET_JOB_ID",
    b"DOCKET_TASK_ID",
    b"DOCKET_ATTEMPT",
    b"DOCKET_NODE",
    b"DOCKET_CPUS",
    b"DOCKET_TOKEN",
    b"DOCKET_GPUS",
];

/// What programs choose gpus by. On a node that offers some only docket says which: a submitter's value is
/// of another node, or of an allocation that is over. The runtime of AMD reads the first one as well, and a
/// second choice would count within the first, so that one is the only one that is set.
const CHOOSERS: [&[u8]; 6] = [
    b"CUDA_VISIBLE_DEVICES",
    b"HIP_VISIBLE_DEVICES",
    b"ROCR_VISIBLE_DEVICES",
    b"GPU_DEVICE_ORDINAL",
    b"NVIDIA_VISIBLE_DEVICES",
    b"ZE_AFFINITY_MASK",
];

/// The final environment but for `DOCKET_TOKEN`. `DOCKET_TASK_ID` is set in array jobs only.
pub fn job_environment(submitted: Vec<Vec<u8>>, place: &JobPlace<'_>, user: &User) -> Vec<Vec<u8>> {
    let mut env = submitted;
    env.retain(|var| !OURS.contains(&name_of(var)));
    let defaults: [(&str, &[u8]); 4] = [
        ("HOME", &user.home),
        ("USER", user.name.as_bytes()),
        ("LOGNAME", user.name.as_bytes()),
        ("SHELL", &user.shell),
    ];
    for (name, value) in defaults {
        if !env.iter().any(|var| name_of(var) == name.as_bytes()) {
            env.push(variable(name, value));
        }
    }
    let AttemptId { task, attempt } = place.attempt;
    env.push(variable("DOCKET_JOB_ID", task.job.to_string().as_bytes()));
    if let Some(index) = task.index {
        env.push(variable("DOCKET_TASK_ID", index.to_string().as_bytes()));
    }
    env.push(variable("DOCKET_ATTEMPT", attempt.to_string().as_bytes()));
    env.push(variable("DOCKET_NODE", place.node.as_bytes()));
    env.push(variable("DOCKET_CPUS", place.cpus.to_string().as_bytes()));
    if let Some(gpus) = place.gpus {
        show_gpus(&mut env, gpus);
    }
    env
}

/// Of a job that was given none the list is empty: it sees none.
fn show_gpus(env: &mut Vec<Vec<u8>>, gpus: &[u32]) {
    env.retain(|var| !CHOOSERS.contains(&name_of(var)));
    let list: Vec<String> = gpus.iter().map(u32::to_string).collect();
    let list = list.join(",");
    env.push(variable("CUDA_VISIBLE_DEVICES", list.as_bytes()));
    env.push(variable("DOCKET_GPUS", list.as_bytes()));
}

/// Name of a variable.
pub(crate) fn name_of(var: &[u8]) -> &[u8] {
    var.split(|byte| *byte == b'=').next().unwrap_or_default()
}

/// `NAME=value`.
pub(crate) fn variable(name: &str, value: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b"=", value].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::{JobId, TaskId};

    fn user() -> User {
        User {
            name: "ada".into(),
            gid: 7,
            groups: vec![7],
            home: b"/home/ada".to_vec(),
            shell: b"/bin/zsh".to_vec(),
        }
    }

    fn env_of(submitted: &[&[u8]], index: Option<u32>) -> Vec<String> {
        env_on(submitted, index, None)
    }

    fn env_on(submitted: &[&[u8]], index: Option<u32>, gpus: Option<&[u32]>) -> Vec<String> {
        let task = TaskId { job: JobId(12), index };
        let place = JobPlace { attempt: AttemptId { task, attempt: 3 }, node: "n1", cpus: 4, gpus };
        let submitted = submitted.iter().map(|var| var.to_vec()).collect();
        let env = job_environment(submitted, &place, &user());
        env.into_iter().map(|var| String::from_utf8_lossy(&var).into_owned()).collect()
    }

    #[test]
    fn docket_names_win_and_login_names_fill_gaps() {
        let env =
            env_of(&[b"HOME=/tmp", b"DOCKET_JOB_ID=99", b"DOCKET_TOKEN=x", b"A=b=c\nd"], None);
        let expected = [
            "HOME=/tmp",
            "A=b=c\nd",
            "USER=ada",
            "LOGNAME=ada",
            "SHELL=/bin/zsh",
            "DOCKET_JOB_ID=12",
            "DOCKET_ATTEMPT=3",
            "DOCKET_NODE=n1",
            "DOCKET_CPUS=4",
        ];
        assert_eq!(env, expected);
    }

    #[test]
    fn only_a_member_of_an_array_has_a_task_id() {
        assert!(env_of(&[], Some(0)).contains(&"DOCKET_TASK_ID=0".to_owned()));
        assert!(!env_of(&[], None).iter().any(|var| var.starts_with("DOCKET_TASK_ID")));
    }

    #[test]
    fn a_job_sees_the_gpus_that_it_was_given_and_never_those_of_its_submitter() {
        let submitted: [&[u8]; 4] =
            [b"CUDA_VISIBLE_DEVICES=3", b"ROCR_VISIBLE_DEVICES=1", b"DOCKET_GPUS=9", b"A=b"];
        let of_gpus = |gpus: Option<&[u32]>| -> Vec<String> {
            let env = env_on(&submitted, None, gpus);
            env.into_iter().filter(|var| var.contains("VISIBLE") || var.contains("GPUS")).collect()
        };
        assert_eq!(of_gpus(Some(&[0, 2])), ["CUDA_VISIBLE_DEVICES=0,2", "DOCKET_GPUS=0,2"]);
        assert_eq!(of_gpus(Some(&[])), ["CUDA_VISIBLE_DEVICES=", "DOCKET_GPUS="]);
        // Where docket gives none away they are the users' own business.
        assert_eq!(of_gpus(None), ["CUDA_VISIBLE_DEVICES=3", "ROCR_VISIBLE_DEVICES=1"]);
    }

    #[test]
    fn variables_pass_as_given_even_odd_ones() {
        let odd: [&[u8]; 3] = [b"BASH_FUNC_x%%=() { :\n}", b"no-equals-sign", b"EMPTY="];
        let env = env_of(&odd, None);
        assert_eq!(env[..3], ["BASH_FUNC_x%%=() { :\n}", "no-equals-sign", "EMPTY="]);
    }
}
