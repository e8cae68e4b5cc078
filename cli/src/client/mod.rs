//! Finds the server that leads, and asks it: discovery, connection, retries with one request id.
//! It never prints and knows nothing of flags. Begin with [`Client::find`].

mod address;
mod connect;
mod discover;
mod error;
mod retry;
mod unix;

pub use address::{Address, AddressError};
pub use connect::{Client, default_tcp};
pub use discover::{DEFAULT_TCP, Places, Route, SOCKET, default_data_dir, own_link};
pub use error::{ClientError, result_exit};
pub use retry::{Backoff, Patience, request_id};
pub use unix::{FileId, bind_in, dial_in};
