//! `docket logs`.

use super::context::Context;
use super::copy::{CopyError, copy};
use super::sink::{Sink, Stream};
use crate::args::LogsArgs;
use crate::client::Patience;
use crate::exit;
use crate::failure::Failure;
use proto::v1::LogsRequest;

/// Prints an output as it is.
pub async fn logs(context: &Context, args: &LogsArgs) -> Result<u8, Failure> {
    let request = LogsRequest {
        job: args.id.job.0,
        task: args.id.index,
        stderr: args.stderr,
        offset: args.offset,
        tail_lines: args.tail,
        follow: args.follow,
        attempt: args.attempt,
    };
    // Who follows wants to see the end, also of a job whose agent is restarted meanwhile.
    let patience = if args.follow { Patience::ENDLESS } else { Patience::READ };
    let mut client = context.client().await?;
    let sink = Sink::open(Stream::Stdout)?;
    let copied = copy(&mut client, request, &sink, patience).await;
    // What is known was worth printing, whatever came then.
    sink.close().await?;
    match copied {
        Ok(_) | Err(CopyError::Stopped) => Ok(exit::DONE),
        Err(CopyError::Client(error)) => Err(error.into()),
    }
}
