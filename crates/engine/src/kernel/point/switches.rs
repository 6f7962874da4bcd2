//! The words that open the taps of a program's requests ([`crate::kernel::taps`]).
//!
//! Each step of the fused tree, and the source, has a word with the slot in which the program notes
//! frames that leave there, and each request a list of its open taps with their slots. A slot stays
//! that of its step as long as a tap of the step is open.

use super::super::fused::FusedTree;
use super::super::taps::{OpenTaps, switch_place};
use super::request::AttachedRequest;
use super::version::Version;
use ebpf::emit::tap::{self, SWITCHED_SLOTS, SWITCHED_WORD, SwitchLayout};
use std::collections::BTreeMap;
use sys::memory::{Mapping, ReadMapping};

/// The switches of a program, which follow the counters in its memory.
#[derive(Debug)]
pub(super) struct Switches {
    layout: SwitchLayout,
    /// The slots in use, by place.
    slots: BTreeMap<u32, u32>,
}

/// Returns the layout of the switches, which are `base` bytes from the beginning of the map of
/// counters.
pub(super) fn switch_layout(fused: &FusedTree, base: u32) -> SwitchLayout {
    let places = u32::try_from(fused.steps.len() + 1).unwrap_or(u32::MAX);
    SwitchLayout { map: 0, base, places }
}

/// Returns the size of the switches in bytes.
fn switches_size(fused: &FusedTree) -> u32 {
    let lines = u32::try_from(fused.line_count()).unwrap_or(u32::MAX);
    switch_layout(fused, 0).list(lines).saturating_mul(SWITCHED_WORD)
}

/// Returns the size in bytes of a program's memory: its scratch memory for each processor, with the
/// counters, and then its switches.
pub(super) fn memory_size(layout: &tap::FusedTap, fused: &FusedTree) -> u32 {
    let scratch = layout.cpus.saturating_mul(layout.scratch.stride);
    scratch.saturating_add(switches_size(fused))
}

impl Switches {
    /// Describes the switches of a program. Slots that are in use in the memory stay in use.
    pub(super) fn new(layout: SwitchLayout, memory: &ReadMapping) -> Self {
        let mut switches = Self { layout, slots: BTreeMap::new() };
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
        (self.layout.base + SWITCHED_WORD * word) as usize
    }

    /// Opens exactly the taps of these requests, which are in the order of the fused tree. Fails if
    /// more steps would be read than the program has slots.
    pub(super) fn set(
        &mut self,
        (memory, fused): (&Mapping, &FusedTree),
        lines: &[Option<&AttachedRequest>],
    ) -> Result<(), String> {
        let layout = self.layout;
        let is_open = |line: usize, tap: usize| {
            let line = lines.get(line).copied().flatten();
            line.is_some_and(|line| line.taps.iter().any(|open| open == tap))
        };
        let open: Vec<(u32, usize, usize)> = fused
            .taps
            .iter()
            .filter(|tap| is_open(tap.line, tap.number_in_request))
            .map(|tap| (switch_place(tap.from), tap.line, tap.number_in_request))
            .collect();
        let mut slots = self.slots.clone();
        slots.retain(|place, _| open.iter().any(|(read, ..)| read == place));
        for (place, ..) in &open {
            let free = (0..SWITCHED_SLOTS).find(|slot| !slots.values().any(|used| used == slot));
            if slots.contains_key(place) {
                continue;
            }
            let Some(free) = free else {
                return Err(format!(
                    "{SWITCHED_SLOTS} filters are being read in the program at this interface, \
                     and more cannot be read at once"
                ));
            };
            slots.insert(*place, free);
        }
        let mut words = vec![0_u32; (switches_size(fused) / SWITCHED_WORD) as usize];
        let mut put = |at: u32, value: u32| {
            words.get_mut(at as usize).into_iter().for_each(|word| *word |= value);
        };
        let mut counts: BTreeMap<usize, u32> = BTreeMap::new();
        for (place, slot) in &slots {
            put(*place, slot + 1);
        }
        for (place, line, tap) in open {
            let Some(slot) = slots.get(&place) else { continue };
            let list = layout.list(u32::try_from(line).unwrap_or(u32::MAX));
            let count = counts.entry(line).or_default();
            put(list, 1 << slot);
            put(list + 1 + 2 * *count, slot + 1);
            let exits = lines.get(line).copied().flatten().map_or(0, |line| line.tree.exits.len());
            put(list + 2 + 2 * *count, u32::try_from(exits + tap).unwrap_or(u32::MAX));
            *count += 1;
        }
        for (word, value) in (0..).zip(words) {
            memory.set_word32(self.offset(word), value);
        }
        self.slots = slots;
        Ok(())
    }

    /// Returns the open taps of a request, by its place in the fused tree.
    pub(super) fn open_taps(
        &self,
        (memory, fused): (&ReadMapping, &FusedTree),
        line: usize,
    ) -> OpenTaps {
        let list = self.layout.list(u32::try_from(line).unwrap_or(u32::MAX));
        let mask = self.word(memory, list);
        let is_open = |place: u32| self.slots.get(&place).is_some_and(|slot| mask >> slot & 1 > 0);
        let ours = fused.taps.iter().filter(|tap| tap.line == line);
        let open = ours.filter(|tap| is_open(switch_place(tap.from)));
        OpenTaps::from_indices(open.map(|tap| tap.number_in_request))
    }
}

impl Version {
    /// Opens and closes the taps of these requests, which are those of the program and perhaps
    /// others. Fails with the reason; the taps are then as before.
    pub(super) fn set_taps(&mut self, lines: &[AttachedRequest]) -> Result<(), String> {
        let of = |number: &u32| lines.iter().find(|line| line.number == *number);
        let here: Vec<Option<&AttachedRequest>> = self.lines.iter().map(of).collect();
        self.set_open_taps(&here)
    }

    /// Opens the taps of these requests, which are in the order of the fused tree.
    pub(super) fn set_open_taps(
        &mut self,
        lines: &[Option<&AttachedRequest>],
    ) -> Result<(), String> {
        self.switches.set((&self.tallies, &self.fused), lines)
    }

    /// Returns the open taps of a request.
    pub(super) fn open_taps(&self, line: u32) -> OpenTaps {
        let place = self.lines.iter().position(|number| *number == line);
        let of = |line| self.switches.open_taps((&self.tallies, &self.fused), line);
        place.map_or_else(OpenTaps::default, of)
    }
}
