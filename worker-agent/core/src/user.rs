//! Who a job runs as: what the node's user database says against what the order says (design 5).

use crate::agent::CoreConfig;
use proto::v1;

/// An entry of the node's user database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct User {
    /// Login name.
    pub name: String,
    /// Primary group.
    pub gid: u32,
    /// All groups, the primary one too.
    pub groups: Vec<u32>,
    /// Home directory.
    pub home: Vec<u8>,
    /// Login shell.
    pub shell: Vec<u8>,
}

/// Why there is no entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NoUser {
    /// The database has none with that uid.
    Absent,
    /// The database could not be asked.
    Failed {
        /// As the call gave it.
        errno: i32,
    },
}

const EPERM: i32 = 1;
const ENOENT: i32 = 2;

/// The account that the job gets, or the `setuid` step that failed.
pub fn account_of(
    config: &CoreConfig,
    order: &v1::RunOrder,
    found: &Result<User, NoUser>,
) -> Result<User, v1::StartFailure> {
    if config.own_uid != 0 {
        return own_account(config, order, found);
    }
    if order.uid == 0 && !config.allow_root_jobs {
        let why = "this node runs no jobs of root; allow_root_jobs = true in [agent], or \
                   DOCKET_AGENT__ALLOW_ROOT_JOBS=true, changes that"
            .to_owned();
        return Err(failure(EPERM, why));
    }
    match found {
        Ok(user) if user.name == order.user => Ok(user.clone()),
        Ok(user) => Err(failure(
            EPERM,
            format!(
                "uid {} is `{}` on {}, but `{}` where the job was submitted",
                order.uid, user.name, config.name, order.user
            ),
        )),
        Err(NoUser::Absent) => Err(failure(
            ENOENT,
            format!("no user with uid {} (`{}`) on {}", order.uid, order.user, config.name),
        )),
        Err(NoUser::Failed { errno }) => Err(v1::StartFailure {
            node_fault: true,
            ..failure(*errno, format!("cannot look up uid {} on {}", order.uid, config.name))
        }),
    }
}

/// An agent that is not root has one account to give: its own, to its own user.
fn own_account(
    config: &CoreConfig,
    order: &v1::RunOrder,
    found: &Result<User, NoUser>,
) -> Result<User, v1::StartFailure> {
    if order.uid != config.own_uid {
        return Err(failure(
            EPERM,
            format!(
                "the agent on {} runs as uid {} and can run jobs of that user only, not of `{}` (uid {})",
                config.name, config.own_uid, order.user, order.uid
            ),
        ));
    }
    // A container's uid often has no entry; the process itself shows that the account exists.
    Ok(found.clone().unwrap_or_else(|_| User {
        name: order.user.clone(),
        gid: config.own_gid,
        groups: Vec::new(),
        home: b"/".to_vec(),
        shell: b"/bin/sh".to_vec(),
    }))
}

fn failure(errno: i32, message: String) -> v1::StartFailure {
    let step = "setuid".to_owned();
    v1::StartFailure { step, errno, message, ..Default::default() }
}
