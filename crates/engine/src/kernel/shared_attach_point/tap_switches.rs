//! Switches: machine words in a program's memory that open the taps of its requests
//! ([`crate::kernel::taps`]).
//!
//! Each *place*, that is, each step of the fused tree and the source, has a word. The word is 0
//! unless a tap at the place is open. Otherwise it contains 1 plus the number of a *slot*, a mark
//! of the current frame that the program sets when the frame leaves the place. Each request has a
//! list of its open taps: a mask of slots, and an entry for each tap. A place keeps its slot as
//! long as one of its taps is open.

use super::super::fused_tree::FusedTree;
use super::super::taps::{OpenTaps, switch_word_index};
use super::program_version::ProgramVersion;
use super::request::AttachedRequest;
use ebpf::emit::tap::{self, SWITCHED_SLOTS_MAX, SWITCHED_WORD_SIZE, SwitchLayout};
use std::collections::BTreeMap;
use sys::memory::{Mapping, ReadMapping};

/// The machine words that open taps. In a program's memory, these words follow the counters.
#[derive(Debug)]
pub(super) struct TapSwitches {
    layout: SwitchLayout,
    /// The slots in use. The key is the number of a place with an open tap, and the value is the
    /// number of the slot that this place uses.
    slots: BTreeMap<u32, u32>,
    /// Number of the slot that is tried first for the next tap. Slots are assigned in rotation. A
    /// slot is therefore not reused while the program still processes a frame on which the slot is
    /// set.
    next_slot: u32,
}

/// An open tap: its place, the index of its request in the fused tree, and the number of its exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenTap {
    place: u32,
    line: u32,
    exit: u32,
}

/// Returns the layout of the switches, the machine words that open taps. They begin `base` bytes
/// after the start of the map of counters.
pub(super) fn switch_layout(fused: &FusedTree, base: u32) -> SwitchLayout {
    let places = u32::try_from(fused.steps.len() + 1).unwrap_or(u32::MAX);
    SwitchLayout { map: 0, base, places }
}

/// Returns the size in bytes of all switches of a program.
fn tap_switches_size(fused: &FusedTree) -> u32 {
    let lines = u32::try_from(fused.request_count()).unwrap_or(u32::MAX);
    switch_layout(fused, 0).list_index(lines).saturating_mul(SWITCHED_WORD_SIZE)
}

/// Returns the size in bytes of a program's memory. The memory consists of the scratch memory of
/// each processor, which includes the counters, and of the switches.
pub(super) fn memory_size(layout: &tap::FusedTap, fused: &FusedTree) -> u32 {
    let scratch = layout.cpus.saturating_mul(layout.scratch.stride);
    scratch.saturating_add(tap_switches_size(fused))
}

impl TapSwitches {
    /// Creates the description of a program's switches. A slot that is in use in `memory` stays in
    /// use.
    pub(super) fn new(layout: SwitchLayout, memory: &ReadMapping) -> Self {
        let mut switches = Self { layout, slots: BTreeMap::new(), next_slot: 0 };
        for place in 0..layout.places {
            if let Some(slot) = switches.word(memory, place).checked_sub(1) {
                switches.slots.insert(place, slot);
            }
        }
        switches
    }

    fn word(&self, memory: &ReadMapping, word: u32) -> u32 {
        memory.word32(self.offset(word)).unwrap_or(0)
    }

    const fn offset(&self, word: u32) -> usize {
        (self.layout.base + SWITCHED_WORD_SIZE * word) as usize
    }

