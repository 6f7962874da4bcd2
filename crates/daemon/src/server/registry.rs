//! The registry of running paths: owners, names, numbers, and visibility.
//!
//! The registry is a pure data structure: credentials and the current time are passed to its
//! methods.

use crate::policy::{Policy, Visibility};
use buffer::name::{Address, Error as NameError};
use member::faults;
use member::protocol::{REQUEST_BYTES_MAX, RegisterParameters, RegisteredPath};
use member::varlink::Fault;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A path in the daemon's registry.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct PathEntry {
    pub(crate) number: u32,
    pub(crate) name: Option<String>,
    pub(crate) uid: u32,
    pub(crate) process: i32,
    pub(crate) line: String,
    pub(crate) log: Option<String>,
    pub(crate) started: u64,
    /// Id of the plan, if the path has reported it.
    #[serde(default)]
    pub(crate) plan: Option<String>,
}

/// All registered paths, by number.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    entries: BTreeMap<u32, PathEntry>,
    /// The number that was assigned last, or the largest restored number; the search for a free
    /// number starts after it.
    last_number: u32,
}

/// Largest number of a path, after which numbering continues at 1.
const PATH_NUMBER_MAX: u32 = 1_000_000;

impl Registry {
    /// Registers a path of this user. Fails if another path of the user has the name, a field is
    /// invalid, or the user already has `paths_max` paths.
    pub(crate) fn add(
        &mut self,
        (uid, process): (u32, i32),
        wanted: RegisterParameters,
        paths_max: Option<u64>,
        now: u64,
    ) -> Result<&PathEntry, Fault> {
        check_request_text(&wanted.line)?;
        check_log_path(wanted.log.as_deref())?;
        check_plan_id(wanted.plan.as_deref())?;
        if let Some(name) = &wanted.name {
            check_name(uid, name)?;
            if let Some(known) = self.find_by_name(uid, name) {
                return Err(faults::name_taken(name, known.number));
            }
        }
        let used = self.user_path_count(uid);
        if let Some(limit) = paths_max.filter(|limit| used >= *limit) {
            return Err(faults::quota_exceeded("paths", limit));
        }
        let number = self.allocate_number(wanted.number);
        let RegisterParameters { name, line, log, started, plan, .. } = wanted;
        let started = started.filter(|started| *started <= now).unwrap_or(now);
        let entry = PathEntry { number, name, uid, process, line, log, started, plan };
        Ok(self.entries.entry(number).or_insert(entry))
    }

    /// Restores a stored entry. Returns false if another path of its owner has its name, or if its
    /// number is in use or out of range.
    pub(crate) fn restore(&mut self, entry: PathEntry) -> bool {
        let named =
            entry.name.as_ref().is_some_and(|name| self.find_by_name(entry.uid, name).is_some());
        let (number, known) = (entry.number, self.entries.contains_key(&entry.number));
        if named || known || !(1..=PATH_NUMBER_MAX).contains(&number) {
            return false;
        }
        self.last_number = self.last_number.max(number);
        self.entries.insert(number, entry);
        true
    }

    /// Replaces the request of a path. Returns the new entry, or `None` if the number is unknown.
    /// Fails if the request is invalid.
    pub(crate) fn replace_request(
        &mut self,
        number: u32,
        (line, plan): (String, Option<String>),
    ) -> Result<Option<&PathEntry>, Fault> {
        check_request_text(&line)?;
        check_plan_id(plan.as_deref())?;
        let entry = self.entries.get_mut(&number);
        Ok(entry.map(|entry| {
            (entry.line, entry.plan) = (line, plan);
            &*entry
        }))
    }

    /// Removes a path and returns its entry, or `None` if the number is unknown.
    pub(crate) fn remove(&mut self, number: u32) -> Option<PathEntry> {
        self.entries.remove(&number)
    }

    /// Returns the entry of the path with this number, or `None` if the number is unknown.
    pub(crate) fn get(&self, number: u32) -> Option<&PathEntry> {
        self.entries.get(&number)
    }

