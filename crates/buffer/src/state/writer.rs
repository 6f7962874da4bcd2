//! Writers of a table. Its rows change at [`Writer::end`]'s bracket and at no other time.

use super::layout::{MAGIC, Shape, word};
use super::rows;
use super::table::Table;
use crate::atomic::{AtomicU64, Ordering};
use crate::foreign;
use crate::name::{Address, Error, Host, SharedRegion};
use abi::access::AccessList;
use std::collections::HashSet;
use std::ops::Deref;

/// The writing end of a table. Dropping it gives the name back; who has it open sees that it has
/// ended.
#[derive(Debug)]
pub struct Writer {
    table: Table,
    /// Answers whoever comes.
    _host: Host,
    used: usize,
    /// Places for which there is no room.
    beyond: HashSet<usize>,
    /// True if something was put since the last end.
    is_open: bool,
}

impl Deref for Writer {
    type Target = Table;

    fn deref(&self) -> &Table {
        &self.table
    }
}

impl Writer {
    /// Makes a table without rows under a name of this user, for those that the list lets read.
    pub fn create(name: &str, access: AccessList, shape: Shape) -> Result<Self, Error> {
        let address = Address::own(name)?.of_state();
        if !shape.fits() {
            let why = "what is to be shown by it has too many columns or rows";
            return Err(Error::Name { name: name.to_owned(), why });
        }
        let text = shape.text();
        let (region, handout) = SharedRegion::create(shape.words() * size_of::<u64>(), false)?;
        let words = region.words();
        foreign::copy_in(words, word::COUNT, &text);
        let numbers = [
            (word::TEXT, text.len() as u64),
            (word::COLUMNS, shape.columns.len() as u64),
            (word::ROWS, shape.rows as u64),
            (word::MAGIC, MAGIC),
        ];
        for (at, number) in numbers {
            // Nobody has it yet: whoever gets it gets it from the kernel, behind all of this.
            set(words, at, number);
        }
        let host = Host::open()?;
        // Who may write is nobody's question: others get what can only be read.
        let access = AccessList { mode: access.mode & READ, ..access };
        host.name_region(address.clone(), access, handout)?;
        let first = Shape::first(text.len());
        let (used, beyond, is_open) = Default::default();
        let table = Table { region, address, shape, first };
        Ok(Self { table, _host: host, used, beyond, is_open })
    }

    /// Forgets all rows.
    pub fn clear(&mut self) {
        for at in 0..self.used {
            self.put(at, None);
        }
        self.beyond.clear();
    }

    /// The row at this place has these numbers, or there is none. What lies beyond the last place
    /// is only counted. Until [`Writer::end`] readers know that what they see is a part.
    pub fn put(&mut self, at: usize, numbers: Option<&[u64]>) {
        if !std::mem::replace(&mut self.is_open, true)
            && let Some(lock) = self.words().get(word::LOCK)
        {
            rows::open(lock);
        }
        if at >= self.shape.rows {
            match numbers {
                Some(_) => self.beyond.insert(at),
                None => self.beyond.remove(&at),
            };
            return;
        }
        if numbers.is_none() && at >= self.used {
            return;
        }
        self.used = self.used.max(at + 1);
        rows::put(self.table.row(at), numbers);
    }

    /// Ends a bracket: what was put since the last end belongs together, as of now, by the
    /// monotonic clock in ns.
    pub fn end(&mut self, now: u64) {
        if !std::mem::take(&mut self.is_open) {
            return;
        }
        let words = self.words();
        set(words, word::WRITTEN, now);
        set(words, word::LEFT_OUT, self.beyond.len() as u64);
        set(words, word::USED, self.used as u64);
        if let Some(lock) = words.get(word::LOCK) {
            rows::close(lock);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Before the socket tells it, which somebody may hold who is just being started.
        if let Some(word) = self.words().get(word::ENDED) {
            word.store(1, Ordering::Release);
        }
    }
}

fn set(words: &[AtomicU64], at: usize, number: u64) {
    if let Some(word) = words.get(at) {
        word.store(number, Ordering::Relaxed);
    }
}

/// The bits that let somebody read.
const READ: u32 = 0o444;
