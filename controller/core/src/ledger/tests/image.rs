//! The image: what is frozen comes back as it was and goes on as it would have.

use super::world::*;
use crate::ledger::{Frozen, IMAGE_CHUNK_BYTES, ImageError, Ledger, Outcome};
use prost::Message as _;
use proto::v1::{self, DownCause, Phase, command::Kind as Command, finish_fact::End};

pub(super) fn bytes(frozen: &Frozen) -> Vec<Vec<u8>> {
    frozen.chunks().collect()
}

/// Something of everything.
fn full_world() -> World {
    let mut world = World::with_node();
    world.node_up(N2, 3, "k1");
    let (fault, done, died) = (world.dispatched(), world.running(), world.running());
    world.finish(done, code(0));
    world.finish(died, End::WaitStatus(0x8b));
    world.refuse(fault);
    world.pass(1000);
    let (cancelled, asked) = (world.submit(), world.running());
    world.cancel(cancelled);
    world.cancel(asked);
    let signalled = world.suspended();
    let by = || Some(user("mia"));
    world.apply(Command::Cancel(v1::CancelCommand {
        tasks: Vec::new(),
        by: by(),
        request_id: "s".to_owned(),
        jobs: vec![signalled.0],
        signal: Some(10),
    }));
    world.apply(Command::Suspend(v1::SuspendCommand {
        tasks: Vec::new(),
        by: by(),
        request_id: "u".to_owned(),
        jobs: vec![signalled.0],
        resume: true,
    }));
    world.dispatched();
    world.submit_spec(v1::JobSpec { hold: true, ..spec() });
    let stdin = blob(b"input".to_vec());
    let (mut blobs, mut command) = submit(&v1::JobSpec { has_stdin: true, ..spec() }, "tom", "t");
    if let Command::Submit(submit) = &mut command {
        submit.stdin_hash = Some(stdin.hash.clone());
    }
    blobs.push(stdin);
    world.apply_all(blobs, vec![command]);
    world.retrying();
    let failed = world.retrying();
    world.finish(
        failed,
        End::StartFailure(v1::StartFailure {
            step: "exec".to_owned(),
            ..v1::StartFailure::default()
        }),
    );
    world.node_up("agent-3", 1, "l1");
    let waits = world.submit_spec(retrying());
    world.assign_to(waits, "agent-3");
    let started = world.start_fact(waits);
    world.facts("agent-3", vec![started]);
    world.down("agent-3", 1, DownCause::Rdhup);
    world.hold(waits, false, "h");
    world.term(4);
    world.join(N1, 2, "j1");
    let item = world.item(asked, Phase::Running);
    let first = v1::ManifestCommand { last: false, ..world.page(N1, vec![item]) };
    world.apply(Command::Manifest(first));
    world.down(N2, 3, DownCause::Rdhup);
    world
}

#[test]
fn an_image_reads_back_as_the_same_bytes_and_goes_on_alike() {
    let mut world = full_world();
    let image = bytes(&world.ledger.freeze());
    let thawed = Ledger::thaw(image.iter().cloned()).expect("the image is whole");
    thawed.check();
    assert_eq!(bytes(&thawed.freeze()), image);
    let mut twin = full_world();
    twin.ledger = thawed;
    for world in [&mut world, &mut twin] {
        let second = v1::ManifestCommand { page: 1, ..world.page(N1, Vec::new()) };
        assert!(matches!(world.apply(Command::Manifest(second)), Outcome::Manifest(_)));
        world.pass(400_000);
        world.tick();
        world.submit();
    }
    assert_eq!(bytes(&world.ledger.freeze()), bytes(&twin.ledger.freeze()));
}

