//! The users of the page with their tokens.

use super::own_process::Settings;
use super::process::{LastUse, UserProcess, lock};
use crate::access::Token;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use streamline::paths::{Fault, faults};
use sys::process::UserIds;

/// Maximum number of accounts with the same user id. Such accounts differ in their groups.
const ACCOUNTS_PER_USER_MAX: usize = 8;
/// Maximum number of accounts.
const ACCOUNTS_MAX: usize = 4096;
/// Maximum total number of groups of all accounts. The kernel allows 65,536 groups per process.
const TOTAL_GROUPS_MAX: usize = 1 << 20;

/// The token and the process of a user who has requested the page. A user has one account for each
/// set of credentials (user id, group id and supplementary groups).
#[derive(Debug)]
pub struct Account {
    /// The token that admits requests to the process.
    pub token: Token,
    /// The user's process, which runs under these credentials.
    pub process: Arc<UserProcess>,
}

impl Account {
    fn user_ids(&self) -> &UserIds {
        self.process.user_ids()
    }
}

/// Returns the credentials of the peer of a Unix socket, or `None` if the kernel does not report
/// them.
pub(super) fn peer_ids(socket: impl AsFd) -> Option<UserIds> {
    let peer = sys::abstract_socket::peer_credentials(socket).ok()?;
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
    /// Creates an empty list of accounts for the page at this address.
    #[must_use]
    pub fn new(address: String, daemon: Option<PathBuf>, idle: Duration) -> Arc<Self> {
        Arc::new(Self { address, daemon, idle, all: Mutex::default() })
    }

    /// Returns the account with the token in the value of an `Authorization` header, or `None` if
    /// no account has this token.
    #[must_use]
    pub fn find(&self, authorization: &str) -> Option<Arc<Account>> {
        let all = lock(&self.all);
        // Every token is compared, so that the duration does not depend on the position of the
        // matching one.
        let found = all.iter().fold(None, |found, account| {
            if account.token.matches_header(Some(authorization)) { Some(account) } else { found }
        });
        found.cloned()
    }

    /// Returns the account for a set of credentials, and adds the account if it is missing. Removes
    /// the oldest account of the user if the user has too many. If this process does not run as
    /// root, fails unless the user is root or the user of this process. If `renew` is true, first
    /// removes all accounts of the user, whatever their groups: their tokens become invalid and
    /// their processes end.
    pub fn open(&self, who: &UserIds, renew: bool) -> Result<Arc<Account>, Fault> {
        let (own, _) = sys::process::effective_ids();
        if own != 0 && who.uid != own && who.uid != 0 {
            return Err(faults::not_your_page(own));
        }
        let mut all = lock(&self.all);
        let first = all.iter().find(|account| account.user_ids().uid == who.uid);
        let starts = first.map(|account| account.process.start_limits()).unwrap_or_default();
        if renew {
            all.extract_if(.., |account| account.user_ids().uid == who.uid)
                .for_each(|gone| gone.process.close());
        }
        if let Some(found) = all.iter().find(|account| account.user_ids() == who) {
            return Ok(Arc::clone(found));
        }
        let of_user = |account: &&Arc<Account>| account.user_ids().uid == who.uid;
        if all.iter().filter(of_user).count() >= ACCOUNTS_PER_USER_MAX
            && let Some(oldest) = all.iter().position(|account| of_user(&account))
        {
            all.remove(oldest).process.close();
        }
        make_room(&mut all, who.groups.len())?;
        let token = Token::random();
        let token = token.map_err(|error| faults::refused("token", &error.to_string()))?;
        let settings = Settings {
            token: self.needs_token().then(|| token.text().to_owned()),
            daemon: self.daemon.clone(),
            idle_ms: u64::try_from(self.idle.as_millis()).unwrap_or(u64::MAX),
        };
        let process = UserProcess::new(who.clone(), settings, starts);
        let account = Arc::new(Account { token, process });
        all.push(Arc::clone(&account));
        Ok(account)
    }

    /// Returns the URL of the page for a user, with the user's token.
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

/// Removes accounts until there is room for another account with `groups` groups. Removes the
/// oldest account whose process has never run or, if there is none, the oldest account without a
/// running process. Fails if all remaining accounts have a running process.
fn make_room(all: &mut Vec<Arc<Account>>, groups: usize) -> Result<(), Fault> {
    let kept: usize = all.iter().map(|account| account.user_ids().groups.len()).sum();
    let mut kept = kept + groups;
    while all.len() >= ACCOUNTS_MAX || kept > TOTAL_GROUPS_MAX {
        let oldest =
            |use_of: LastUse| all.iter().position(|account| account.process.last_use() == use_of);
        let Some(gone) = oldest(LastUse::Never).or_else(|| oldest(LastUse::Earlier)) else {
            return Err(faults::too_many_tokens(ACCOUNTS_MAX));
        };
        let gone = all.remove(gone);
        gone.process.close();
        kept -= gone.user_ids().groups.len();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accounts() -> Arc<Accounts> {
        Accounts::new("http://127.0.0.1:1/".to_owned(), None, Duration::ZERO)
    }

    fn own_ids_with_group(group: u32) -> UserIds {
        let (uid, gid) = sys::process::effective_ids();
        UserIds { uid, gid, groups: vec![group] }
    }

    #[test]
    fn token_identifies_the_credentials_that_requested_it() {
        let accounts = accounts();
        let open = |who: &UserIds| accounts.open(who, false).unwrap();
        let (one, other) = (open(&own_ids_with_group(1)), open(&own_ids_with_group(2)));
        let find = |account: &Account| accounts.find(&format!("Bearer {}", account.token.text()));
        assert_eq!(*find(&one).unwrap().user_ids(), own_ids_with_group(1));
        assert_eq!(*find(&other).unwrap().user_ids(), own_ids_with_group(2));
        assert_eq!(open(&own_ids_with_group(1)).token.text(), one.token.text(), "the same");
        assert!(accounts.find("Bearer ").is_none());
        assert!(accounts.url(&one).ends_with(one.token.text()));
    }

    #[test]
    fn renewal_makes_all_tokens_of_the_user_invalid() {
        let Some(()) = testkit::need::require_root() else { return };
        let accounts = accounts();
        let user = |uid, group| UserIds { uid, gid: group, groups: vec![group] };
        let open = |who: &UserIds, renew| accounts.open(who, renew).unwrap();
        let first = [open(&user(7, 1), false), open(&user(7, 2), false)];
        let other = open(&user(8, 1), false);
        let new = open(&user(7, 1), true);
        let find = |account: &Account| accounts.find(&format!("Bearer {}", account.token.text()));
        assert!(first.iter().all(|account| find(account).is_none()));
        assert!(find(&other).is_some() && find(&new).is_some());
        // A caller that still holds a removed account cannot start a process for it.
        let (socket, _peer) = sys::descriptor::socket_pair().unwrap();
        for account in first {
            let refused = account.process.hand_over(b"t", socket.as_fd()).unwrap_err();
            assert!(refused.contains("--renew"), "{refused}");
        }
    }

    #[test]
    fn user_with_many_accounts_locks_out_no_other() {
        let Some(()) = testkit::need::require_root() else { return };
        let accounts = accounts();
        let user = |uid, groups| UserIds { uid, gid: uid, groups: vec![uid; groups] };
        for uid in 0..u32::try_from(ACCOUNTS_MAX).unwrap() + 10 {
            accounts.open(&user(uid, 1), false).unwrap();
        }
        assert_eq!(lock(&accounts.all).len(), ACCOUNTS_MAX);
        assert_eq!(lock(&accounts.all)[0].user_ids().uid, 10, "the oldest have gone");
        for uid in 10_000..10_040 {
            accounts.open(&user(uid, 65_536), false).unwrap();
        }
        let all = lock(&accounts.all);
        assert!(
            all.iter().map(|account| account.user_ids().groups.len()).sum::<usize>()
                <= TOTAL_GROUPS_MAX
        );
        assert_eq!(all.last().unwrap().user_ids().uid, 10_039);
    }

    #[test]
    fn tokens_of_a_user_are_limited() {
        let accounts = accounts();
        let first = accounts.open(&own_ids_with_group(0), false).unwrap();
        for group in 1..100 {
            accounts.open(&own_ids_with_group(group), false).unwrap();
        }
        assert_eq!(lock(&accounts.all).len(), ACCOUNTS_PER_USER_MAX);
        assert!(accounts.find(&format!("Bearer {}", first.token.text())).is_none());
    }
}
