//! One program of an attach point: what it was made for, its own memory, what it has tallied.

use super::super::assemble::{Assembled, Layout, Misfit, assemble};
use super::super::joint::{Counted, Joint, Member, Tally};
use super::super::load::{self, Failed, How, Loaded};
use super::Point;
use super::line::Line;
use ebpf::emit::tap;
use ebpf::emit::tap::{Egress, FrameRing, PointerRing, Scratch};
use filter::{Amount, Side};
use pipeline::graph::NodeId;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use sys::bpf::{Map, Program};
use sys::memory::ReadMapping;
use sys::steps::{Resource, Steps};

/// A program that the kernel has taken, for some lines.
#[derive(Debug)]
pub(super) struct Version {
    loaded: Program,
    /// Its counters, if it has any, and what else it needs as long as it runs: its further parts.
    counters: Option<Map>,
    _tables: Vec<Map>,
    /// Dropped before its map.
    desk: ReadMapping,
    desk_map: Map,
    layout: tap::FusedTap,
    code: ebpf::Program,
    joint: Joint,
    /// The numbers of its lines, and what the words of their steps are.
    lines: Vec<u32>,
    words: Vec<ebpf::FilterSpan>,
    behind_tag: Vec<bool>,
}

/// The reason a program could not be made.
#[derive(Debug)]
pub(super) struct Failure {
    at: Option<(u32, NodeId)>,
    pub(super) why: String,
    /// True if it is too much for one program.
    pub(super) full: bool,
}

impl Failure {
    /// The node at fault, if it is one of this line.
    pub(super) fn node_of(&self, line: u32) -> Option<NodeId> {
        self.at.filter(|(number, _)| *number == line).map(|(_, node)| node)
    }

    fn because(why: impl ToString) -> Self {
        Self { at: None, why: why.to_string(), full: false }
    }
}

/// Maps made for a program: the request, the step, and the memory of the filter's state.
pub(super) type States = Vec<(u32, usize, Map)>;

impl Version {
    /// Assembles and loads a program for these lines.
    pub(super) fn make(
        point: &Point,
        lines: &[&Line],
        steps: &Steps,
    ) -> Result<(Self, States), Failure> {
        let drawn = Drawn::of(point, lines)?;
        let Drawn { lines, numbers, joint, layout, given, code, words, .. } = &drawn;
        let members: Vec<Member<'_>> = lines.iter().map(|line| line.member()).collect();
        steps.take(Resource::Memory, "a desk").map_err(Failure::because)?;
        let bytes = layout.cpus.saturating_mul(layout.scratch.stride);
        let desk = Map::array("desk", bytes, 1, true).map_err(Failure::because)?;
        let state_of = |word: &ebpf::FilterSpan| {
            let step = words.iter().position(|known| known == word)?;
            let line = joint.steps[step].lines[0];
            Some((line, joint.own_step(line, step)?))
        };
        let kept = |word: &ebpf::FilterSpan| {
            let (line, own) = state_of(word)?;
            lines[line].states.iter().find(|(step, _)| *step == own).map(|(_, map)| &**map)
        };
        steps.take(Resource::Program, "a program for lines").map_err(Failure::because)?;
        let descriptors: Vec<i32> =
            [desk.as_fd().as_raw_fd()].iter().chain(given).copied().collect();
        let how = if point.sockets.is_some() { How::SOCKETS } else { How::WATCHES };
        let made = load::load(code, how, &descriptors, steps, kept);
        let Loaded { program: loaded, maps } = made.map_err(|failed: Failed| {
            let at = words.iter().position(|word| failed.is_at(word));
            let node = at.map(|step| joint.node(&members, step));
            let at = node.map(|(line, node)| (numbers[line], node));
            let (why, full) = (failed.why, failed.too_large);
            Failure { at, why, full }
        })?;
        let numbered =
            |word: &ebpf::FilterSpan| state_of(word).map(|(line, own)| (numbers[line], own));
        let (counters, states, tables) = sorted(code, maps, numbered);
        steps.take(Resource::Memory, "a view of a desk").map_err(Failure::because)?;
        let memory = desk.map_read().map_err(Failure::because)?;
        Ok((Self::of(drawn, (loaded, counters, tables), (memory, desk)), states))
    }

    /// The program that was loaded for these lines before this process began, with its desk and its
    /// counters. Whether it is one that would be made of them now, [`Self::print`] says.
    pub(super) fn adopt(
        point: &Point,
        lines: &[&Line],
        (loaded, desk_map, counters): (Program, Map, Option<Map>),
    ) -> Result<Self, Failure> {
        let drawn = Drawn::of(point, lines)?;
        let Drawn { layout, .. } = &drawn;
        let info = desk_map.info().map_err(Failure::because)?;
        if info.value_size != layout.cpus.saturating_mul(layout.scratch.stride) || info.entries != 1
        {
            return Err(Failure::because("the memory of a program has another size"));
        }
        let desk = desk_map.map_read().map_err(Failure::because)?;
        Ok(Self::of(drawn, (loaded, counters, Vec::new()), (desk, desk_map)))
    }

