//! The users of the page with their tokens.

use super::own_process::Settings;
use super::process::{UserProcess, lock};
use crate::access::Token;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use streamline::paths::{Fault, faults};
use sys::process::UserIds;

/// Maximum number of accounts of one user id. They differ in their groups.
const PER_USER_MAX: usize = 8;
/// Maximum number of accounts.
const ACCOUNTS_MAX: usize = 4096;

/// The ids with which a user has asked for the page: the token, and the process.
#[derive(Debug)]
pub struct Account {
    /// The token that admits to the process.
    pub token: Token,
    /// The process, which has these ids.
    pub process: Arc<UserProcess>,
}

impl Account {
    fn who(&self) -> &UserIds {
        self.process.who()
    }
}

/// Returns the ids of the user at the other end of a Unix socket.
pub(super) fn peer_ids(socket: impl AsFd) -> Option<UserIds> {
    let peer = sys::abstract_socket::peer(socket).ok()?;
    Some(UserIds { uid: peer.uid, gid: peer.gid, groups: peer.groups })
}

/// All accounts of a page.
#[derive(Debug)]
pub struct Accounts {
    /// URL of the page without a token, or `unix:PATH`.
    address: String,
    daemon: Option<PathBuf>,
    idle: Duration,
    all: Mutex<Vec<Arc<Account>>>,
}

impl Accounts {
    /// Creates an empty list for the page at this address.
    #[must_use]
    pub fn new(address: String, daemon: Option<PathBuf>, idle: Duration) -> Arc<Self> {
        Arc::new(Self { address, daemon, idle, all: Mutex::default() })
    }

    /// Returns the account with the token in the value of an `Authorization` header.
    #[must_use]
    pub fn find(&self, authorization: &str) -> Option<Arc<Account>> {
        let all = lock(&self.all);
        // All are compared, so that the time does not depend on which one it is.
        let found = all.iter().fold(None, |found, account| {
            if account.token.is_in(Some(authorization)) { Some(account) } else { found }
        });
        found.cloned()
    }

    /// Returns the account of a user, which is added if it is missing. Fails for another user if
    /// this process cannot act as other users.
    pub fn open(&self, who: &UserIds) -> Result<Arc<Account>, Fault> {
        let (own, _) = sys::process::identity();
        if own != 0 && who.uid != own && who.uid != 0 {
            return Err(faults::not_your_page(own));
        }
        let mut all = lock(&self.all);
        if let Some(found) = all.iter().find(|account| account.who() == who) {
            return Ok(Arc::clone(found));
        }
        let of_user = |account: &&Arc<Account>| account.who().uid == who.uid;
        if all.iter().filter(of_user).count() >= PER_USER_MAX
            && let Some(oldest) = all.iter().position(|account| of_user(&account))
        {
            all.remove(oldest).process.end();
        }
        if all.len() >= ACCOUNTS_MAX {
            return Err(faults::too_many_tokens(ACCOUNTS_MAX));
        }
        let token = Token::random();
        let token = token.map_err(|error| faults::refused("token", &error.to_string()))?;
        let settings = Settings {
            token: self.needs_token().then(|| token.text().to_owned()),
            daemon: self.daemon.clone(),
            idle_ms: u64::try_from(self.idle.as_millis()).unwrap_or(u64::MAX),
        };
        let process = UserProcess::new(who.clone(), settings);
        let account = Arc::new(Account { token, process });
        all.push(Arc::clone(&account));
        Ok(account)
    }

    /// Removes the account of a user, whose process ends.
    pub fn remove(&self, who: &UserIds) {
        let mut all = lock(&self.all);
        all.iter().filter(|account| account.who() == who).for_each(|gone| gone.process.end());
        all.retain(|account| account.who() != who);
    }

    /// Returns the URL for a user.
    #[must_use]
    pub fn url(&self, account: &Account) -> String {
        match self.needs_token() {
            true => format!("{}#token={}", self.address, account.token.text()),
            false => self.address.clone(),
        }
    }

    fn needs_token(&self) -> bool {
        !self.address.starts_with("unix:")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Arc<Accounts> {
        Accounts::new("http://127.0.0.1:1/".to_owned(), None, Duration::ZERO)
    }

    fn own(group: u32) -> UserIds {
        let (uid, gid) = sys::process::identity();
        UserIds { uid, gid, groups: vec![group] }
    }

    #[test]
    fn token_finds_the_ids_that_asked_for_it() {
        let accounts = accounts();
        let (one, other) = (accounts.open(&own(1)).unwrap(), accounts.open(&own(2)).unwrap());
        let find = |account: &Account| accounts.find(&format!("Bearer {}", account.token.text()));
        assert_eq!(*find(&one).unwrap().who(), own(1));
        assert_eq!(*find(&other).unwrap().who(), own(2));
        assert_eq!(accounts.open(&own(1)).unwrap().token.text(), one.token.text(), "the same");
        assert!(accounts.find("Bearer ").is_none());
        assert!(accounts.url(&one).ends_with(one.token.text()));
        accounts.remove(&own(1));
        assert!(find(&one).is_none(), "renewed");
        assert!(find(&other).is_some());
    }

    #[test]
    fn tokens_of_a_user_are_limited() {
        let accounts = accounts();
        let first = accounts.open(&own(0)).unwrap();
        for group in 1..100 {
            accounts.open(&own(group)).unwrap();
        }
        assert_eq!(lock(&accounts.all).len(), PER_USER_MAX);
        assert!(accounts.find(&format!("Bearer {}", first.token.text())).is_none());
    }
}
