//! `docket explain` and `docket events`.

use super::context::Context;
use crate::args::{EventsArgs, ExplainArgs};
use crate::client::Patience;
use crate::exit;
use crate::failure::Failure;
use crate::say::{note, print};
use proto::v1::{EventsRequest, ExplainRequest};

/// Why jobs are in their states.
pub async fn explain(context: &Context, args: &ExplainArgs) -> Result<u8, Failure> {
    let mut client = context.client().await?;
    let mut answers = Vec::new();
    for id in &args.ids {
        let request = ExplainRequest { job: id.job.0, task: id.index };
        let answer = client
            .ask(Patience::READ, note, async |client| client.jobs().explain(request).await)
            .await?;
        answers.push(answer);
    }
    print(&context.renderer(args.output.form()).explain(&answers))?;
    Ok(exit::DONE)
}

/// How a job got into its state.
pub async fn events(context: &Context, args: &EventsArgs) -> Result<u8, Failure> {
    let request = EventsRequest { job: args.id.job.0, task: args.id.index };
    let mut client = context.client().await?;
    let answer = client
        .ask(Patience::READ, note, async |client| client.jobs().events(request).await)
        .await?;
    print(&context.renderer(args.output.form()).events(&answer))?;
    Ok(exit::DONE)
}
