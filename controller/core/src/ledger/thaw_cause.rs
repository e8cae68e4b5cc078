//! Reading causes back from an image.

use super::cause::{Cause, Proof, What, Who};
use super::image_parts::proof_code;
use super::state::Kind;
use super::thaw::{Broken, Reader, exit_kind, kind};
use proto::v1::{self, image_cause};

impl Reader {
    pub(super) fn cause(&self, image: &v1::ImageCause) -> Result<Cause, Broken> {
        let who = match image.who.as_ref().ok_or("a cause of nobody")? {
            image_cause::Who::User(number) => Who::User(self.user(*number)?),
            image_cause::Who::AgentId(id) => Who::Agent(self.agent_id(id)),
            image_cause::Who::Controller(id) => Who::Controller(*id),
        };
        let what = self.what(image)?;
        Ok(Cause { position: image.position, wall_ms: image.wall_ms, who, what })
    }

    fn what(&self, image: &v1::ImageCause) -> Result<What, Broken> {
        let number = |n: i64| u32::try_from(n).map_err(|_| "a number out of range");
        let signed = |n: i64| i32::try_from(n).map_err(|_| "a number out of range");
        let status = image.status;
        let text = || image.text.as_str().into();
        Ok(match image.what {
            1 => What::Assigned { agent: self.agent_id(&image.text), attempt: number(image.a)? },
            2 => What::Started { pid: number(image.a)? },
            code @ (3 | 4) => What::Ended {
                from: kind(number(image.a)?)?,
                to: if code == 3 { Kind::Done } else { Kind::Exit },
                kind: exit_kind(image.b)?,
                status,
                leader: image.leader,
            },
            5 => {
                What::NodeFault { step: text(), errno: signed(image.a)?, attempt: number(image.b)? }
            }
            6 => What::CancelRequested,
            7 => What::CancelTooLate,
            8 => What::SignalRequested { signal: number(image.a)? },
            9 => What::Unknown { why: text() },
            10 => What::Claimed { to: kind(number(image.a)?)? },
            11 => What::OrderLost,
            12 => What::Held,
            13 => What::Released,
            14 => What::Priority { to: signed(image.a)? },
            75 => What::Overdue { limit_ms: image.a.cast_unsigned() },
            74 => What::RaceWon { winner: number(image.a)? },
            70 => What::Named { to: image.text.as_str().into() },
            71 => What::TimeLimit { to_ms: Some(image.a.cast_unsigned()).filter(|ms| *ms > 0) },
            72 => What::Cpus { to: number(image.a)? },
            73 => What::Mem { to_bytes: image.a.cast_unsigned() },
            50 => What::ArrayLimit { to: number(image.a)? },
            15 => What::SuspendRequested,
            16 => What::ResumeRequested,
            40 => What::OrphanFound { attempt: number(image.a)? },
            41 => What::OrphanGone { attempt: number(image.a)?, leftover: number(image.b)? },
            17 => What::Late { kind: exit_kind(image.a)?, status },
            18 => What::Suspended,
            19 => What::Resumed,
            42 => What::DependencyMet { index: number(image.a)? },
            43 => What::BeginReached,
            code @ (20 | 21) => What::Closed {
                from: kind(number(image.c)?)?,
                to: if code == 20 { Kind::Queued } else { Kind::Waiting },
                attempt: number(image.a)?,
                agent: self.agent_id(&image.text),
                kind: exit_kind(image.b)?,
                status,
                leader: image.leader,
                detail: (!image.detail.is_empty()).then(|| image.detail.as_str().into()),
            },
            22 => What::Proven {
                attempt: number(image.a)?,
                proof: proof(image.b)?,
                to: kind(number(image.c)?)?,
            },
            51 => What::Freed { attempt: number(image.a)?, proof: proof(image.b)? },
            23 => {
                What::LateAttempt { attempt: number(image.a)?, kind: exit_kind(image.b)?, status }
            }
            32 => What::Adopted { agent: self.agent_id(&image.text), attempt: number(image.a)? },
            _ => return Err("a cause of no known kind"),
        })
    }
}

fn proof(code: i64) -> Result<Proof, Broken> {
    Proof::ALL
        .into_iter()
        .find(|proof| proof_code(*proof) == code)
        .ok_or("a proof of no known kind")
}
