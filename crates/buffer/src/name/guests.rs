//! Who reads a stream or a region of this host, and how many of them may.

use std::os::fd::OwnedFd;
use std::sync::Arc;

/// How many may read one stream or region at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// All together.
    pub readers: usize,
    /// Those of any one user who is not the owner: so that one stranger does not take all places.
    pub of_one_stranger: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { readers: 32, of_one_stranger: 8 }
    }
}

/// The readers of one stream or region, each with what gives its place back.
#[derive(Debug)]
pub(super) struct Guests<T>(Vec<Guest<T>>);

impl<T> Default for Guests<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

#[derive(Debug)]
struct Guest<T> {
    ticket: T,
    uid: u32,
    /// Our end of its socket, or a copy of it: it hangs up when the reader is gone, however that
    /// happened.
    bell: Arc<OwnedFd>,
}

/// Why there is no place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Full {
    pub(super) limit: usize,
    pub(super) of_user: bool,
}

impl<T> Guests<T> {
    /// Whether there is a place for somebody of this user.
    pub(super) fn room(&self, uid: u32, owner: u32, limits: Limits) -> Result<(), Full> {
        let of_user = self.0.iter().filter(|guest| guest.uid == uid).count();
        if self.0.len() >= limits.readers {
            Err(Full { limit: limits.readers, of_user: false })
        } else if uid != owner && uid != ROOT && of_user >= limits.of_one_stranger {
            Err(Full { limit: limits.of_one_stranger, of_user: true })
        } else {
            Ok(())
        }
    }

    pub(super) fn add(&mut self, ticket: T, uid: u32, bell: OwnedFd) {
        self.0.push(Guest { ticket, uid, bell: Arc::new(bell) });
    }

    pub(super) const fn count(&self) -> usize {
        self.0.len()
    }

    /// Their bells.
    pub(super) fn bells(&self) -> impl Iterator<Item = Arc<OwnedFd>> {
        self.0.iter().map(|guest| guest.bell.clone())
    }

    /// Frees the places of those who are gone, and answers what was theirs.
    pub(super) fn show_out(&mut self, gone: &[&Arc<OwnedFd>]) -> Vec<T> {
        let left = |guest: &mut Guest<T>| gone.iter().any(|bell| Arc::ptr_eq(bell, &guest.bell));
        self.0.extract_if(.., left).map(|guest| guest.ticket).collect()
    }
}

const ROOT: u32 = 0;
