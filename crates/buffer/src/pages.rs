//! Pages of the memory of a ring or pool: their size, when they are taken, and their node. [Th
//! §5.3.3], BASELINES, working set
//!
//! In: how many bytes, and what the machine offers ([`PageFacts`]). Out: a [`Choice`], by a
//! function of these alone, that can say why; and the memory. What is chosen is a wish: where the
//! machine refuses it, the next simpler kind is taken, so memory never fails for want of comfort.
//!
//! What is known (`examples/pages.rs`; BASELINES): to walk through a ring costs the same with pages
//! of 2 MB up to 4 MB, and 4 to 15 % less from 16 MB on; to touch it for the first time costs 12 to
//! 16 times less. So huge pages are used from their own size on wherever they are to be had for
//! nothing, and of those that somebody has set aside only large rings take. Pages that a writer
//! takes at once cost no more than those that come by faults, and come before the first lap.
//! Readers do not take theirs at once: the faults of a mapping that is only read bring several
//! pages each.

use std::fmt;
use std::sync::OnceLock;
use sys::memory::{Mapping, Memfd};
pub use sys::pages::PageFacts;

/// The choice of pages for a piece of memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// The pages.
    pub pages: Pages,
    /// True if they are taken and mapped at once.
    pub populate: bool,
    /// True if they are to lie on the node of the thread that makes the memory, which is the one
    /// that writes it, not of the first that touches them.
    pub local: bool,
}

/// Kinds of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pages {
    /// Those of the processor, 4 KB mostly.
    Small,
    /// Huge ones where the kernel finds some.
    Transparent,
    /// Huge ones of those that were set aside.
    Reserved,
}

/// Reserved huge pages are for memory of so many bytes and more: below they gain nothing that
/// transparent ones, or a few hundred faults, would not.
const RESERVED_MIN: usize = 16 << 20;
/// So many bytes are populated at once: 1 ms at 1 µs for each page.
const POPULATE_MAX: usize = 4 << 20;

/// Returns the choice for `bytes` bytes on a machine with these facts.
#[must_use]
pub const fn choose(facts: &PageFacts, bytes: usize) -> Choice {
    let has_room = facts.huge > 0 && bytes >= facts.huge;
    let is_whole = has_room && bytes.is_multiple_of(facts.huge) && bytes >= RESERVED_MIN;
    let pages = if is_whole && facts.reserved >= bytes / facts.huge {
        Pages::Reserved
    } else if has_room && facts.transparent {
        Pages::Transparent
    } else {
        Pages::Small
    };
    let populate = bytes <= POPULATE_MAX || !matches!(pages, Pages::Small);
    Choice { pages, populate, local: facts.nodes > 1 }
}

impl Choice {
    /// Returns the choice for `bytes` bytes on this machine.
    #[must_use]
    pub fn here(bytes: usize) -> Self {
        choose(facts(), bytes)
    }

    /// Memory of `len` bytes as it was chosen, or as near to that as the machine allows.
    pub fn memory(&self, name: &str, len: usize) -> sys::Result<(Memfd, Mapping)> {
        let reserved = match self.pages {
            Pages::Reserved => Memfd::create_huge(name, len).ok(),
            Pages::Small | Pages::Transparent => None,
        };
        let file = reserved.map_or_else(|| Memfd::create(name, len), Ok)?;
        let mapping = file.map()?;
        match self.populate {
            true => self.take(&file, &mapping, len)?,
            false => self.apply(&mapping),
        }
        Ok((file, mapping))
    }

    /// Takes the pages of the first `len` bytes of a file and this mapping of it, as was chosen. A
    /// lack of memory is an error here and no SIGBUS later (T12).
    pub fn take(&self, file: &Memfd, mapping: &Mapping, len: usize) -> sys::Result<()> {
        self.apply(mapping);
        if self.populate {
            // Through the mapping, so that they are such as were wished of it. Where the kernel
            // cannot (before 5.14), they come by faults; how much there is is asked below.
            let _done = mapping.populate(0, len);
        }
        file.allocate(0, len)
    }

    /// Tells the kernel what is wished of a mapping; what it cannot grant is left.
    pub fn apply(&self, mapping: &Mapping) {
        if self.pages == Pages::Transparent {
            // Refused by kernels without them: then they are small.
            let _wished = mapping.huge();
        }
        if self.local
            && let Ok(node) = sys::pages::node()
        {
            // Refused to who may not use that node: then the pages lie where they are touched.
            let _wished = sys::pages::prefer(mapping, node);
        }
    }
}

/// Returns the facts of this machine, looked up once.
pub fn facts() -> &'static PageFacts {
    static FACTS: OnceLock<PageFacts> = OnceLock::new();
    FACTS.get_or_init(PageFacts::detect)
}