    /// Iterates over all entries by ascending number.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &PathEntry> {
        self.entries.values()
    }

    /// Returns the number of paths of a user.
    pub(crate) fn user_path_count(&self, uid: u32) -> u64 {
        self.iter().filter(|entry| entry.uid == uid).count() as u64
    }

    /// Finds the path that user `uid` identifies by a number, a name, or `UID/NAME`. The user's own
    /// names take precedence. Invisible paths count as unknown. Fails if the path is unknown or the
    /// name is ambiguous.
    pub(crate) fn find(
        &self,
        wanted: &str,
        uid: u32,
        policy: &Policy,
    ) -> Result<&PathEntry, Fault> {
        let unknown = || faults::no_such_path(wanted);
        let is_visible = |entry: &&PathEntry| entry.status(uid, policy).is_some();
        if let Ok(number) = wanted.parse() {
            return self.entries.get(&number).filter(is_visible).ok_or_else(unknown);
        }
        if let Some((user, name)) = wanted.split_once('/') {
            let user = user.parse().map_err(|_| unknown())?;
            return self.find_by_name(user, name).filter(is_visible).ok_or_else(unknown);
        }
        if let Some(own) = self.find_by_name(uid, wanted) {
            return Ok(own);
        }
        let named = |entry: &&PathEntry| entry.name.as_deref() == Some(wanted);
        let others: Vec<&PathEntry> = self.iter().filter(named).filter(is_visible).collect();
        match others[..] {
            [] => Err(unknown()),
            [only] => Ok(only),
            _ => {
                let numbers: Vec<u32> = others.iter().map(|entry| entry.number).collect();
                Err(faults::ambiguous_path(wanted, &numbers))
            }
        }
    }

    fn find_by_name(&self, uid: u32, name: &str) -> Option<&PathEntry> {
        self.iter().find(|entry| entry.uid == uid && entry.name.as_deref() == Some(name))
    }

    /// Allocates the number `preferred` if it is free, or else the next free number.
    fn allocate_number(&mut self, preferred: Option<u32>) -> u32 {
        let free = |number: &u32| {
            (1..=PATH_NUMBER_MAX).contains(number) && !self.entries.contains_key(number)
        };
        if let Some(number) = preferred.filter(free) {
            return number;
        }
        let after = (self.last_number + 1..=PATH_NUMBER_MAX).chain(1..=self.last_number);
        // A free number always exists, since there are far fewer paths than numbers.
        let next = after.into_iter().find(free).unwrap_or(PATH_NUMBER_MAX);
        self.last_number = next;
        next
    }
}

impl PathEntry {
    /// Returns true if this user may connect to the path.
    pub(crate) const fn permits_connection(&self, uid: u32) -> bool {
        uid == self.uid || uid == ROOT_UID
    }

    /// Returns the path as this user may see it, or `None` if it is hidden.
    pub(crate) fn status(&self, uid: u32, policy: &Policy) -> Option<RegisteredPath> {
        let yours = self.permits_connection(uid);
        let lines = yours || policy.others_see == Visibility::Lines;
        if !yours && policy.others_see == Visibility::Nothing {
            return None;
        }
        Some(RegisteredPath {
            number: self.number,
            name: self.name.clone(),
            uid: self.uid,
            process: yours.then_some(self.process),
            started: lines.then_some(self.started),
            line: lines.then(|| self.line.clone()),
            log: self.log.clone().filter(|_| yours),
            yours,
        })
    }
}

fn check_request_text(line: &str) -> Result<(), Fault> {
    match () {
        () if line.is_empty() => Err(faults::refused("line", "it is empty")),
        () if line.len() > REQUEST_BYTES_MAX => {
            Err(faults::refused("line", &format!("it is longer than {REQUEST_BYTES_MAX} bytes")))
        }
        () if line.chars().any(|c| c.is_control() && !"\n\t".contains(c)) => {
            Err(faults::refused("line", "it contains control characters"))
        }
        () => Ok(()),
    }
}

/// Checks that a plan id, if given, has at most 32 characters, all of them hexadecimal digits.
fn check_plan_id(plan: Option<&str>) -> Result<(), Fault> {
    let is_id = |id: &str| id.len() <= 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    match plan.is_none_or(is_id) {
        true => Ok(()),
        false => Err(faults::refused("plan", "it is not a hexadecimal number")),
    }
}

fn check_log_path(log: Option<&str>) -> Result<(), Fault> {
    let Some(log) = log else { return Ok(()) };
    let is_path = log.starts_with('/') && log.len() < 4096 && !log.chars().any(char::is_control);
    if is_path { Ok(()) } else { Err(faults::refused("log", "it is not an absolute path")) }
}

/// Checks the name of a path. It must be a valid stream name and must not be a number.
pub(crate) fn check_name(uid: u32, name: &str) -> Result<(), Fault> {
    if name.bytes().all(|byte| byte.is_ascii_digit()) && !name.is_empty() {
        return Err(faults::refused("name", "it is a number, and paths have numbers of their own"));
    }
    match Address::for_user(uid, name) {
        Ok(_) => Ok(()),
        Err(NameError::Name { why, .. }) => Err(faults::refused("name", why)),
        Err(other) => Err(faults::refused("name", &other.to_string())),
    }
}

