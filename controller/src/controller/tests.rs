//! A controller that cannot go on: the process that carries it is told the first cause, in words, and
//! it answers nobody as if it were whole.

use super::*;
use crate::pump::Committed;
use futures::FutureExt as _;
use prost::Message as _;

/// Nothing here takes longer, on any machine.
const SOON: Duration = Duration::from_secs(20);

/// A controller and the way into it, whose end would be that of its services.
async fn started(dir: &Path) -> (Controller, mpsc::Sender<tokio::io::DuplexStream>) {
    let (streams, memory) = mpsc::channel(1);
    let sources = Sources { tcp: None, http: None, unix: None, memory };
    (start(Config::new(dir), sources).await.unwrap(), streams)
}

/// An entry at a position that was applied long ago, which is a state that cannot be.
fn impossible() -> Committed {
    let proposal = v1::Proposal { level: proto::LEVEL, ..v1::Proposal::default() };
    Committed {
        position: 1,
        bytes: proposal.encode_to_vec().into(),
        reply: None,
        committed: Instant::now(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_while_applying_is_told_with_its_own_words_and_ends_the_controller() {
    let dir = tempfile::tempdir().unwrap();
    let (controller, _streams) = started(dir.path()).await;
    controller.pump.apply(vec![impossible()]).await.unwrap();
    let why = tokio::time::timeout(SOON, controller.failed()).await.expect("it must end");
    assert!(why.contains("log entry 1") && why.contains("entry 1 comes after entry"), "{why}");
    assert!(controller.pump.read(|_| ()).await.is_err(), "a dead ledger is not read");
    tokio::time::timeout(SOON, controller.stop()).await.expect("it stops all the same");
    let (again, _streams) = started(dir.path()).await;
    assert!(again.failed().now_or_never().is_none(), "what was acknowledged is whole");
    again.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_anywhere_in_the_pump_is_the_first_cause_whoever_notices_it() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let (controller, _streams) = started(dir.path()).await;
        let look = controller.pump.read(|_: pump::View<'_>| -> () { panic!("a look that broke") });
        assert!(look.await.is_err());
        let why = tokio::time::timeout(SOON, controller.failed()).await.expect("it must end");
        assert!(why.contains("a look that broke"), "round {round}: {why}");
        controller.stop().await;
    }
}

#[test]
fn a_start_fails_with_what_ended_the_process_and_else_with_what_it_met() {
    let failure = Failure::default();
    let met = || StartError::Node(NodeStartError::Raft("the controller is stopping".to_owned()));
    assert!(matches!(first_cause(&failure, met()), StartError::Node(_)));
    failure.fail("the log entry at 7 cannot be read");
    let told = first_cause(&failure, met()).to_string();
    assert!(told.contains("entry at 7") && !told.contains("stopping"), "{told}");
}

#[tokio::test(start_paused = true)]
async fn a_start_that_goes_on_may_take_longer_than_an_election() {
    let failure = Failure::default();
    let begin = tokio::time::Instant::now();
    // Three looks find it further on, the fourth does not.
    let (_term, serving) = watch::channel(None);
    let mut looks = 0;
    let stuck = until_serving(serving, &failure, || {
        looks += 1;
        looks < 4
    });
    let error = stuck.await.unwrap_err().to_string();
    assert!(error.contains("no majority"), "{error}");
    assert_eq!((looks, begin.elapsed()), (4, SERVING_TIMEOUT * 4));
    // It serves while it goes on.
    let (term, serving) = watch::channel(None);
    let later = async {
        tokio::time::sleep(SERVING_TIMEOUT * 9).await;
        term.send_replace(Some(1));
    };
    let (served, ()) = tokio::join!(until_serving(serving, &failure, || true), later);
    assert!(served.is_ok());
}