impl fmt::Display for Choice {
    /// As `explain` tells it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.pages {
            Pages::Small => "small pages",
            Pages::Transparent => "huge pages where the kernel finds some",
            Pages::Reserved => "reserved huge pages",
        })?;
        f.write_str(if self.populate { ", mapped at once" } else { ", mapped as they are used" })?;
        if self.local { f.write_str(", on the writer's node") } else { Ok(()) }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;

    const MB: usize = 1 << 20;
    const PLAIN: PageFacts = PageFacts { huge: 2 * MB, reserved: 0, transparent: false, nodes: 1 };

    #[test]
    fn the_choice_is_a_function_of_size_and_machine() {
        let told = |facts: PageFacts, bytes| choose(&facts, bytes).to_string();
        let cases = [
            (PLAIN, MB, "small pages, mapped at once"),
            (PLAIN, 64 * MB, "small pages, mapped as they are used"),
            (PageFacts::default(), 64 * MB, "small pages, mapped as they are used"),
            (PageFacts { transparent: true, ..PLAIN }, MB, "small pages, mapped at once"),
            (
                PageFacts { transparent: true, ..PLAIN },
                2 * MB,
                "huge pages where the kernel finds some, mapped at once",
            ),
            (
                PageFacts { reserved: 1000, transparent: true, ..PLAIN },
                8 * MB,
                "huge pages where the kernel finds some, mapped at once",
            ),
            (PageFacts { reserved: 1000, ..PLAIN }, 16 * MB, "reserved huge pages, mapped at once"),
            (PageFacts { reserved: 7, ..PLAIN }, 16 * MB, "small pages, mapped as they are used"),
            (
                PageFacts { reserved: 1000, ..PLAIN },
                16 * MB + 4096,
                "small pages, mapped as they are \
                 used",
            ),
            (
                PageFacts { nodes: 2, ..PLAIN },
                MB,
                "small pages, mapped at once, on the writer's node",
            ),
        ];
        for (facts, bytes, expected) in cases {
            assert_eq!(told(facts, bytes), expected, "{facts:?} {bytes}");
        }
    }

    /// Every choice yields memory, all of which can be written and sealed.
    #[test]
    fn d18_every_choice_becomes_memory_on_every_machine() {
        for pages in [Pages::Small, Pages::Transparent, Pages::Reserved] {
            for (populate, local) in [(false, false), (true, false), (false, true), (true, true)] {
                let choice = Choice { pages, populate, local };
                let (file, mapping) = choice.memory("streamline-test", 2 * MB).unwrap();
                assert_eq!((file.len(), mapping.len()), (2 * MB, 2 * MB));
                let resident = file.resident().unwrap();
                assert_eq!(
                    resident >= 2 * MB as u64,
                    populate || pages_set_aside(&file),
                    "{choice}"
                );
                if local {
                    let told = sys::pages::preferred(&mapping).unwrap();
                    assert!(told.is_none() || told == sys::pages::node().ok());
                }
                file.seal(sys::memory::Seals::READER).unwrap();
            }
        }
        println!("here 1 MB are {}; {:?}", Choice::here(MB), facts());
    }

    /// Returns true if the machine had reserved huge pages after all.
    fn pages_set_aside(file: &Memfd) -> bool {
        file.resident().unwrap() > 0
    }

    /// Populated memory costs no fault when it is touched.
    #[test]
    fn populated_memory_is_touched_without_a_fault() {
        let choice = Choice { pages: Pages::Small, populate: true, local: false };
        let (_file, mapping) = choice.memory("streamline-test", MB).unwrap();
        let region = crate::region::Region::mapped(mapping);
        let before = faults();
        for page in 0..MB / 4096 {
            region.word(page * 512).store(1, crate::atomic::Ordering::Relaxed);
        }
        let after = faults();
        assert!(after - before < 16, "{} faults for 256 pages", after - before);
    }

    /// A ring for another process: its writer meets no fault in its first lap.
    #[test]
    fn a_writer_has_its_pages_before_the_first_lap() {
        let id = abi::DbufId::new(1).unwrap();
        let config = crate::dbuf::Config {
            policy: crate::Policy::Overwrite,
            ..crate::dbuf::Config::new(id)
        };
        let (mut writer, _offers) = crate::share::blocks(&config).unwrap();
        let block = [1; 4096 - 16];
        writer.write(&block).unwrap();
        let before = faults();
        for _ in 0..MB / 4096 {
            assert!(writer.write(&block).unwrap());
        }
        let after = faults();
        assert!(after - before < 16, "{} faults for 256 pages", after - before);
    }

    /// Minor faults of this thread (proc(5), field 10 of `stat`).
    fn faults() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, rest) = text.rsplit_once(") ").unwrap();
        rest.split(' ').nth(7).unwrap().parse().unwrap()
    }
}
