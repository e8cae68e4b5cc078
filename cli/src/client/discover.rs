//! Where a command goes (design 7): named servers, else the sockets of this machine, else loopback.

use super::{Address, ClientError};
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Name of the socket in a data directory.
pub const SOCKET: &str = "docket.sock";
/// Loopback address of a default server.
pub const DEFAULT_TCP: &str = "127.0.0.1:7460";
/// Data directory of a node that root runs.
const ROOT_DATA: &str = "/var/lib/docket";
/// Where root's default node can be reached by everybody.
const ROOT_LINK_DIR: &str = "/run";

/// What this process can know about where a server is; taken once, so that the rules are pure.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Who asks.
    pub uid: u32,
    /// `--server`.
    pub option: Option<String>,
    /// `DOCKET_SERVER`.
    pub server_env: Option<String>,
    /// `client.server` of the file, with the file's path.
    pub file: Option<(PathBuf, String)>,
    /// `DOCKET_DATA`.
    pub data_env: Option<OsString>,
    /// `HOME`.
    pub home: Option<OsString>,
    /// `XDG_RUNTIME_DIR`.
    pub runtime_dir: Option<OsString>,
    /// Name of this machine; homes are shared between machines.
    pub host: String,
}

/// The addresses to try, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Named by option, environment or file: no other place is tried, no node is started.
    pub named: bool,
    /// In order.
    pub addresses: Vec<Address>,
}

impl Places {
    /// Reads the environment of this process.
    pub fn here(option: Option<String>, file: Option<(PathBuf, String)>) -> Self {
        let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        Places {
            uid: rustix::process::getuid().as_raw(),
            option,
            server_env: set("DOCKET_SERVER").map(|v| v.to_string_lossy().into_owned()),
            file,
            data_env: set("DOCKET_DATA"),
            home: set("HOME"),
            runtime_dir: set("XDG_RUNTIME_DIR"),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    /// The addresses to try.
    pub fn route(&self) -> Result<Route, ClientError> {
        let named = [
            self.option.clone().map(|text| ("--server".to_owned(), text)),
            self.server_env.clone().map(|text| ("DOCKET_SERVER".to_owned(), text)),
            self.file.clone().map(|(path, text)| (path.display().to_string(), text)),
        ];
        if let Some((origin, text)) = named.into_iter().flatten().next() {
            let addresses = Address::parse_list(&text)
                .map_err(|error| ClientError::Address { origin, error })?;
            return Ok(Route { named: true, addresses });
        }
        Ok(Route { named: false, addresses: self.default_addresses()? })
    }

    /// `DOCKET_DATA` asks for one directory, so only its node is meant; else the user's own
    /// socket, root's, loopback.
    fn default_addresses(&self) -> Result<Vec<Address>, ClientError> {
        let own = default_data_dir(self)?.join(SOCKET);
        if self.data_env.is_some() {
            return Ok(vec![Address::Unix(own)]);
        }
        let mut paths = vec![own];
        paths.extend(own_link(self));
        paths.push(Path::new(ROOT_LINK_DIR).join(SOCKET));
        paths.push(Path::new(ROOT_DATA).join(SOCKET));
        let mut addresses: Vec<Address> = Vec::new();
        for path in paths {
            let address = Address::Unix(path);
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses.push(Address::Tcp(DEFAULT_TCP.to_owned()));
        Ok(addresses)
    }
}

/// The directory of a node that names none (design 7): per machine, since homes are shared.
pub fn default_data_dir(places: &Places) -> Result<PathBuf, ClientError> {
    if let Some(dir) = &places.data_env {
        return Ok(PathBuf::from(dir));
    }
    if places.uid == 0 {
        return Ok(PathBuf::from(ROOT_DATA));
    }
    let home = places.home.as_ref().ok_or(ClientError::NoHome { uid: places.uid })?;
    let path = Path::new(home).join(".local/share/docket").join(&places.host);
    if places.host.is_empty() || places.host.contains('/') || places.host.starts_with('.') {
        return Err(ClientError::BadDefault { path });
    }
    Ok(path)
}

/// The second name of the default node's socket; none where the session has no runtime directory.
pub fn own_link(places: &Places) -> Option<PathBuf> {
    if places.uid == 0 {
        return Some(Path::new(ROOT_LINK_DIR).join(SOCKET));
    }
    places.runtime_dir.as_ref().map(|dir| Path::new(dir).join(SOCKET))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mia() -> Places {
        Places {
            uid: 1004,
            home: Some("/home/mia".into()),
            runtime_dir: Some("/run/user/1004".into()),
            host: "login2".to_owned(),
            ..Places::default()
        }
    }

    fn shown(route: &Route) -> Vec<String> {
        route.addresses.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_option_beats_the_environment_and_both_beat_the_file() {
        let file = Some((PathBuf::from("/etc/docket/docket.toml"), "127.0.0.1:3".to_owned()));
        let mut places = Places { file, ..mia() };
        assert_eq!(shown(&places.route().unwrap()), ["http://127.0.0.1:3"]);
        places.server_env = Some("localhost:2,localhost:3".to_owned());
        assert_eq!(shown(&places.route().unwrap()), ["http://localhost:2", "http://localhost:3"]);
        places.option = Some("unix:/a".to_owned());
        let route = places.route().unwrap();
        assert!(route.named);
        assert_eq!(shown(&route), ["/a"]);
    }

    #[test]
    fn without_a_name_the_own_socket_comes_first_and_loopback_last() {
        let route = mia().route().unwrap();
        assert!(!route.named);
        assert_eq!(
            shown(&route),
            [
                "/home/mia/.local/share/docket/login2/docket.sock",
                "/run/user/1004/docket.sock",
                "/run/docket.sock",
                "/var/lib/docket/docket.sock",
                "http://127.0.0.1:7460",
            ]
        );
        let root = Places { uid: 0, ..mia() };
        assert_eq!(
            shown(&root.route().unwrap()),
            ["/var/lib/docket/docket.sock", "/run/docket.sock", "http://127.0.0.1:7460"]
        );
    }

    #[test]
    fn a_data_directory_of_ones_own_means_its_node_and_no_other() {
        let places = Places { data_env: Some("/tmp/x".into()), ..mia() };
        let route = places.route().unwrap();
        assert!(!route.named, "a node may be started there");
        assert_eq!(shown(&route), ["/tmp/x/docket.sock"]);
    }

    #[test]
    fn a_user_without_a_home_is_told_what_to_set() {
        let places = Places { home: None, ..mia() };
        assert!(places.route().unwrap_err().to_string().contains("DOCKET_DATA"));
    }

    #[test]
    fn a_bad_server_is_refused_by_the_name_of_what_named_it() {
        let places = Places { option: Some("nonsense".to_owned()), ..mia() };
        let error = places.route().unwrap_err();
        assert!(error.to_string().starts_with("--server: nonsense"), "{error}");
        assert_eq!(error.exit_code(), 2);
    }
}
