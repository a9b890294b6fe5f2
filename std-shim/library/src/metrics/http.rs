//! Answers requests for metrics over HTTP: one request a connection, one connection at a time,
//! within limits of time and bytes.

use super::registry::Metrics;
use super::render::Format;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// How long a client may take to send its request, and to take the answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest request. Prometheus sends about 400 bytes.
const MOST_BYTES: usize = 8192;

/// The most header fields of a request.
const MOST_FIELDS: usize = 64;

/// A request, as far as it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    is_head: bool,
    format: Format,
}

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    BadRequest,
    NotFound,
    MethodNotAllowed,
    TooLong,
}

impl Refusal {
    const fn status(self) -> &'static str {
        match self {
            Self::BadRequest => "400 Bad Request",
            Self::NotFound => "404 Not Found",
            Self::MethodNotAllowed => "405 Method Not Allowed",
            Self::TooLong => "431 Request Header Fields Too Large",
        }
    }
}

/// Reads a request and answers it.
///
/// # Errors
///
/// The client closed its connection, or was too slow.
pub(super) fn answer(mut stream: TcpStream, metrics: &Metrics) -> io::Result<()> {
    let end = Instant::now() + CLIENT_TIMEOUT;
    stream.set_nodelay(true)?;
    match read_request(&mut stream, end)? {
        Ok(Request { is_head, format }) => {
            let text = metrics.text(format).map_err(io::Error::other)?;
            let head = head("200 OK", format.media_type(), text.len());
            let body = if is_head { "" } else { &text };
            write_all(&mut stream, &[head.as_bytes(), body.as_bytes()].concat(), end)
        }
        Err(refusal) => {
            let text = format!("{}; metrics are at /metrics\n", refusal.status());
            let head = head(refusal.status(), "text/plain; charset=utf-8", text.len());
            write_all(&mut stream, &[head.as_bytes(), text.as_bytes()].concat(), end)
        }
    }
}

fn head(status: &str, media_type: &str, length: usize) -> String {
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: {media_type}\r\nContent-Length: {length}\r\nAllow: GET, \
         HEAD\r\nConnection: close\r\n\r\n"
    )
}

/// Returns the time that is left.
fn left(end: Instant) -> io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

fn write_all(stream: &mut TcpStream, mut bytes: &[u8], end: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_request(stream: &mut TcpStream, end: Instant) -> io::Result<Result<Request, Refusal>> {
    let mut bytes = Vec::new();
    let mut part = [0; 1024];
    loop {
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut part) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(length) => bytes.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
        if let Some(parsed) = parse(&bytes) {
            return Ok(parsed);
        }
        if bytes.len() >= MOST_BYTES {
            return Ok(Err(Refusal::TooLong));
        }
    }
}

/// Parses a request; `None` if it is incomplete.
fn parse(bytes: &[u8]) -> Option<Result<Request, Refusal>> {
    let mut fields = [httparse::EMPTY_HEADER; MOST_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Partial) => return None,
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Some(Err(Refusal::TooLong)),
        Err(_) => return Some(Err(Refusal::BadRequest)),
    }
    let path = request.path.unwrap_or_default().split('?').next().unwrap_or_default();
    Some(match (request.method.unwrap_or_default(), path) {
        (method @ ("GET" | "HEAD"), "/metrics") => {
            let wanted = request.headers.iter().any(|field| {
                field.name.eq_ignore_ascii_case("accept")
                    && String::from_utf8_lossy(field.value).contains("application/openmetrics-text")
            });
            let format = if wanted { Format::OpenMetrics } else { Format::Prometheus };
            Ok(Request { is_head: method == "HEAD", format })
        }
        ("GET" | "HEAD", _) => Err(Refusal::NotFound),
        _ => Err(Refusal::MethodNotAllowed),
    })
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use std::net::{Shutdown, TcpListener};

    #[test]
    fn requests_are_told_apart() {
        let parsed = |text: &str| parse(text.as_bytes());
        let get = Request { is_head: false, format: Format::Prometheus };
        assert_eq!(parsed("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), Some(Ok(get)));
        assert_eq!(parsed("GET /metrics?x=1 HTTP/1.0\r\n\r\n"), Some(Ok(get)));
        let head = Request { is_head: true, ..get };
        assert_eq!(parsed("HEAD /metrics HTTP/1.1\r\n\r\n"), Some(Ok(head)));
        let accept = "GET /metrics HTTP/1.1\r\nACCEPT: application/openmetrics-text;version=1.0.0\
                      ;q=0.8,text/plain;q=0.3\r\n\r\n";
        assert_eq!(parsed(accept), Some(Ok(Request { format: Format::OpenMetrics, ..get })));
        assert_eq!(parsed("GET /metrics HTTP/1.1\r\nHost: a\r\n"), None);
        assert_eq!(parsed("GET / HTTP/1.1\r\n\r\n"), Some(Err(Refusal::NotFound)));
        assert_eq!(parsed("POST /metrics HTTP/1.1\r\n\r\n"), Some(Err(Refusal::MethodNotAllowed)));
        assert_eq!(parsed("\u{1}\u{2}\r\n\r\n"), Some(Err(Refusal::BadRequest)));
        let many = "a: b\r\n".repeat(MOST_FIELDS + 1);
        let many = format!("GET /metrics HTTP/1.1\r\n{many}\r\n");
        assert_eq!(parsed(&many), Some(Err(Refusal::TooLong)));
    }

    /// Answers one connection, on which a client sends something.
    fn answered(client: impl FnOnce(TcpStream) + Send) -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || client(TcpStream::connect(address).unwrap()));
            answer(listener.accept().unwrap().0, &Metrics::new("test"))
        })
    }

    #[test]
    fn a_slow_client_is_given_up() {
        let begin = Instant::now();
        let error = answered(|mut stream| {
            stream.write_all(b"GET /metrics").unwrap();
            // Until the other end closes.
            _ = stream.read(&mut [0]);
        })
        .unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
        assert!(begin.elapsed() >= CLIENT_TIMEOUT);
    }

    #[test]
    fn a_client_that_goes_away_or_sends_without_end_is_given_up() {
        let gone = answered(|stream| stream.shutdown(Shutdown::Both).unwrap());
        assert!(gone.is_err());
        answered(|mut stream| {
            let long = "x".repeat(2 * MOST_BYTES);
            // The other end stops to read.
            _ = stream.write_all(format!("GET /{long}").as_bytes());
            let mut answer = [0; 12];
            if stream.read_exact(&mut answer).is_ok() {
                assert_eq!(&answer, b"HTTP/1.1 431");
            }
        })
        .unwrap();
    }
}
