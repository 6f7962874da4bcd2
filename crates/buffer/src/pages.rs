//! Page size, population and NUMA node for the memory of a ring or pool. [Th §5.3.3], BASELINES,
//! working set
//!
//! [`choose_pages`] maps a memory size and the facts of the machine ([`PageSupport`]) to a
//! [`PageChoice`]. `Display` explains a choice, and [`PageChoice::create_memory`] applies it. The
//! choice is a preference: if the kernel refuses, the next simpler kind of page is used, so no
//! allocation fails for lack of huge pages.
//!
//! Measured (`examples/pages.rs`; BASELINES): walking a ring costs the same with 2 MB pages up to 4
//! MB, and 4 to 15 % less from 16 MB on; first touch costs 12 to 16 times less. Memory of at least
//! one huge page therefore uses transparent huge pages, and only large rings use reserved ones.
//! Populating all of the writer's pages in advance costs no more than faulting them in one by one,
//! and moves the cost before the first lap. Readers do not populate: a fault in a read-only mapping
//! maps several pages at a time.

use std::fmt;
use std::sync::OnceLock;
use sys::memory::{Mapping, Memfd};
pub use sys::pages::PageSupport;

/// The kind and placement of a memory range's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageChoice {
    /// Kind of the pages: base pages, transparent huge pages or reserved huge pages.
    pub pages: PageKind,
    /// True if all pages are allocated and mapped when the memory is created, not at first access.
    pub populate: bool,
    /// True if the pages are placed on the NUMA node of the thread that creates the memory, which
    /// is its writer. Otherwise they are placed on the node of the thread that touches them first.
    pub local: bool,
}

/// The kinds of pages that memory can consist of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PageKind {
    /// The processor's base pages, usually 4 KB.
    Small,
    /// Transparent huge pages, where the kernel has free ones.
    Transparent,
    /// Huge pages that the administrator has reserved.
    Reserved,
}

/// Minimum size in bytes of memory that uses reserved huge pages. Below this size, reserved pages
/// gain nothing over transparent huge pages or a few hundred faults.
const RESERVED_PAGES_SIZE_MIN: usize = 16 << 20;
/// Maximum size, in bytes, of memory with small pages that is populated when it is created.
/// Populating 1024 pages takes about 1 ms.
const POPULATED_SIZE_MAX: usize = 4 << 20;

/// Chooses the kind and the placement of the pages for `bytes` bytes of memory, given the
/// properties of the machine.
#[must_use]
pub const fn choose_pages(facts: &PageSupport, bytes: usize) -> PageChoice {
    let has_room = facts.huge > 0 && bytes >= facts.huge;
    let is_whole = has_room && bytes.is_multiple_of(facts.huge) && bytes >= RESERVED_PAGES_SIZE_MIN;
    let pages = if is_whole && facts.reserved >= bytes / facts.huge {
        PageKind::Reserved
    } else if has_room && facts.transparent {
        PageKind::Transparent
    } else {
        PageKind::Small
    };
    let populate = bytes <= POPULATED_SIZE_MAX || !matches!(pages, PageKind::Small);
    PageChoice { pages, populate, local: facts.nodes > 1 }
}

impl PageChoice {
    /// Chooses pages for `bytes` bytes of memory on this machine.
    #[must_use]
    pub fn for_this_machine(bytes: usize) -> Self {
        choose_pages(page_support(), bytes)
    }

    /// Creates and maps a memfd of `len` bytes with the chosen pages, or the closest kind that the
    /// kernel grants.
    pub fn create_memory(&self, name: &str, len: usize) -> sys::Result<(Memfd, Mapping)> {
        if self.pages == PageKind::Reserved {
            return match Memfd::create_with_huge_pages(name, len) {
                Ok(file) => self.map_file(file, len),
                Err(_) => Self { pages: PageKind::Transparent, ..*self }.create_memory(name, len),
            };
        }
        self.map_file(Memfd::create(name, len)?, len)
    }

    fn map_file(&self, file: Memfd, len: usize) -> sys::Result<(Memfd, Mapping)> {
        let mapping = file.map()?;
        match self.populate {
            true => self.prepare(&file, &mapping, len)?,
            false => self.advise_kernel(&mapping),
        }
        Ok((file, mapping))
    }

    /// Applies the choice to a mapping, and allocates the first `len` bytes of its file, so that a
    /// lack of memory is an error here rather than SIGBUS later (T12).
    pub fn prepare(&self, file: &Memfd, mapping: &Mapping, len: usize) -> sys::Result<()> {
        self.advise_kernel(mapping);
        if self.populate {
            // Through the mapping, so that the pages are of the advised kind. Kernels before 5.14
            // refuse, and then pages are faulted in; `allocate` below detects a lack of memory.
            let _done = mapping.populate(0, len);
        }
        file.allocate(0, len)
    }

    /// Advises the kernel of the chosen kind of page and NUMA node for a mapping. Ignores refusals.
    pub fn advise_kernel(&self, mapping: &Mapping) {
        if self.pages == PageKind::Transparent {
            // Refused by kernels without huge pages: the pages are then small.
            let _refused = mapping.request_huge_pages();
        }
        if self.local
            && let Ok(node) = sys::pages::current_numa_node()
        {
            // Refused if this process may not use the node: pages are then placed on first touch.
            let _refused = sys::pages::prefer_numa_node(mapping, node);
        }
    }
}

/// Returns the properties of this machine on which the choice of pages depends, detected once per
/// process.
pub fn page_support() -> &'static PageSupport {
    static PAGE_FACTS: OnceLock<PageSupport> = OnceLock::new();
    PAGE_FACTS.get_or_init(PageSupport::detect)
}

