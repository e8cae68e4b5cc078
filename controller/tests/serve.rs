//! One controller, started for real on a temporary directory and asked over gRPC in memory: what
//! it acknowledged is there after a restart, and its log begins each term as it must.

#![allow(clippy::unwrap_used, clippy::panic)]

use controller::{Config, Controller, SnapshotEvery, Sources, StartError};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use proto::v1::{self, cluster_client::ClusterClient, jobs_client::JobsClient};
use std::path::Path;
use std::time::{Duration, Instant};
use tokio::io::DuplexStream;
use tokio::sync::mpsc;
use tonic::transport::{Channel, Endpoint};

/// A controller and the way into it.
struct World {
    controller: Controller,
    memory: mpsc::Sender<DuplexStream>,
}

impl World {
    async fn try_start(config: Config) -> Result<World, StartError> {
        let (memory, receiver) = mpsc::channel(8);
        let sources = Sources { tcp: None, http: None, unix: None, memory: receiver };
        Ok(World { controller: controller::start(config, sources).await?, memory })
    }

    async fn start(dir: &Path) -> World {
        World::try_start(Config::new(dir)).await.unwrap()
    }

    fn channel(&self) -> Channel {
        let memory = self.memory.clone();
        Endpoint::from_static("http://memory").connect_with_connector_lazy(tower::service_fn(
            move |_| {
                let memory = memory.clone();
                async move {
                    let (ours, theirs) = tokio::io::duplex(256 * 1024);
                    memory.send(theirs).await.map_err(std::io::Error::other)?;
                    Ok::<_, std::io::Error>(TokioIo::new(ours))
                }
            },
        ))
    }

    fn jobs(&self) -> JobsClient<Channel> {
        JobsClient::new(self.channel())
    }

    async fn submit(&self) -> u64 {
        self.jobs().submit(a_job()).await.unwrap().into_inner().job
    }

    async fn list(&self) -> Vec<v1::Task> {
        let all = v1::ListRequest { limit: 10_000, ..v1::ListRequest::default() };
        self.jobs().list(all).await.unwrap().into_inner().tasks
    }

    async fn cancel(&self, jobs: Vec<u64>) -> Vec<v1::CancelResult> {
        let request = v1::CancelRequest { jobs, ..v1::CancelRequest::default() };
        self.jobs().cancel(request).await.unwrap().into_inner().results
    }
}

fn a_job() -> v1::SubmitRequest {
    let spec = v1::JobSpec {
        argv: vec![b"/bin/sleep".to_vec(), b"1".to_vec()],
        dir: b"/tmp".to_vec(),
        ..v1::JobSpec::default()
    };
    let env =
        v1::EnvBlob { vars: vec![b"A=1".to_vec(), [b"B=".to_vec(), vec![b'b'; 2000]].concat()] };
    v1::SubmitRequest { spec: Some(spec), env: Some(env), ..v1::SubmitRequest::default() }
}

/// A stopped controller's log.
fn log_of(dir: &Path) -> wal::Log<wal::Disk> {
    let text = std::fs::read_to_string(dir.join("controller/identity")).unwrap();
    let hex = text.lines().find_map(|line| line.strip_prefix("cluster = ")).unwrap();
    let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap();
    let owner = wal::Identity { cluster_id: std::array::from_fn(byte), owner_id: 1 };
    let disk = wal::Disk::open(&controller::wal_dir(dir)).unwrap();
    wal::Log::open(disk, owner, wal::Options::default()).unwrap().0
}