    /// Combines a drawn program with its loaded form and its counters.
    fn of(
        drawn: Drawn<'_>,
        (loaded, counters, tables): (Program, Option<Map>, Vec<Map>),
        (desk, desk_map): (ReadMapping, Map),
    ) -> Self {
        let Drawn { numbers: lines, joint, layout, code, behind_tag, words, .. } = drawn;
        let _tables = tables;
        Self {
            loaded,
            counters,
            _tables,
            desk,
            desk_map,
            layout,
            code,
            joint,
            lines,
            words,
            behind_tag,
        }
    }

    /// Returns a fingerprint of the program: another version of Streamline may assemble another
    /// program from the same requests.
    pub(super) fn print(&self) -> u64 {
        // FNV-1a: the same in whatever process.
        let text = format!("{:?} {:?}", self.code, self.layout);
        let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }

    /// The numbers of its lines.
    pub(super) fn lines(&self) -> &[u32] {
        &self.lines
    }

    /// Returns the map of its counters.
    pub(super) const fn desk_map(&self) -> &Map {
        &self.desk_map
    }

    /// Its counters, if it has any.
    pub(super) const fn counters(&self) -> Option<&Map> {
        self.counters.as_ref()
    }

    pub(super) const fn program(&self) -> &Program {
        &self.loaded
    }

    /// Returns true if the program runs this request.
    pub(super) fn runs(&self, line: u32) -> bool {
        self.lines.contains(&line)
    }

    /// Returns true for each exit of a request whose frames begin behind a VLAN tag.
    pub(super) fn behind_tag(&self, line: u32) -> Vec<bool> {
        let ours = |hand: &super::super::joint::Out| self.lines.get(hand.line) == Some(&line);
        let both = self.joint.hands.iter().zip(&self.behind_tag);
        both.filter(|(hand, _)| ours(hand)).map(|(_, behind)| *behind).collect()
    }

    /// Returns the counters of a request so far.
    pub(super) fn counted(&self, line: &Line) -> Counted {
        let Some(place) = self.lines.iter().position(|number| *number == line.number) else {
            return Counted::default();
        };
        let mut counted = self.joint.counted(place, |number| self.tally(number));
        let values = self.counters.as_ref().and_then(|map| map.get(0).ok()).unwrap_or_default();
        counted.add_reasons(&self.code, &values, |word| {
            let step = self.words.iter().position(|known| known == word)?;
            self.joint.own_step(place, step)
        });
        counted
    }

    /// Its filters, how many lines use each, and how many blocks came to it.
    pub(super) fn steps(&self) -> Vec<(String, usize, u64)> {
        let steps = self.joint.steps.iter().zip(&self.words).enumerate();
        let shown = |(number, (shared, word)): (
            usize,
            (&super::super::joint::Shared, &ebpf::FilterSpan),
        )| {
            let entered = self.tally(self.joint.tally(Tally::Entered(number)));
            (word.filter.clone(), shared.lines.len(), entered.blocks)
        };
        steps.map(shown).collect()
    }

    /// The filters of a line: how many lines use each, and what came to it by its own count.
    pub(super) fn steps_of(&self, line: u32, entered: &[Amount]) -> Vec<(String, usize, u64)> {
        let place = self.lines.iter().position(|number| *number == line);
        let place = place.unwrap_or(usize::MAX);
        let shared = self.joint.steps.iter().zip(&self.words).enumerate();
        let ours = shared.filter_map(|(number, (shared, word))| {
            let own = self.joint.own_step(place, number)?;
            let blocks = entered.get(own).map_or(0, |entered| entered.blocks);
            Some((own, (word.filter.clone(), shared.lines.len(), blocks)))
        });
        let mut ours: Vec<_> = ours.collect();
        ours.sort_by_key(|(own, _)| *own);
        ours.into_iter().map(|(_, step)| step).collect()
    }

    /// Frames that it was given.
    pub(super) fn ran(&self) -> u64 {
        self.tally(self.joint.tally(Tally::Ran)).blocks
    }

    /// A tally over all processors.
    fn tally(&self, number: u16) -> Amount {
        let (stride, at) = (self.layout.scratch.stride, self.layout.scratch.tally(number));
        let word = |cpu: u32, at: u32| self.desk.word((cpu * stride + at) as usize).unwrap_or(0);
        let cpus = || 0..self.layout.cpus;
        Amount {
            blocks: cpus().map(|cpu| word(cpu, at)).sum(),
            bytes: cpus().map(|cpu| word(cpu, at + 8)).sum(),
        }
    }
}

/// A program for lines, before it is loaded.
struct Drawn<'l> {
    lines: Vec<&'l Line>,
    numbers: Vec<u32>,
    joint: Joint,
    layout: tap::FusedTap,
    /// The maps behind its desk.
    given: Vec<i32>,
    code: ebpf::Program,
    behind_tag: Vec<bool>,
    words: Vec<ebpf::FilterSpan>,
}