impl fmt::Display for PageChoice {
    /// Formats the kind and the placement of the pages as `explain` prints them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.pages {
            PageKind::Small => "small pages",
            PageKind::Transparent => "huge pages where the kernel finds some",
            PageKind::Reserved => "reserved huge pages",
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
    const SMALL_PAGES_ONLY: PageSupport =
        PageSupport { huge: 2 * MB, reserved: 0, transparent: false, nodes: 1 };

    #[test]
    fn page_choice_depends_on_size_and_machine() {
        let text = |facts: PageSupport, bytes| choose_pages(&facts, bytes).to_string();
        let cases = [
            (SMALL_PAGES_ONLY, MB, "small pages, mapped at once"),
            (SMALL_PAGES_ONLY, 64 * MB, "small pages, mapped as they are used"),
            (PageSupport::default(), 64 * MB, "small pages, mapped as they are used"),
            (
                PageSupport { transparent: true, ..SMALL_PAGES_ONLY },
                MB,
                "small pages, mapped at once",
            ),
            (
                PageSupport { transparent: true, ..SMALL_PAGES_ONLY },
                2 * MB,
                "huge pages where the kernel finds some, mapped at once",
            ),
            (
                PageSupport { reserved: 1000, transparent: true, ..SMALL_PAGES_ONLY },
                8 * MB,
                "huge pages where the kernel finds some, mapped at once",
            ),
            (
                PageSupport { reserved: 1000, ..SMALL_PAGES_ONLY },
                16 * MB,
                "reserved huge pages, mapped at once",
            ),
            (
                PageSupport { reserved: 7, ..SMALL_PAGES_ONLY },
                16 * MB,
                "small pages, mapped as they are used",
            ),
            (
                PageSupport { reserved: 1000, ..SMALL_PAGES_ONLY },
                16 * MB + 4096,
                "small pages, mapped as they are \
                 used",
            ),
            (
                PageSupport { nodes: 2, ..SMALL_PAGES_ONLY },
                MB,
                "small pages, mapped at once, on the writer's node",
            ),
        ];
        for (facts, bytes, expected) in cases {
            assert_eq!(text(facts, bytes), expected, "{facts:?} {bytes}");
        }
    }

    /// Every choice yields memory that can be written in full and sealed.
    #[test]
    fn d18_every_page_choice_yields_memory_on_any_machine() {
        for pages in [PageKind::Small, PageKind::Transparent, PageKind::Reserved] {
            for (populate, local) in [(false, false), (true, false), (false, true), (true, true)] {
                let choice = PageChoice { pages, populate, local };
                let (file, mapping) = choice.create_memory("streamline-test", 2 * MB).unwrap();
                assert_eq!((file.len(), mapping.len()), (2 * MB, 2 * MB));
                let resident = file.allocated_bytes().unwrap();
                assert_eq!(
                    resident >= 2 * MB as u64,
                    populate || has_reserved_pages(&file),
                    "{choice}"
                );
                if local {
                    let node = sys::pages::preferred_numa_node(&mapping).unwrap();
                    assert!(node.is_none() || node == sys::pages::current_numa_node().ok());
                }
                file.seal(sys::memory::Seals::READER).unwrap();
            }
        }
        println!("here 1 MB are {}; {:?}", PageChoice::for_this_machine(MB), page_support());
    }

    /// Returns true if the pages of a file are reserved huge pages, which the kernel allocates
    /// before the first write.
    fn has_reserved_pages(file: &Memfd) -> bool {
        file.allocated_bytes().unwrap() > 0
    }

    /// A choice of reserved huge pages that the kernel refuses falls back to transparent huge
    /// pages.
    #[test]
    fn transparent_pages_replace_refused_reserved_pages() {
        const MEMFD_NAME: &str = "streamline-refused";
        let choice = PageChoice { pages: PageKind::Reserved, populate: false, local: false };
        let (_file, _mapping) = choice.create_memory(MEMFD_NAME, 2 * MB).unwrap();
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let flags = maps.split(MEMFD_NAME).nth(1).unwrap().lines();
        let flags = flags.clone().find(|line| line.starts_with("VmFlags:")).unwrap();
        assert!(flags.split(' ').any(|flag| ["hg", "ht"].contains(&flag)), "{flags}");
    }

    /// Touching populated memory causes no page fault.
    #[test]
    fn populated_memory_does_not_fault() {
        let choice = PageChoice { pages: PageKind::Small, populate: true, local: false };
        let (_file, mapping) = choice.create_memory("streamline-test", MB).unwrap();
        let region = crate::region::Region::mapped(mapping);
        let before = minor_faults();
        for page in 0..MB / 4096 {
            region.word(page * 512).store(1, crate::atomic::Ordering::Relaxed);
        }
        let after = minor_faults();
        assert!(after - before < 16, "{} faults for 256 pages", after - before);
    }

    /// The writer of a shared ring causes no page fault in the first lap.
    #[test]
    fn shared_ring_writer_does_not_fault_in_first_lap() {
        let id = abi::DbufId::new(1).unwrap();
        let config = crate::dbuf::BlockConfig {
            policy: crate::OverflowPolicy::Overwrite,
            ..crate::dbuf::BlockConfig::new(id)
        };
        let (mut writer, _offers) = crate::share::block_ring(&config).unwrap();
        let block = [1; 4096 - 16];
        writer.write(&block).unwrap();
        let before = minor_faults();
        for _ in 0..MB / 4096 {
            assert!(writer.write(&block).unwrap());
        }
        let after = minor_faults();
        assert!(after - before < 16, "{} faults for 256 pages", after - before);
    }

    /// Returns the number of minor page faults of this thread (proc(5), field 10 of `stat`).
    fn minor_faults() -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        let (_, rest) = text.rsplit_once(") ").unwrap();
        rest.split(' ').nth(7).unwrap().parse().unwrap()
    }
}