/// Every proposal of a stopped controller's log, with its position and raft term.
fn proposals(dir: &Path) -> Vec<(u64, u64, v1::Proposal)> {
    let log = log_of(dir);
    let entries = log.read(log.first_index(), log.last_index()).unwrap();
    let proposal = |e: wal::LogEntry| {
        let (kind, body) = e.payload.split_first()?;
        (*kind == 1).then(|| (e.index, e.term, v1::Proposal::decode(body).unwrap()))
    };
    entries.into_iter().filter_map(proposal).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lone_controller_serves_at_once_and_its_jobs_survive_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let world = World::start(dir.path()).await;
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_eq!(world.submit().await, 1);
    let before = world.list().await;
    assert_eq!((before.len(), &*before[0].state, &*before[0].substate), (1, "PEND", "queued"));
    assert_eq!(before[0].name, "sleep");
    world.controller.stop().await;

    let world = World::start(dir.path()).await;
    assert_eq!(world.list().await, before);
    assert_eq!(world.submit().await, 2);
    world.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_instance_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::start(dir.path()).await;
    let error = World::try_start(Config::new(dir.path())).await.err().unwrap().to_string();
    let expected = format!("{} is in use by pid {}", dir.path().display(), std::process::id());
    assert!(error.starts_with(&expected), "{error}");
    world.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_log_is_not_taken_for_a_new_cluster() {
    let dir = tempfile::tempdir().unwrap();
    World::start(dir.path()).await.controller.stop().await;
    std::fs::remove_dir_all(controller::wal_dir(dir.path())).unwrap();
    let error = World::try_start(Config::new(dir.path())).await.err().unwrap();
    assert!(matches!(error, StartError::LogLost { .. }), "{error}");
}

/// Puts an entry of a later release at the end of a stopped controller's log, known to be committed
/// or not.
fn write_of_a_later_release(dir: &Path, committed: bool) {
    let proposal = v1::Proposal { level: proto::LEVEL + 1, ..v1::Proposal::default() };
    let mut log = log_of(dir);
    let index = log.last_index() + 1;
    let term = log.term_at(index - 1).unwrap();
    let payload = [vec![1], proposal.encode_to_vec()].concat();
    let mut records = vec![wal::Record::Entry { index, term, payload }];
    records.extend(committed.then_some(wal::Record::Committed { index, term }));
    log.append(&records).unwrap();
    log.sync().unwrap();
    log.seal().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_tells_the_first_cause_and_none_of_its_consequences() {
    for round in 0..10 {
        let dir = tempfile::tempdir().unwrap();
        World::start(dir.path()).await.controller.stop().await;
        write_of_a_later_release(dir.path(), round % 2 == 0);
        let error = World::try_start(Config::new(dir.path())).await.err().unwrap().to_string();
        assert!(error.contains("install the version that wrote it"), "round {round}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_entry_of_each_term_is_the_terms_and_time_without_a_leader_does_not_count() {
    let dir = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let world = World::start(dir.path()).await;
        world.submit().await;
        world.controller.stop().await;
    }
    // Led time must not run while nobody leads.
    let pause = Duration::from_millis(1500);
    std::thread::sleep(pause);
    World::start(dir.path()).await.controller.stop().await;
    let mut seen_term = 0;
    let mut led_ms = 0;
    for (position, term, proposal) in proposals(dir.path()) {
        let first = proposal.commands[0].kind.as_ref().unwrap();
        let begins = matches!(first, v1::command::Kind::Term(begin) if begin.term == term);
        assert_eq!(begins, term != seen_term, "position {position} of term {term}");
        if seen_term == 0 {
            let second = proposal.commands[1].kind.as_ref().unwrap();
            assert!(matches!(second, v1::command::Kind::Configure(_)), "{second:?}");
        }
        if begins {
            assert!(proposal.led_ms - led_ms < 1000, "{led_ms} to {}", proposal.led_ms);
        }
        assert!(proposal.led_ms >= led_ms);
        (seen_term, led_ms) = (term, proposal.led_ms);
    }
    assert!(seen_term >= 3, "a restart never resumes a term: {seen_term}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_of_submits_is_acknowledged_in_order_and_written_in_batches() {
    const COUNT: usize = 3000;
    const BAD: usize = 1234;
    let dir = tempfile::tempdir().unwrap();
    let world = World::start(dir.path()).await;
    let requests = (0..COUNT).map(|i| {
        let mut request = a_job();
        if i == BAD {
            request.spec.as_mut().unwrap().priority = 5000;
        }
        request
    });
    let requests = tokio_stream::iter(requests.collect::<Vec<_>>());
    let mut answers = world.jobs().submit_many(requests).await.unwrap().into_inner();
    let (mut number, mut job) = (0, 0);
    while let Some(answer) = answers.message().await.unwrap() {
        if number == BAD {
            assert_eq!((answer.job, answer.error_code), (0, tonic::Code::InvalidArgument as u32));
            assert_eq!(answer.error.as_deref(), Some("--priority: 5000; allowed: -1000 to 1000"));
        } else {
            job += 1;
            assert_eq!((answer.job, answer.error), (job, None), "answer {number}");
        }
        number += 1;
    }
    assert_eq!(number, COUNT);
    world.controller.stop().await;
    let submits: Vec<usize> = proposals(dir.path())
        .iter()
        .map(|(_, _, proposal)| proposal)
        .filter(|p| matches!(p.commands[0].kind, Some(v1::command::Kind::Submit(_))))
        .inspect(|p| assert_eq!(p.blobs.len(), 2, "equal specs and environments go once"))
        .map(|p| p.commands.len())
        .collect();
    assert_eq!(submits.iter().sum::<usize>(), COUNT - 1);
    assert!(submits.iter().all(|commands| *commands <= 1024));
    assert!(submits.len() < COUNT / 4, "{} entries for {COUNT} submits", submits.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_never_misses_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::start(dir.path()).await;
    for round in 0..60 {
        let job = world.submit().await;
        let mut jobs = world.jobs();
        let waiting = tokio::spawn(async move {
            let request = v1::WaitRequest { jobs: vec![job], tasks: Vec::new() };
            let mut changes = jobs.wait(request).await.unwrap().into_inner();
            let mut states = Vec::new();
            while let Some(task) = changes.message().await.unwrap() {
                states.push(task.state);
            }
            states
        });
        // Before, while and after it registers.
        tokio::time::sleep(Duration::from_micros(round * 50)).await;
        assert_eq!(world.cancel(vec![job]).await[0].outcome, "cancelled");
        let ended = tokio::time::timeout(Duration::from_secs(5), waiting).await;
        let states = ended.expect("the end was missed").unwrap();
        assert_eq!(states.last().map(String::as_str), Some("EXIT"), "round {round}");
    }
    let unknown = world
        .jobs()
        .wait(v1::WaitRequest { jobs: vec![999], tasks: Vec::new() })
        .await
        .unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    assert_eq!(unknown.message(), "no job 999: the newest is 60");
    world.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_from_a_snapshot_equals_what_was_before() {
    let dir = tempfile::tempdir().unwrap();
    let config = || Config {
        snapshot_every: SnapshotEvery { bytes: 1 << 40, commands: 100 },
        ..Config::new(dir.path())
    };
    let snapshots = || {
        let found = std::fs::read_dir(dir.path().join("controller/snapshots")).unwrap();
        let names = found.map(|entry| entry.unwrap().path());
        let mut names: Vec<_> =
            names.filter(|path| path.extension().is_some_and(|e| e == "snap")).collect();
        names.sort();
        names
    };
    let world = World::try_start(config()).await.unwrap();
    while snapshots().len() < 2 {
        let many = tokio_stream::iter(vec![a_job(); 150]);
        let mut answers = world.jobs().submit_many(many).await.unwrap().into_inner();
        while answers.message().await.unwrap().is_some() {}
    }
    world.cancel((1..=50).collect()).await;
    let before = world.list().await;
    world.controller.stop().await;

    let world = World::try_start(config()).await.unwrap();
    assert_eq!(world.list().await, before);
    world.controller.stop().await;

    // The newest snapshot rots: the older one and the log behind it give the same.
    let newest = snapshots().pop().unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    let world = World::try_start(config()).await.unwrap();
    assert_eq!(world.list().await, before);
    world.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_are_paged_and_cancels_select() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::start(dir.path()).await;
    for name in ["a1", "a2", "b1", "a3", "b2"] {
        let mut job = a_job();
        job.spec.as_mut().unwrap().name = name.to_owned();
        world.jobs().submit(job).await.unwrap();
    }
    let page = v1::ListRequest { limit: 2, ..v1::ListRequest::default() };
    let first = world.jobs().list(page.clone()).await.unwrap().into_inner();
    let ids = |answer: &v1::ListAnswer| answer.tasks.iter().map(|t| t.job).collect::<Vec<_>>();
    assert_eq!((ids(&first), first.next_after_job), (vec![5, 4], 4));
    assert_eq!(first.counts["PEND"], 5);
    let next = v1::ListRequest { after_job: 4, limit: 3, ..page };
    let last = world.jobs().list(next).await.unwrap().into_inner();
    assert_eq!((ids(&last), last.next_after_job), (vec![3, 2, 1], 0));

    let some = v1::CancelRequest {
        name_glob: Some("a*".to_owned()),
        dry_run: true,
        ..v1::CancelRequest::default()
    };
    let dry = world.jobs().cancel(some.clone()).await.unwrap().into_inner().results;
    assert!(dry.iter().all(|result| result.outcome == "would-cancel"), "{dry:?}");
    let real = v1::CancelRequest { dry_run: false, ..some };
    let real = world.jobs().cancel(real).await.unwrap().into_inner().results;
    let done: Vec<(u64, &str)> = real.iter().map(|r| (r.job, &*r.outcome)).collect();
    assert_eq!(done, [(1, "cancelled"), (2, "cancelled"), (4, "cancelled")]);
    let again = world.cancel(vec![1, 77]).await;
    assert_eq!(again[0].outcome, "already-ended");
    assert_eq!(again[1].error_code, tonic::Code::NotFound as u32);
    let live = v1::ListRequest { live_only: true, ..v1::ListRequest::default() };
    assert_eq!(ids(&world.jobs().list(live).await.unwrap().into_inner()), [5, 3]);
    world.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn questions_about_a_job_that_never_ran_are_answered() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::start(dir.path()).await;
    let job = world.submit().await;
    let explain = v1::ExplainRequest { job, task: None };
    let answer = world.jobs().explain(explain).await.unwrap().into_inner();
    assert!(answer.headline.contains("PEND"), "{answer:?}");
    let events = v1::EventsRequest { job, task: None };
    assert_eq!(world.jobs().events(events).await.unwrap().into_inner().events.len(), 1);

    let logs = v1::LogsRequest { job, follow: true, ..v1::LogsRequest::default() };
    let mut pieces = world.jobs().logs(logs).await.unwrap().into_inner();
    world.cancel(vec![job]).await;
    let end = pieces.message().await.unwrap().unwrap();
    assert!(end.end && end.data.is_empty() && end.offset == 0);
    assert!(pieces.message().await.unwrap().is_none());
    let none = v1::LogsRequest { job: 9, ..v1::LogsRequest::default() };
    assert_eq!(world.jobs().logs(none).await.unwrap_err().code(), tonic::Code::NotFound);
    world.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn operators_see_the_controller_and_can_end_it() {
    let dir = tempfile::tempdir().unwrap();
    let mut world = World::start(dir.path()).await;
    let mut cluster = ClusterClient::new(world.channel());
    let status = cluster.status(v1::StatusRequest {}).await.unwrap().into_inner();
    assert_eq!((status.leader, status.voters, status.generation), (1, 1, 1));
    assert_eq!(status.cluster_id.len(), 32);
    assert_eq!(status.pid, std::process::id());
    let nodes = cluster.list_nodes(v1::ListNodesRequest {}).await.unwrap().into_inner().nodes;
    assert_eq!(nodes, []);
    cluster.shutdown(v1::ShutdownRequest { kill: false }).await.unwrap();
    let asked = world.controller.shutdown_requested().await;
    assert!(!asked.kill);
    // An open stream does not hold up the stop.
    let job = world.submit().await;
    let waiting = v1::WaitRequest { jobs: vec![job], tasks: Vec::new() };
    let mut changes = world.jobs().wait(waiting).await.unwrap().into_inner();
    assert_eq!(changes.message().await.unwrap().unwrap().state, "PEND");
    let begin = Instant::now();
    world.controller.stop().await;
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(changes.message().await.is_err());
}

/// One request over a fresh connection, as a scraper sends it; the whole answer.
async fn get(address: std::net::SocketAddr, head: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("{head}connection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// A controller that also serves HTTP, and where.
async fn with_http(dir: &Path) -> (World, std::net::SocketAddr) {
    let (memory, receiver) = mpsc::channel(8);
    let http = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = http.local_addr().unwrap();
    let sources = Sources { tcp: None, http: Some(http), unix: None, memory: receiver };
    let controller = controller::start(Config::new(dir), sources).await.unwrap();
    (World { controller, memory }, address)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_http_port_tells_what_the_ledger_holds_and_refuses_foreign_pages() {
    let dir = tempfile::tempdir().unwrap();
    let (world, address) = with_http(dir.path()).await;
    for _ in 0..3 {
        world.submit().await;
    }
    world.cancel(vec![2]).await;

    let host = format!("host: {address}\r\n");
    let page = get(address, &format!("GET /metrics HTTP/1.1\r\n{host}")).await;
    assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
    for line in [
        "docket_leading 1",
        "docket_tasks{state=\"PEND\"} 2",
        "docket_tasks{state=\"EXIT\"} 1",
        "docket_queue_tasks 2",
        "docket_unknown_tasks 0",
        "docket_unknown_oldest_seconds 0.0",
        "docket_nodes{state=\"up\"} 0",
        "docket_build_info{version=\"0.1.0\",features=\"none\"} 1",
    ] {
        assert!(page.lines().any(|found| found == line), "{line} is missing in:\n{page}");
    }
    let count =
        page.lines().find_map(|line| line.strip_prefix("docket_apply_delay_seconds_count "));
    assert!(count.unwrap().parse::<u64>().unwrap() >= 4, "each entry of this leader is timed");
    let applied = page.lines().find_map(|line| line.strip_prefix("docket_applied_position "));
    assert!(applied.unwrap().parse::<u64>().unwrap() > 4, "{applied:?}");

    let root = get(address, &format!("GET / HTTP/1.1\r\n{host}")).await;
    assert!(root.starts_with("HTTP/1.1 200 ") && root.contains("/metrics"), "{root}");
    for (head, code) in [
        ("GET /metrics HTTP/1.1\r\nhost: evil.example\r\n".to_owned(), 421),
        (format!("GET /metrics HTTP/1.1\r\n{host}origin: http://evil.example\r\n"), 403),
        (format!("POST /metrics HTTP/1.1\r\n{host}content-length: 0\r\n"), 405),
        (format!("GET /other HTTP/1.1\r\n{host}"), 404),
    ] {
        let answer = get(address, &head).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {code} ")), "{head}: {answer}");
        assert!(!answer.contains("docket_tasks"), "{head}: {answer}");
    }
    world.controller.stop().await;
    assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the port is closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn metrics_come_in_the_form_that_is_asked_for_and_in_one_order() {
    let dir = tempfile::tempdir().unwrap();
    let (world, address) = with_http(dir.path()).await;
    let accepting = async |accept: &str| {
        get(address, &format!("GET /metrics HTTP/1.1\r\nhost: {address}\r\n{accept}")).await
    };
    // As Prometheus asks: the newer form is dearer to it.
    let page = accepting(
        "accept: application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1\r\n",
    )
    .await;
    let kind = "content-type: application/openmetrics-text; version=1.0.0; charset=utf-8\r\n";
    assert!(page.contains(kind) && page.contains("vary: accept\r\n"), "{page}");
    assert!(page.contains("# TYPE docket_evictions counter\n"), "{page}");
    assert!(page.contains("# TYPE docket_build info\n"), "{page}");
    assert!(page.contains("\n# UNIT ") && page.ends_with("\n# EOF\n"), "{page}");
    for accept in ["", "accept: */*\r\n", "accept: text/plain\r\n", "accept: text/html\r\n"] {
        let page = accepting(accept).await;
        let kind = "content-type: text/plain; version=0.0.4; charset=utf-8\r\n";
        assert!(page.contains(kind) && page.contains("vary: accept\r\n"), "{accept}: {page}");
        // That form names the samples: a counter of another name would have no type.
        for line in [
            "# TYPE docket_evictions_total counter",
            "# HELP docket_evictions_total Ended jobs that left the ledger.",
            "docket_evictions_total 0",
            "# TYPE docket_build_info gauge",
            "# TYPE docket_apply_delay_seconds histogram",
        ] {
            assert!(page.lines().any(|found| found == line), "{line} is missing in:\n{page}");
        }
        assert!(!page.contains("# UNIT") && !page.contains("# EOF"), "{page}");
    }
    for _ in 0..3 {
        let page = accepting("").await;
        for family in ["docket_tasks{", "docket_nodes{", "docket_facts_ignored_total{"] {
            let found: Vec<&str> = page.lines().filter(|line| line.starts_with(family)).collect();
            assert!(found.len() > 3 && found.is_sorted(), "{found:?}");
        }
    }
    world.controller.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_orphans_are_bounded_and_an_empty_registry_has_none() {
    let dir = tempfile::tempdir().unwrap();
    let world = World::start(dir.path()).await;
    let answer = world.jobs().orphans(v1::OrphansRequest::default()).await.unwrap().into_inner();
    assert_eq!((answer.orphans.len(), answer.more), (0, false));
    let wide = v1::OrphansRequest { after_position: 0, limit: 10_001 };
    let refused = world.jobs().orphans(wide).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    world.controller.stop().await;
}