    /// Opens and closes taps until exactly those are open that the requests in `lines` require. The
    /// requests are in the order of the fused tree; `None` stands for a request that has been
    /// removed. Fails if the taps need more slots than the program has.
    pub(super) fn store_open_taps(
        &mut self,
        (memory, fused): (&Mapping, &FusedTree),
        lines: &[Option<&AttachedRequest>],
    ) -> Result<(), String> {
        let layout = self.layout;
        let is_open = |line: usize, tap: usize| {
            let line = lines.get(line).copied().flatten();
            line.is_some_and(|line| line.taps.iter().any(|open| open == tap))
        };
        let number = |index: usize| u32::try_from(index).unwrap_or(u32::MAX);
        let open: Vec<OpenTap> = fused
            .taps
            .iter()
            .filter(|tap| is_open(tap.line, tap.number_in_request))
            .map(|tap| {
                let request = lines.get(tap.line).copied().flatten();
                let exits = request.map_or(0, |line| line.tree.exits.len());
                let exit = number(exits + tap.number_in_request);
                OpenTap { place: switch_word_index(tap.from), line: number(tap.line), exit }
            })
            .collect();
        self.assign_slots(&open)?;
        let words = tap_switches_size(fused) / SWITCHED_WORD_SIZE;
        let before: Vec<u32> = (0..words).map(|word| self.word(memory, word)).collect();
        for (word, value) in switch_words_to_store(layout, before, &self.slots, &open) {
            memory.set_word32(self.offset(word), value);
        }
        Ok(())
    }

    /// Assigns a slot to each place with an open tap. Frees the slots of all other places. If there
    /// are too few slots, fails and changes nothing.
    fn assign_slots(&mut self, open: &[OpenTap]) -> Result<(), String> {
        let (mut slots, mut next) = (self.slots.clone(), self.next_slot);
        slots.retain(|place, _| open.iter().any(|tap| tap.place == *place));
        for OpenTap { place, .. } in open {
            if slots.contains_key(place) {
                continue;
            }
            let mut from_next =
                (0..SWITCHED_SLOTS_MAX).map(|step| (next + step) % SWITCHED_SLOTS_MAX);
            let free = from_next.find(|slot| !slots.values().any(|used| used == slot));
            let Some(free) = free else {
                return Err(format!(
                    "{SWITCHED_SLOTS_MAX} filters are being read in the program at this interface, \
                     and more cannot be read at once"
                ));
            };
            slots.insert(*place, free);
            next = (free + 1) % SWITCHED_SLOTS_MAX;
        }
        (self.slots, self.next_slot) = (slots, next);
        Ok(())
    }

    /// Returns the open taps of the request with index `line` in the fused tree.
    pub(super) fn open_taps(
        &self,
        (memory, fused): (&ReadMapping, &FusedTree),
        line: usize,
    ) -> OpenTaps {
        let list = self.layout.list_index(u32::try_from(line).unwrap_or(u32::MAX));
        let mask = self.word(memory, list);
        let is_open = |place: u32| self.slots.get(&place).is_some_and(|slot| mask >> slot & 1 > 0);
        let ours = fused.taps.iter().filter(|tap| tap.line == line);
        let open = ours.filter(|tap| is_open(switch_word_index(tap.from)));
        OpenTaps::from_indices(open.map(|tap| tap.number_in_request))
    }
}

impl ProgramVersion {
    /// Opens the taps that the requests in `lines` require, and closes the other taps of the
    /// program. Ignores requests that the program does not run. On failure, returns the reason and
    /// changes nothing.
    pub(super) fn set_taps<'l>(
        &mut self,
        lines: impl Iterator<Item = &'l AttachedRequest> + Clone,
    ) -> Result<(), String> {
        let of = |number: &u32| lines.clone().find(|line| line.number == *number);
        let here: Vec<Option<&AttachedRequest>> = self.requests.iter().map(of).collect();
        self.set_open_taps(&here)
    }

    /// Opens and closes taps of the program until exactly those are open that the requests in
    /// `lines` require. The requests are in the order of the fused tree; `None` stands for a
    /// request that has been removed. Fails if the taps need more slots than the program has.
    pub(super) fn set_open_taps(
        &mut self,
        lines: &[Option<&AttachedRequest>],
    ) -> Result<(), String> {
        self.switches.store_open_taps((&self.tallies, &self.fused), lines)
    }

    /// Returns the open taps of a request.
    pub(super) fn open_taps(&self, line: u32) -> OpenTaps {
        let place = self.requests.iter().position(|number| *number == line);
        let of = |line| self.switches.open_taps((&self.tallies, &self.fused), line);
        place.map_or_else(OpenTaps::default, of)
    }
}

