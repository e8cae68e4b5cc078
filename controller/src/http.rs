//! The HTTP port: `/metrics` for Prometheus (in its text form, or as OpenMetrics where asked for), `/` to say so. It serves loopback peers whose socket
//! belongs to a user that this controller serves (design 5), and refuses what a browser could be
//! tricked into: a foreign `Host` or `Origin`.

use crate::accept;
use crate::metrics::{Figures, Form, Live, Queues, text};
use crate::pump::View;
use crate::rpc::{Accepted, Gate, Shared, Stranger, of_tcp};
use futures::StreamExt as _;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, http::request::Parts, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Connections at once: a few scrapers and a browser; more wait in the kernel's queue.
const CONNECTIONS_MAX: usize = 64;

/// A request's head must be here by then, the next one of a connection as well.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A scrape that the pump does not answer by then is given up: scrapers wait 10 s.
const READ_TIMEOUT: Duration = Duration::from_secs(8);

/// Longest head of a request, in bytes.
const HEAD_MAX_BYTES: usize = 16 * 1024;

type Answer = Response<Full<Bytes>>;

/// What the pages are made from.
#[derive(Clone)]
pub struct Pages {
    shared: Shared,
    live: Live,
}

impl Pages {
    /// Pages over the shared parts of the services.
    pub fn new(shared: Shared, live: Live) -> Self {
        Pages { shared, live }
    }
}

/// Serves until `stop`. Its tasks run on `tasks`; the owner waits for them after that.
///
/// # Errors
/// A listener that cannot be registered with the runtime.
pub fn serve(
    pages: Pages,
    listener: std::net::TcpListener,
    gate: Gate,
    tasks: &TaskTracker,
    stop: CancellationToken,
) -> io::Result<()> {
    let mut incoming = Box::pin(of_tcp(listener, gate)?);
    let room = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let (spawner, ended) = (tasks.clone(), stop.clone());
    tasks.spawn(stop.run_until_cancelled_owned(async move {
        loop {
            let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
            // The listener's stream never ends and passes no errors on.
            let Some(Ok(accepted)) = incoming.next().await else { return };
            let one = connection(pages.clone(), accepted);
            spawner.spawn(ended.clone().run_until_cancelled_owned(async move {
                one.await;
                drop(permit);
            }));
        }
    }));
    Ok(())
}

async fn connection(pages: Pages, accepted: Accepted) {
    let stranger = accepted.stranger().cloned();
    let service = service_fn(move |request: Request<Incoming>| {
        let (pages, stranger) = (pages.clone(), stranger.clone());
        async move { Ok::<_, Infallible>(answer(&pages, stranger, request).await) }
    });
    let mut server = hyper::server::conn::http1::Builder::new();
    server.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).max_buf_size(HEAD_MAX_BYTES);
    if let Err(error) = server.serve_connection(TokioIo::new(accepted), service).await {
        tracing::debug!(%error, "an HTTP connection ended");
    }
}

/// A request's body is never read: hyper closes the connection behind an answer that leaves one.
async fn answer(pages: &Pages, stranger: Option<Stranger>, request: Request<Incoming>) -> Answer {
    let (head, _) = request.into_parts();
    if let Some(refusal) = refusal(&head, stranger) {
        return refusal;
    }
    let answer = match head.uri.path() {
        "/" => plain(StatusCode::OK, "docket: its metrics are at /metrics"),
        "/metrics" => metrics(pages, accept::form(&head.headers)).await,
        other => plain(StatusCode::NOT_FOUND, &format!("no page {other}: there is /metrics")),
    };
    match head.method {
        Method::HEAD => answer.map(|_| Full::default()),
        _ => answer,
    }
}

/// Why a request is not looked at.
fn refusal(head: &Parts, stranger: Option<Stranger>) -> Option<Answer> {
    if let Some(stranger) = stranger {
        let code = match &stranger {
            Stranger::NotServed { .. } => StatusCode::FORBIDDEN,
            _ => StatusCode::UNAUTHORIZED,
        };
        return Some(plain(code, &stranger.to_string()));
    }
    let Some(host) = own_host(&head.headers) else {
        let words = "this server is asked by its loopback address only: 127.0.0.1 or localhost";
        return Some(plain(StatusCode::MISDIRECTED_REQUEST, words));
    };
    let foreign = |origin: &HeaderValue| origin.as_bytes() != format!("http://{host}").as_bytes();
    if head.headers.get_all(header::ORIGIN).iter().any(foreign) {
        return Some(plain(StatusCode::FORBIDDEN, "pages of other origins are not answered"));
    }
    if ![Method::GET, Method::HEAD].contains(&head.method) {
        let mut answer = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET");
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return Some(answer);
    }
    None
}

