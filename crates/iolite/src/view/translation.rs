//! The translation cache of one reader: a small table, indexed by the low bits of the dbuf id. [SL
//! §5.3.1]
//!
//! The cache also remembers faults. After a refusal, a dbuf is requested again only after a number
//! of further pointers into it; the number doubles with each refusal. A reader that finds only
//! refused pointers suspends all queries in the same way, so a hostile writer that constantly names
//! new dbufs causes table lookups but no system calls. [SL §5.3.3, "splicing is then disabled"]

use super::{ForeignDbuf, Space};
use abi::{DbufId, RichPointer};
use buffer::Fault;
use std::sync::Arc;

/// The cached mappings and refusals of the dbufs to which one reader's pointers refer.
#[derive(Debug)]
pub(crate) struct TranslationCache {
    space: Space,
    lines: [TranslationLine; TRANSLATION_LINE_COUNT],
    /// Back-off after refusals by owners. During the back-off, this reader sends no query to any
    /// owner.
    suspension: BackOff,
}

const TRANSLATION_LINE_COUNT: usize = 16;

#[derive(Debug, Default)]
enum TranslationLine {
    #[default]
    Empty,
    Mapped(Arc<ForeignDbuf>),
    Refused(DbufId, Fault, BackOff),
}

/// An exponential back-off, counted in attempts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BackOff {
    skips_left: u32,
    failures: u32,
}

/// Maximum length of a back-off, in skipped attempts.
const BACK_OFF_MAX: u32 = 1 << 16;

impl BackOff {
    /// Returns true if the caller may make the next attempt. Otherwise counts the attempt as
    /// skipped.
    #[inline]
    pub(crate) const fn admit_attempt(&mut self) -> bool {
        if self.skips_left == 0 {
            return true;
        }
        self.skips_left -= 1;
        false
    }

    pub(crate) fn record_failure(&mut self) {
        self.record_failure_after(0);
    }

    /// Records a failed attempt. The first `harmless` consecutive failures cause no back-off.
    fn record_failure_after(&mut self, harmless: u32) {
        self.failures = self.failures.saturating_add(1);
        if let Some(more) = self.failures.checked_sub(harmless + 1) {
            self.skips_left = BACK_OFF_MAX.min(1 << more.min(31));
        }
    }

    pub(crate) const fn record_success(&mut self) {
        *self = Self { skips_left: 0, failures: 0 };
    }
}

/// Number of consecutive refusals by owners after which no back-off begins yet. A dbuf that is
/// being withdrawn also causes refusals.
const HARMLESS_REFUSALS_MAX: u32 = 8;

impl TranslationCache {
    pub(crate) fn new(space: Space) -> Self {
        Self { space, lines: Default::default(), suspension: BackOff::default() }
    }

    pub(crate) const fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the dbuf of a pointer and the offset of its bytes in the dbuf, mapping the dbuf if
    /// necessary. May wait for the owners' replies.
    #[inline]
    pub(crate) fn resolve(&mut self, pointer: RichPointer) -> Result<(&ForeignDbuf, usize), Fault> {
        if !self.is_mapped(pointer.dbuf()) {
            self.map_or_fault(pointer)?;
        }
        match self.lines.get(index(pointer.dbuf())) {
            Some(TranslationLine::Mapped(foreign)) => Ok((foreign, foreign.locate(pointer)?)),
            _ => Err(Fault::UnknownDbuf(pointer.dbuf())),
        }
    }

    /// Returns the mapping of a dbuf from this reader's cache, or `None` if the cache does not
    /// contain it.
    pub(crate) fn mapped(&self, dbuf: DbufId) -> Option<&Arc<ForeignDbuf>> {
        match self.lines.get(index(dbuf)) {
            Some(TranslationLine::Mapped(foreign)) if foreign.id == dbuf => Some(foreign),
            _ => None,
        }
    }

    #[inline]
    fn is_mapped(&self, dbuf: DbufId) -> bool {
        let line = self.lines.get(index(dbuf));
        matches!(line, Some(TranslationLine::Mapped(foreign)) if foreign.id == dbuf)
    }

    /// Maps the dbuf of a pointer that is not in the table. Fails if the owner refuses, or during a
    /// back-off.
    #[cold]
    fn map_or_fault(&mut self, pointer: RichPointer) -> Result<(), Fault> {
        let dbuf = pointer.dbuf();
        if pointer.is_hole() {
            return Err(Fault::Hole);
        }
        let Some(line) = self.lines.get_mut(index(dbuf)) else {
            return Err(Fault::UnknownDbuf(dbuf));
        };
        if let Some(foreign) = self.space.mapped(dbuf) {
            *line = TranslationLine::Mapped(foreign);
            return Ok(());
        }
        let (mut again, mut known) = (BackOff::default(), Fault::UnknownDbuf(dbuf));
        if let TranslationLine::Refused(id, fault, left) = line
            && *id == dbuf
        {
            if !left.admit_attempt() {
                return Err(*fault);
            }
            (again, known) = (*left, *fault);
        }
        if !self.suspension.admit_attempt() {
            return Err(known);
        }
        match self.space.map(dbuf) {
            Ok(foreign) => {
                *line = TranslationLine::Mapped(foreign);
                self.suspension.record_success();
                Ok(())
            }
            Err(fault) => {
                again.record_failure();
                // Mapped dbufs keep their line.
                if !matches!(line, TranslationLine::Mapped(_)) {
                    *line = TranslationLine::Refused(dbuf, fault, again);
                }
                self.suspension.record_failure_after(HARMLESS_REFUSALS_MAX);
                Err(fault)
            }
        }
    }
}

#[inline]
const fn index(dbuf: DbufId) -> usize {
    dbuf.number() as usize % TRANSLATION_LINE_COUNT
}