/// Returns the words to store while the program runs, in this order, so that exactly the taps in
/// `open` become open. `before` contains the current words.
///
/// For each frame, the program reads the words of places first, then the masks, then the entries.
/// So a tap is closed in this order, from its place to its entry, and opened in the reverse order.
/// The entry of a tap that stays open does not move.
fn switch_words_to_store(
    layout: SwitchLayout,
    before: Vec<u32>,
    slots: &BTreeMap<u32, u32>,
    open: &[OpenTap],
) -> Vec<(u32, u32)> {
    let mut after = vec![0; before.len()];
    for (place, slot) in slots {
        after[*place as usize] = slot + 1;
    }
    let entry_of = |tap: &OpenTap| {
        slots.get(&tap.place).map(|slot| (*slot, SwitchLayout::encode_entry(*slot, tap.exit)))
    };
    let is_place = |word: u32| word < layout.places;
    let is_mask = |word: u32| {
        !is_place(word) && (word - layout.places).is_multiple_of(SwitchLayout::OPEN_EXIT_LIST_WORDS)
    };
    let lists =
        (layout.places as usize..before.len()).step_by(SwitchLayout::OPEN_EXIT_LIST_WORDS as usize);
    for (line, list) in (0..).zip(lists) {
        let entries = open.iter().filter(|tap| tap.line == line).filter_map(entry_of);
        let mut new: Vec<u32> = Vec::new();
        for (slot, entry) in entries {
            after[list] |= 1 << slot;
            new.push(entry);
        }
        let places = list + 1..list + SwitchLayout::OPEN_EXIT_LIST_WORDS as usize;
        for at in places.clone() {
            if let Some(stays) = new.iter().position(|entry| *entry == before[at]) {
                after[at] = new.swap_remove(stays);
            }
        }
        let free = places.filter(|at| after[*at] == 0).collect::<Vec<_>>();
        for (at, entry) in free.into_iter().zip(new) {
            after[at] = entry;
        }
    }
    let words = || (0_u32..).zip(before.iter().copied().zip(after.iter().copied()));
    let closed = |(word, (before, after)): (u32, (u32, u32))| {
        let value = match is_mask(word) {
            true => before & after,
            false => {
                if before == after {
                    after
                } else {
                    0
                }
            }
        };
        (value != before).then_some((word, value))
    };
    let opened =
        |(word, (before, after)): (u32, (u32, u32))| (before != after).then_some((word, after));
    let mut closing: Vec<(u32, u32)> = words().filter_map(closed).collect();
    let mut opening: Vec<(u32, u32)> =
        words().filter(|(_, (_, after))| *after != 0).filter_map(opened).collect();
    let rank = |word: u32| {
        if is_place(word) {
            0
        } else if is_mask(word) {
            1
        } else {
            2
        }
    };
    closing.sort_by_key(|(word, _)| rank(*word));
    opening.sort_by_key(|(word, _)| std::cmp::Reverse(rank(*word)));
    closing.into_iter().chain(opening).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE_COUNT: u32 = 4;
    const REQUEST_COUNT: u32 = 2;

    /// A stand-in for a program's memory: the words that open taps, and the taps that are open.
    struct Memory {
        switches: TapSwitches,
        words: Vec<u32>,
        open: Vec<OpenTap>,
    }

    impl Memory {
        fn new() -> Self {
            let layout = SwitchLayout { map: 0, base: 0, places: PLACE_COUNT };
            let switches = TapSwitches { layout, slots: BTreeMap::new(), next_slot: 0 };
            let words = vec![0; layout.list_index(REQUEST_COUNT) as usize];
            Self { switches, words, open: Vec::new() }
        }

        /// Opens exactly these taps. Returns the memory before the first store and after each
        /// store.
        fn set(&mut self, open: Vec<OpenTap>) -> Vec<Vec<u32>> {
            self.switches.assign_slots(&open).expect("free slots");
            let TapSwitches { layout, slots, .. } = &self.switches;
            let mut moments = vec![self.words.clone()];
            for (word, value) in switch_words_to_store(*layout, self.words.clone(), slots, &open) {
                self.words[word as usize] = value;
                moments.push(self.words.clone());
            }
            self.open = open;
            moments
        }

        fn list<'w>(&self, words: &'w [u32], line: u32) -> &'w [u32] {
            &words[self.switches.layout.list_index(line) as usize..]
                [..SwitchLayout::OPEN_EXIT_LIST_WORDS as usize]
        }

        /// Returns the taps that a frame takes if it passes all places. Computes them as the
        /// program would if it read the places, the masks and the entries at three different
        /// moments.
        fn taken(&self, [places, masks, entries]: [&[u32]; 3]) -> Vec<OpenTap> {
            let noted =
                |slot: u32| places[..PLACE_COUNT as usize].iter().position(|p| *p == slot + 1);
            let slots = (0..SWITCHED_SLOTS_MAX).filter(|slot| noted(*slot).is_some());
            let bits: u32 = slots.map(|slot| 1 << slot).sum();
            let mut taken = Vec::new();
            for line in (0..REQUEST_COUNT).filter(|line| self.list(masks, *line)[0] & bits != 0) {
                for entry in self.list(entries, line)[1..].iter().filter(|entry| **entry > 0) {
                    let Some(place) = noted((entry & 0xff) - 1) else { continue };
                    let place = u32::try_from(place).expect("few");
                    taken.push(OpenTap { place, line, exit: entry >> 8 });
                }
            }
            taken
        }
    }

    fn tap(place: u32, line: u32) -> OpenTap {
        OpenTap { place, line, exit: 10 + place }
    }

    /// Returns the taps whose bits are set in `bits`. There is one bit for each place of each
    /// request.
    fn taps(bits: u32) -> Vec<OpenTap> {
        let all =
            (0..REQUEST_COUNT).flat_map(|line| (0..PLACE_COUNT).map(move |place| tap(place, line)));
        (0..).zip(all).filter(|(bit, _)| bits >> bit & 1 > 0).map(|(_, tap)| tap).collect()
    }

    #[test]
    fn frame_takes_the_right_taps_while_others_open_and_close() {
        let mut memory = Memory::new();
        let changes =
            (0..1_u32 << (PLACE_COUNT * REQUEST_COUNT)).map(|n| n.wrapping_mul(151) % 256);
        for bits in changes {
            let before = memory.open.clone();
            let moments = memory.set(taps(bits));
            let stay = |tap: &&OpenTap| before.contains(tap);
            let stay: Vec<OpenTap> = memory.open.iter().filter(stay).copied().collect();
            for (first, places) in moments.iter().enumerate() {
                for (second, masks) in moments.iter().enumerate().skip(first) {
                    for entries in &moments[second..] {
                        let taken = memory.taken([places, masks, entries]);
                        let known =
                            |tap: &OpenTap| before.contains(tap) || memory.open.contains(tap);
                        assert!(taken.iter().all(known), "{taken:?}");
                        let times = |of: &OpenTap| taken.iter().filter(|tap| *tap == of).count();
                        assert!(taken.iter().all(|tap| times(tap) == 1), "{taken:?}");
                        assert!(stay.iter().all(|tap| times(tap) == 1), "{stay:?} {taken:?}");
                    }
                }
            }
            let mut all = memory.taken([memory.words.as_slice(); 3]);
            all.sort_by_key(|tap| (tap.line, tap.place));
            assert_eq!(all, memory.open);
        }
    }

    #[test]
    fn slot_of_a_closed_tap_is_not_reused_at_once() {
        let mut memory = Memory::new();
        memory.set(vec![tap(0, 0)]);
        memory.set(vec![tap(1, 0)]);
        assert_eq!(memory.switches.slots, BTreeMap::from([(1, 1)]));
        memory.set(Vec::new());
        assert!(memory.words.iter().all(|word| *word == 0));
    }

    #[test]
    fn more_places_than_slots_are_refused() {
        let mut switches = Memory::new().switches;
        let open: Vec<OpenTap> = (0..SWITCHED_SLOTS_MAX).map(|place| tap(place, 0)).collect();
        switches.assign_slots(&open).expect("enough slots");
        let slots = switches.slots.clone();
        let more: Vec<OpenTap> = (1..=SWITCHED_SLOTS_MAX + 1).map(|place| tap(place, 0)).collect();
        assert!(switches.assign_slots(&more).expect_err("too many").contains("16 filters"));
        assert_eq!(switches.slots, slots);
    }
}