/// The one `Host`, if it names this machine's loopback: a name that somebody else's DNS may point
/// here is foreign.
fn own_host(headers: &HeaderMap) -> Option<&str> {
    let mut hosts = headers.get_all(header::HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else { return None };
    let host = host.to_str().ok()?;
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let loopback = address.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    (loopback || name.eq_ignore_ascii_case("localhost")).then_some(host)
}

async fn metrics(pages: &Pages, form: Form) -> Answer {
    let Pages { shared, live } = pages;
    // Not linearizable on purpose: a controller without a majority must still say how it is.
    let look = shared.pump.read(|view: View<'_>| Figures::of(&view));
    let Ok(Ok(figures)) = tokio::time::timeout(READ_TIMEOUT, look).await else {
        return plain(StatusCode::SERVICE_UNAVAILABLE, "the controller is busy or stopping");
    };
    let queues = Queues {
        proposer: shared.proposer.waiting(),
        backlog: shared.pump.backlog(),
        disk_full: shared.node.disk_full(),
    };
    match text(form, live, &figures, queues) {
        Ok(text) => {
            let mut answer = page(StatusCode::OK, form.content_type(), text);
            answer.headers_mut().insert(header::VARY, HeaderValue::from_static("accept"));
            answer
        }
        Err(error) => plain(StatusCode::INTERNAL_SERVER_ERROR, &format!("metrics: {error}")),
    }
}

fn plain(code: StatusCode, line: &str) -> Answer {
    page(code, "text/plain; charset=utf-8", format!("{line}\n"))
}

fn page(code: StatusCode, kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(text)));
    *answer.status_mut() = code;
    let headers = answer.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(headers: &[(&str, &str)]) -> Option<StatusCode> {
        let mut request = Request::get("/metrics");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        refusal(&head, None).map(|answer| answer.status())
    }

    #[test]
    fn only_the_loopback_is_asked_for_by_name() {
        for host in ["127.0.0.1:7461", "localhost:7461", "LOCALHOST", "[::1]:7461", "127.1.2.3"] {
            assert_eq!(code(&[("host", host)]), None, "{host}");
        }
        let foreign = Some(StatusCode::MISDIRECTED_REQUEST);
        for host in
            ["evil.example", "localhost.evil.example:7461", "192.0.2.1", "", "127.0.0.1.nip.io"]
        {
            assert_eq!(code(&[("host", host)]), foreign, "{host}");
        }
        assert_eq!(code(&[]), foreign, "no host at all");
        assert_eq!(code(&[("host", "localhost"), ("host", "evil.example")]), foreign, "two");
    }

    #[test]
    fn a_page_of_another_origin_is_not_answered() {
        let from = |origin| code(&[("host", "127.0.0.1:7461"), ("origin", origin)]);
        assert_eq!(from("http://127.0.0.1:7461"), None);
        for origin in
            ["http://evil.example", "http://127.0.0.1:3000", "null", "https://127.0.0.1:7461"]
        {
            assert_eq!(from(origin), Some(StatusCode::FORBIDDEN), "{origin}");
        }
    }

    #[test]
    fn a_stranger_and_a_change_are_refused() {
        let (head, ()) =
            Request::post("/").header("host", "localhost").body(()).unwrap().into_parts();
        let status = |stranger| refusal(&head, stranger).map(|answer| answer.status());
        assert_eq!(status(None), Some(StatusCode::METHOD_NOT_ALLOWED));
        let other = Stranger::NotServed { uid: 7, owner: 8 };
        assert_eq!(status(Some(other)), Some(StatusCode::FORBIDDEN));
        let nobody = Stranger::NoSocket { peer: "127.0.0.1:5".parse().unwrap() };
        assert_eq!(status(Some(nobody)), Some(StatusCode::UNAUTHORIZED));
    }
}
