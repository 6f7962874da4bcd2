//! The reasons for failures, by user. They explain what an error number alone cannot.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Maximum number of users whose latest failure is stored.
const USERS_MAX: usize = 4096;

/// The reason for the latest failure of each user.
#[derive(Debug, Default)]
pub struct Failures(Mutex<HashMap<u32, String>>);

impl Failures {
    /// Stores the reason for a user's latest failure, in place of an earlier reason.
    pub fn set(&self, uid: u32, why: String) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= USERS_MAX {
            known.clear();
        }
        known.insert(uid, why);
    }

    /// Returns the reason for a user's latest failure as a line; empty if there was none.
    #[must_use]
    pub fn line(&self, uid: u32) -> String {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(&uid).map_or_else(String::new, |why| format!("{why}\n"))
    }
}