impl<'l> Drawn<'l> {
    fn of(point: &Point, lines: &[&'l Line]) -> Result<Self, Failure> {
        let lines = by_owner(lines);
        let numbers: Vec<u32> = lines.iter().map(|line| line.number).collect();
        let members: Vec<Member<'_>> = lines.iter().map(|line| line.member()).collect();
        let joint = Joint::of(&members);
        let (layout, given) = layout(point, &lines, &joint)?;
        let target = filter::target(&point.attach, point.hardened);
        let made = assemble(&joint, &members, (target, Layout::Watches(&layout)));
        let Assembled { program: code, behind_tag, .. } = made.map_err(|misfit| {
            let Misfit { at, why } = misfit;
            Failure { at: at.map(|(line, node)| (numbers[line], node)), ..Failure::because(why) }
        })?;
        let words = (0..joint.steps.len()).map(|step| joint.word(&members, step)).collect();
        Ok(Self { lines, numbers, joint, layout, given, code, behind_tag, words })
    }
}

/// Lines such that those of an owner stand together.
fn by_owner<'l>(lines: &[&'l Line]) -> Vec<&'l Line> {
    let owner = |line: &&Line| Arc::as_ptr(&line.owner);
    let owners: Vec<_> = lines.iter().map(owner).collect();
    let mut sorted = lines.to_vec();
    sorted.sort_by_key(|line| owners.iter().position(|first| *first == owner(line)));
    sorted
}

/// The map of the counters, if there are any, those that were made for a step of a line, and the
/// rest.
fn sorted(
    code: &ebpf::Program,
    maps: Vec<Option<Map>>,
    step_of: impl Fn(&ebpf::FilterSpan) -> Option<(u32, usize)>,
) -> (Option<Map>, States, Vec<Map>) {
    let (mut counters, mut states, mut tables) = (None, States::new(), Vec::new());
    for (spec, map) in code.maps.iter().zip(maps) {
        let word = spec.state_of.and_then(|word| code.filters.get(word));
        match (word.and_then(&step_of), map) {
            (Some((line, step)), Some(map)) => states.push((line, step, map)),
            (None, Some(map)) if counters.is_none() && !code.counters.is_empty() => {
                counters = Some(map);
            }
            (None, Some(map)) => tables.push(map),
            (_, None) => {}
        }
    }
    (counters, states, tables)
}

/// The memory of a program for these lines, and the maps that it is given behind its desk.
fn layout(
    point: &Point,
    lines: &[&Line],
    joint: &Joint,
) -> Result<(tap::FusedTap, Vec<i32>), Failure> {
    let mut given = Vec::new();
    let mut give = |fd: i32| {
        given.push(fd);
        u32::try_from(given.len()).unwrap_or(u32::MAX)
    };
    let mut owners: Vec<FrameRing> = Vec::new();
    let mut last = None;
    for line in lines {
        let records = &line.owner.records;
        if last != Some(Arc::as_ptr(&line.owner)) {
            last = Some(Arc::as_ptr(&line.owner));
            let shape = records.own_shape();
            owners.push(FrameRing {
                map: give(records.as_fd().as_raw_fd()),
                stride: shape.stride(),
                records_at: shape.records(),
                bytes: shape.bytes,
                record_max: shape.record_max,
                pointer_rings: Vec::new(),
            });
        }
        let shape = line.pointers.own_shape();
        let outlet = PointerRing {
            map: give(line.pointers.as_fd().as_raw_fd()),
            doorbell_map: give(line.bell_map.as_raw_fd()),
            stride: shape.stride(),
            pointers_at: shape.pointers_of(0),
            pointers: shape.pointers,
            wake: line.bell,
        };
        if let Some(owner) = owners.last_mut() {
            owner.pointer_rings.push(outlet);
        }
    }
    let cpus = lines.first().map_or(0, |line| line.pointers.shape().cpus);
    let desk = Scratch::new(lines.len(), joint.marks(), joint.tallies());
    let many = || Failure {
        full: true,
        ..Failure::because("it notes more about a frame than one program can reach")
    };
    let desk = desk.ok_or_else(many)?;
    let sent = point.attach.side == Side::Sent;
    let leads = joint.leads.iter().map(|step| {
        let (mark, number) = joint.lead(*step)?;
        let line = joint.steps.get(*step)?.lines.first().copied()?;
        let own = joint.own_step(line, *step)?;
        let known = lines.get(line)?.leads.iter().find(|(step, _)| *step == own);
        let interface = known.map(|(_, interface)| *interface)?;
        Some(Egress { interface, mark, failed: joint.tally(Tally::Refused(number)) })
    });
    let leads = leads.collect::<Option<Vec<Egress>>>();
    let leads = leads.ok_or_else(|| Failure::because("an interface has no number"))?;
    let own = point.sockets.as_ref().map(|sockets| sockets.own(&mut give));
    Ok((
        tap::FusedTap { cpus, sent, user: own, scratch: desk, rings: owners, egresses: leads },
        given,
    ))
}