#[test]
fn what_a_job_used_stays_with_it_and_an_older_node_tells_less() {
    let told = |bytes: &[u8]| {
        let mut world = World::with_node();
        let job = world.running();
        let rusage = v1::Rusage::decode(bytes).expect("as a node wrote it");
        let fact = v1::FinishFact { rusage: Some(rusage), ..world.finish_fact(job, code(0)) };
        world.facts(N1, vec![v1::fact::Kind::Finish(fact)]);
        let image = bytes_of(&world);
        world.ledger = Ledger::thaw(image.into_iter()).expect("the image is whole");
        world.task(job)
    };
    let waited = v1::Rusage { user_us: 1, system_us: 2, max_rss_bytes: 3, ..Default::default() };
    let old = told(&[0x08, 1, 0x10, 2, 0x18, 3]);
    assert_eq!(old.rusage, Some(waited));
    let new = told(&[0x08, 1, 0x10, 2, 0x18, 3, 0x20, 1, 0x28, 4, 0x30, 5]);
    let whole = v1::Rusage { whole_tree: true, peak_bytes: Some(4), oom_kills: 5, ..waited };
    assert_eq!(new.rusage, Some(whole));
    assert_eq!(new.state, "DONE", "a process that was killed for memory ends no job by itself");
}

fn bytes_of(world: &World) -> Vec<Vec<u8>> {
    bytes(&world.ledger.freeze())
}

#[test]
fn a_frozen_view_does_not_see_what_comes_after_it() {
    let mut world = full_world();
    let frozen = world.ledger.freeze();
    let before = bytes(&frozen);
    let job = world.submit();
    world.cancel(job);
    world.term(9);
    assert_eq!(bytes(&frozen), before);
}

#[test]
fn freezing_copies_no_page_and_a_change_copies_one() {
    let mut world = World::new();
    for _ in 0..200 {
        world.submit();
    }
    let view = world.ledger.jobs.clone();
    assert_eq!(world.ledger.jobs.shared_pages(&view), 4);
    world.cancel(proto::JobId(70));
    assert_eq!(world.ledger.jobs.shared_pages(&view), 3);
}

#[test]
fn a_large_image_comes_in_chunks_of_bounded_size() {
    let mut world = World::new();
    for n in 0..40u8 {
        world.submit_spec(v1::JobSpec { script: Some(vec![n; 20_000]), ..spec() });
    }
    let image = bytes(&world.ledger.freeze());
    assert!(image.len() >= 3, "{} chunks", image.len());
    assert!(image.iter().all(|chunk| chunk.len() < IMAGE_CHUNK_BYTES + 30_000));
    Ledger::thaw(image.into_iter()).expect("the image is whole").check();
}

#[test]
fn a_frozen_view_can_be_written_by_another_thread() {
    let world = full_world();
    let (frozen, here) = (world.ledger.freeze(), bytes(&world.ledger.freeze()));
    #[allow(clippy::disallowed_methods, reason = "the shell writes snapshots on another thread")]
    let there = std::thread::spawn(move || bytes(&frozen)).join().expect("it does not panic");
    assert_eq!(there, here);
}

#[test]
fn a_broken_image_is_refused_wherever_it_is_cut() {
    let world = full_world();
    let image = bytes(&world.ledger.freeze());
    assert!(Ledger::thaw(std::iter::empty()).is_err());
    let chunk = v1::ImageChunk::decode(image[0].as_slice()).expect("a chunk");
    for cut in 0..chunk.records.len() {
        let mut short = chunk.clone();
        short.records.remove(cut);
        let thawed = Ledger::thaw(std::iter::once(short.encode_to_vec()));
        assert!(thawed.is_err(), "record {cut} is missing and nobody said so");
    }
    let garbage = Ledger::thaw(std::iter::once(vec![0xff; 10]));
    assert!(matches!(garbage, Err(ImageError::Undecodable { chunk: 0, .. })));
}

#[test]
fn a_newer_format_is_refused_by_name() {
    let head = v1::ImageHead { format: 2, ..v1::ImageHead::default() };
    let record = v1::ImageRecord { kind: Some(v1::image_record::Kind::Head(head)) };
    let chunk = v1::ImageChunk { records: vec![record] };
    let refused = Ledger::thaw(std::iter::once(chunk.encode_to_vec())).err();
    assert_eq!(refused, Some(ImageError::Newer { found: 2, known: 1 }));
}