const ROOT_UID: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    const ALICE: u32 = 1001;
    const BOB: u32 = 1002;

    fn test_registration(name: &str) -> RegisterParameters {
        let name = Some(name.to_owned()).filter(|name| !name.is_empty());
        RegisterParameters {
            name,
            line: "rx lo | count".to_owned(),
            ..RegisterParameters::default()
        }
    }

    fn add_path(
        registry: &mut Registry,
        uid: u32,
        register: RegisterParameters,
    ) -> Result<u32, String> {
        let added = registry.add((uid, 77), register, Some(3), 1000);
        added.map(|entry| entry.number).map_err(|fault| fault.name)
    }

    #[test]
    fn names_are_per_user_and_numbers_are_global() {
        let mut registry = Registry::default();
        assert_eq!(add_path(&mut registry, ALICE, test_registration("web")), Ok(1));
        assert_eq!(add_path(&mut registry, BOB, test_registration("web")), Ok(2));
        let taken = add_path(&mut registry, ALICE, test_registration("web"));
        assert_eq!(taken, Err("io.streamline.NameTaken".to_owned()));
        assert_eq!(add_path(&mut registry, ALICE, test_registration("")), Ok(3));
        registry.remove(2);
        assert_eq!(
            add_path(
                &mut registry,
                ALICE,
                RegisterParameters { number: Some(2), ..test_registration("") }
            ),
            Ok(2)
        );
        let exceeded_limit = add_path(&mut registry, ALICE, test_registration(""));
        assert_eq!(exceeded_limit, Err("io.streamline.QuotaExceeded".to_owned()));
        assert_eq!(
            add_path(
                &mut registry,
                BOB,
                RegisterParameters { number: Some(2), ..test_registration("") }
            ),
            Ok(4)
        );
        let preferred = RegisterParameters { number: Some(u32::MAX), ..test_registration("") };
        assert_eq!(add_path(&mut registry, BOB, preferred), Ok(5));
        assert_eq!(registry.user_path_count(ALICE), 3);
    }

    #[test]
    fn invalid_names_and_requests_are_refused() {
        let mut registry = Registry::default();
        let long = "x".repeat(65);
        for name in ["7", "a b", "../x", "a/b", "\u{1b}[2J", long.as_str()] {
            let refused = add_path(&mut registry, ALICE, test_registration(name));
            assert_eq!(refused, Err("io.streamline.Refused".to_owned()), "{name:?}");
        }
        for line in [String::new(), "a\u{1b}[2Jb".to_owned(), "x".repeat(REQUEST_BYTES_MAX + 1)] {
            let refused = add_path(
                &mut registry,
                ALICE,
                RegisterParameters { line, ..test_registration("x") },
            );
            assert_eq!(refused, Err("io.streamline.Refused".to_owned()));
        }
        let log = Some("relative".to_owned());
        assert!(
            add_path(&mut registry, ALICE, RegisterParameters { log, ..test_registration("x") })
                .is_err()
        );
        let started = Some(2000);
        registry
            .add((1, 1), RegisterParameters { started, ..test_registration("x") }, None, 1000)
            .unwrap();
        assert_eq!(registry.iter().next().unwrap().started, 1000, "nobody began in the future");
    }

    #[test]
    fn visibility_and_control_follow_the_policy() {
        let mut registry = Registry::default();
        for (uid, name) in [(ALICE, "web"), (BOB, "web"), (BOB, "dns")] {
            add_path(&mut registry, uid, test_registration(name)).unwrap();
        }
        let policy = |others_see| Policy { others_see, ..Policy::default() };
        let find = |wanted: &str, uid, sees| {
            let found = registry.find(wanted, uid, &policy(sees));
            found.map(|entry| entry.number).map_err(|fault| fault.name)
        };
        let unknown = Err("io.streamline.NoSuchPath".to_owned());
        assert_eq!(find("web", ALICE, Visibility::Names), Ok(1));
        assert_eq!(find("web", BOB, Visibility::Names), Ok(2));
        assert_eq!(find("1002/web", ALICE, Visibility::Names), Ok(2));
        assert_eq!(find("dns", ALICE, Visibility::Names), Ok(3));
        assert_eq!(find("dns", ALICE, Visibility::Nothing), unknown);
        assert_eq!(find("3", ALICE, Visibility::Nothing), unknown);
        assert_eq!(find("3", 0, Visibility::Nothing), Ok(3));
        assert_eq!(find("web", 0, Visibility::Names), Err("io.streamline.WhichPath".to_owned()));
        assert_eq!(find("x/y", 0, Visibility::Names), unknown);
        let dns = registry.find("dns", BOB, &policy(Visibility::Names)).unwrap();
        assert!(dns.permits_connection(BOB) && dns.permits_connection(0));
        assert!(!dns.permits_connection(ALICE));
        let status = |uid, sees| dns.status(uid, &policy(sees));
        assert_eq!(status(ALICE, Visibility::Nothing), None);
        let names = status(ALICE, Visibility::Names).unwrap();
        assert_eq!((names.name.as_deref(), names.line, names.process), (Some("dns"), None, None));
        assert!(status(ALICE, Visibility::Lines).unwrap().line.is_some());
        let own = status(BOB, Visibility::Nothing).unwrap();
        assert!(own.yours && own.line.is_some() && own.process == Some(77));
    }
}
