//! Where a server can be: a Unix socket or a TCP address, as people write it.

use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

/// One place where a server may answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// A socket file.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
}

/// Why a text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// TLS is not served yet.
    #[error("{0}: https is not in this version: use http:// on this machine, or a socket path")]
    Tls(String),
    /// No such scheme.
    #[error("{0}: no such scheme: use http://HOST:PORT or unix:PATH")]
    Scheme(String),
    /// Another machine, to which everything would go in plain text.
    #[error(
        "{0}: only this machine is reached in this version, since there is no TLS yet: use 127.0.0.1:PORT or unix:PATH"
    )]
    Remote(String),
    /// No port, or not a number.
    #[error("{0}: a server is written http://HOST:PORT, HOST:PORT or unix:PATH")]
    Form(String),
}

impl Address {
    /// Reads `http://HOST:PORT`, `HOST:PORT`, `unix:PATH`, or an absolute path of a socket.
    pub fn parse(text: &str) -> Result<Self, AddressError> {
        if let Some(path) = text.strip_prefix("unix://").or_else(|| text.strip_prefix("unix:")) {
            return match path {
                "" => Err(AddressError::Form(text.to_owned())),
                path => Ok(Address::Unix(PathBuf::from(path))),
            };
        }
        if text.starts_with('/') {
            return Ok(Address::Unix(PathBuf::from(text)));
        }
        let host = match text.split_once("://") {
            Some(("http", rest)) => rest.trim_end_matches('/'),
            Some(("https", _)) => return Err(AddressError::Tls(text.to_owned())),
            Some(_) => return Err(AddressError::Scheme(text.to_owned())),
            None => text,
        };
        let (name, port) =
            host.rsplit_once(':').ok_or_else(|| AddressError::Form(text.to_owned()))?;
        let port: u16 = port.parse().map_err(|_| AddressError::Form(text.to_owned()))?;
        let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '@' | '?' | '#');
        if name.is_empty() || port == 0 || !name.chars().all(plain) {
            return Err(AddressError::Form(text.to_owned()));
        }
        if !is_loopback(name) {
            return Err(AddressError::Remote(text.to_owned()));
        }
        Ok(Address::Tcp(format!("{name}:{port}")))
    }

    /// Reads a comma-separated list; an empty one is refused.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, AddressError> {
        text.split(',').map(|one| Address::parse(one.trim())).collect()
    }
}

/// `localhost`, or an address of the loopback; a name of somebody's DNS may lead anywhere.
fn is_loopback(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(name);
    let known = address.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback());
    known || name.eq_ignore_ascii_case("localhost")
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "{}", path.display()),
            Address::Tcp(host) => write!(f, "http://{host}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_written_form_of_an_address_is_read() {
        let tcp = Ok(Address::Tcp("127.0.0.1:7460".to_owned()));
        assert_eq!(Address::parse("http://127.0.0.1:7460"), tcp);
        assert_eq!(Address::parse("http://127.0.0.1:7460/"), tcp);
        assert_eq!(Address::parse("127.0.0.1:7460"), tcp);
        assert_eq!(Address::parse("[::1]:7460"), Ok(Address::Tcp("[::1]:7460".to_owned())));
        assert_eq!(Address::parse("unix:/d/s"), Ok(Address::Unix("/d/s".into())));
        assert_eq!(Address::parse("/d/s"), Ok(Address::Unix("/d/s".into())));
        assert_eq!(Address::parse_list("localhost:1, 127.0.0.1:2").map(|l| l.len()), Ok(2));
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["", "host", "http://host", "host:", "host:0", "host:70000", ":1", "a b:1", "u@h:1"]
        {
            assert!(matches!(Address::parse(text), Err(AddressError::Form(_))), "{text}");
        }
        assert!(matches!(Address::parse("https://h:1"), Err(AddressError::Tls(_))));
        assert!(matches!(Address::parse("ftp://h:1"), Err(AddressError::Scheme(_))));
        assert!(Address::parse_list("127.0.0.1:1,,127.0.0.1:2").is_err());
    }

    #[test]
    fn another_machine_is_refused_by_name_before_anything_is_sent() {
        for text in ["192.0.2.1:7460", "http://head1:7460", "[2001:db8::1]:7460", "0.0.0.0:7460"] {
            let refused = Address::parse(text).unwrap_err();
            assert_eq!(refused, AddressError::Remote(text.to_owned()));
            assert!(refused.to_string().starts_with(text));
        }
        for text in ["LOCALHOST:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
            assert!(Address::parse(text).is_ok(), "{text}");
        }
    }
}
