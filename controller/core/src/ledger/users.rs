//! Who submits: each identity is kept once and shared by its jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

/// A user as the server identified them (design 5, "Who is asking").
#[derive(PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct User {
    /// Number in order of first appearance: the short form in keys and images.
    pub number: u32,
    /// Login name.
    pub name: String,
    /// Numeric id.
    pub uid: u32,
}

/// Longest user name taken, in bytes (Linux allows 32; directory services use more).
pub(super) const USER_NAME_MAX: usize = 256;

/// Every user that ever submitted: as many as the machine has accounts, so never swept.
#[derive(Clone, Default, PartialEq, Debug)]
pub(super) struct Users {
    list: Vec<Arc<User>>,
    by_name: BTreeMap<(String, u32), u32>,
}

impl Users {
    /// The shared form of an identity, made at its first use.
    pub fn intern(&mut self, name: &str, uid: u32) -> Arc<User> {
        if let Some(user) = self.find(name, uid) {
            return user;
        }
        let number = u32::try_from(self.list.len()).unwrap_or(u32::MAX);
        let user = Arc::new(User { number, name: name.to_owned(), uid });
        self.by_name.insert((name.to_owned(), uid), number);
        self.list.push(Arc::clone(&user));
        user
    }

    /// The identity, if it appeared before.
    pub fn find(&self, name: &str, uid: u32) -> Option<Arc<User>> {
        let number = *self.by_name.get(&(name.to_owned(), uid))?;
        self.number(number)
    }

    /// The identity of that number.
    pub fn number(&self, number: u32) -> Option<Arc<User>> {
        self.list.get(usize::try_from(number).ok()?).cloned()
    }

    /// All, by number.
    pub fn all(&self) -> &[Arc<User>] {
        &self.list
    }
}
