//! One version of the program at an attach point: its requests, memory and counters.

use super::super::assemble::{AssemblyError, FrameAction, assemble};
use super::super::fused_tree::{CounterId, FusedRequest, FusedTree, KernelCounters};
use super::super::load::{self, LoadFailure, LoadOptions, LoadedProgram};
use super::request::AttachedRequest;
use super::site::AttachSite;
use super::tap_switches::{TapSwitches, memory_size, switch_layout};
use ebpf::emit::tap;
use ebpf::emit::tap::{Egress, FrameRing, PointerRing, ScratchLayout};
use filter::{Amount, TrafficDirection};
use pipeline::graph::NodeId;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use sys::bpf::{Map, Program};
use sys::memory::Mapping;
use sys::rollback::{RollbackLog, StepResource};

/// A program that has been loaded for an attach point, with its memory and the requests that it
/// runs.
#[derive(Debug)]
pub(super) struct ProgramVersion {
    pub(super) program: Program,
    /// The map in which filters count the blocks for which they return no class, by reason. `None`
    /// if no filter does so.
    pub(super) counters: Option<Map>,
    _tables: Vec<Map>,
    /// The memory mapping of the program's counters; dropped before the map that contains them.
    pub(super) tallies: Mapping,
    pub(super) tallies_map: Map,
    /// The machine words in the program's memory that open the taps of its requests.
    pub(super) switches: TapSwitches,
    layout: tap::FusedTap,
    code: ebpf::Program,
    pub(super) fused: FusedTree,
    /// The numbers of the program's requests, in the order of the fused tree.
    pub(super) requests: Vec<u32>,
    words: Vec<ebpf::FilterSpan>,
}

/// A failure to build a program for an attach point. `at` identifies the request and the node that
/// caused it, if known.
#[derive(Debug)]
pub(super) struct VersionError {
    at: Option<(u32, NodeId)>,
    pub(super) why: String,
    /// True if the program could not be built because the requests exceed a limit on one program.
    pub(super) full: bool,
}

impl VersionError {
    /// Returns the node that caused the failure, if it is known and belongs to the request with
    /// number `line`.
    pub(super) fn node_at_fault(&self, line: u32) -> Option<NodeId> {
        self.at.filter(|(number, _)| *number == line).map(|(_, node)| node)
    }

    fn from_reason(why: impl ToString) -> Self {
        Self { at: None, why: why.to_string(), full: false }
    }
}

/// State maps that were created with a program, each with the request number and the step number.
pub(super) type StateMaps = Vec<(u32, usize, Map)>;

/// A loaded program that will replace the current program of a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct NextProgram<'n> {
    pub(super) version: &'n ProgramVersion,
    /// The request that this program adds to the point, if any.
    pub(super) line: Option<&'n AttachedRequest>,
    pub(super) states: &'n StateMaps,
}

impl ProgramVersion {
    /// Assembles and loads one program for the requests in `lines`. Also returns the new state maps
    /// of their filters.
    pub(super) fn load(
        site: &AttachSite,
        lines: &[&AttachedRequest],
        steps: &RollbackLog,
    ) -> Result<(Self, StateMaps), VersionError> {
        let drawn = ProgramAssembly::new(site, lines)?;
        let ProgramAssembly { lines, numbers, fused, layout, given, code, words, .. } = &drawn;
        let members: Vec<FusedRequest<'_>> =
            lines.iter().map(|line| line.as_fused_request()).collect();
        steps
            .announce_creation(StepResource::Memory, "a desk")
            .map_err(VersionError::from_reason)?;
        let bytes = memory_size(layout, fused);
        let tallies = Map::array("desk", bytes, 1, true).map_err(VersionError::from_reason)?;
        let state_of = |word: &ebpf::FilterSpan| {
            let step = words.iter().position(|known| known == word)?;
            let line = fused.steps[step].requests[0];
            Some((line, fused.request_step_number(line, step)?))
        };
        let kept = |word: &ebpf::FilterSpan| {
            let (line, own) = state_of(word)?;
            lines[line].states.iter().find(|(step, _)| *step == own).map(|(_, map)| &**map)
        };
        steps
            .announce_creation(StepResource::Program, "a program for lines")
            .map_err(VersionError::from_reason)?;
        let descriptors: Vec<i32> =
            [tallies.as_fd().as_raw_fd()].iter().chain(given).copied().collect();
        let how = if site.sockets.is_some() {
            LoadOptions::SOCKETS
        } else {
            LoadOptions::TRAFFIC_CONTROL
        };
        let made = load::load(code, how, &descriptors, steps, kept);
        let LoadedProgram { program, maps } = made.map_err(|failed: LoadFailure| {
            let at = words.iter().position(|word| failed.is_rejected_in(word));
            let node = at.map(|step| fused.node(&members, step));
            let at = node.map(|(line, node)| (numbers[line], node));
            let (why, full) = (failed.why, failed.too_large);
            VersionError { at, why, full }
        })?;
        let numbered =
            |word: &ebpf::FilterSpan| state_of(word).map(|(line, own)| (numbers[line], own));
        let (counters, states, tables) = partition_maps(code, maps, numbered);
        steps
            .announce_creation(StepResource::Memory, "a view of a desk")
            .map_err(VersionError::from_reason)?;
        let memory = tallies.map().map_err(VersionError::from_reason)?;
        let open: Vec<Option<&AttachedRequest>> = lines.iter().copied().map(Some).collect();
        let mut version = Self::new(drawn, (program, counters, tables), (memory, tallies));
        version.set_open_taps(&open).map_err(VersionError::from_reason)?;
        Ok((version, states))
    }

    /// Adopts a loaded program of an earlier process, together with its counters, as the program
    /// for the requests in `lines`. The caller must compare [`Self::fingerprint`] to check that the
    /// program is current.
    pub(super) fn adopt(
        site: &AttachSite,
        lines: &[&AttachedRequest],
        (program, tallies_map, counters): (Program, Map, Option<Map>),
    ) -> Result<Self, VersionError> {
        let drawn = ProgramAssembly::new(site, lines)?;
        let info = tallies_map.info().map_err(VersionError::from_reason)?;
        if info.value_size != memory_size(&drawn.layout, &drawn.fused) || info.entries != 1 {
            return Err(VersionError::from_reason("the memory of a program has another size"));
        }
        let tallies = tallies_map.map().map_err(VersionError::from_reason)?;
        Ok(Self::new(drawn, (program, counters, Vec::new()), (tallies, tallies_map)))
    }

    /// Creates a version from an assembled program and the results of loading it: the program in
    /// the kernel, its maps, and its counters, which are mapped into memory.
    fn new(
        drawn: ProgramAssembly<'_>,
        (program, counters, tables): (Program, Option<Map>, Vec<Map>),
        (tallies, tallies_map): (Mapping, Map),
    ) -> Self {
        let ProgramAssembly { numbers: lines, fused, layout, code, words, .. } = drawn;
        let _tables = tables;
        let base = layout.cpus.saturating_mul(layout.scratch.stride);
        let switches = TapSwitches::new(switch_layout(&fused, base), &tallies);
        Self {
            program,
            counters,
            _tables,
            tallies,
            tallies_map,
            switches,
            layout,
            code,
            fused,
            requests: lines,
            words,
        }
    }

    /// Returns a hash of the code and the layout. If another version of Streamline assembles a
    /// different program, the hash differs.
    pub(super) fn fingerprint(&self) -> u64 {
        // The hash is FNV-1a, which is the same in every process.
        let text = format!("{:?} {:?}", self.code, self.layout);
        let step = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        text.bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }

    /// Returns true if the program runs the request with this number.
    pub(super) fn has_request(&self, line: u32) -> bool {
        self.requests.contains(&line)
    }

    /// Returns the counters of a request so far; all 0 if the program does not run the request.
    pub(super) fn current_counters(&self, line: &AttachedRequest) -> KernelCounters {
        let Some(place) = self.requests.iter().position(|number| *number == line.number) else {
            return KernelCounters::default();
        };
        let mut counted = self.fused.request_counters(place, |number| self.read_counter(number));
        let values = self.counters.as_ref().and_then(|map| map.get(0).ok()).unwrap_or_default();
        counted.add_unanswered_counts(&self.code, &values, |word| {
            let step = self.words.iter().position(|known| known == word)?;
            self.fused.request_step_number(place, step)
        });
        counted
    }

    /// Returns the filters of the program, each with its name, the number of requests that use it,
    /// and the number of blocks that arrived.
    pub(super) fn filter_statuses(&self) -> Vec<(String, usize, u64)> {
        let steps = self.fused.steps.iter().zip(&self.words).enumerate();
        let status = |(number, (shared, word)): (
            usize,
            (&super::super::fused_tree::FusedStep, &ebpf::FilterSpan),
        )| {
            let entered = self.read_counter(self.fused.counter_index(CounterId::Entered(number)));
            (word.filter.clone(), shared.requests.len(), entered.blocks)
        };
        steps.map(status).collect()
    }

    /// Returns the filters of a request, each with its name, the number of requests that use it,
    /// and the blocks that arrived for this request.
    pub(super) fn request_statuses(
        &self,
        line: u32,
        entered: &[Amount],
    ) -> Vec<(String, usize, u64)> {
        let place = self.requests.iter().position(|number| *number == line);
        let place = place.unwrap_or(usize::MAX);
        let shared = self.fused.steps.iter().zip(&self.words).enumerate();
        let ours = shared.filter_map(|(number, (shared, word))| {
            let own = self.fused.request_step_number(place, number)?;
            let blocks = entered.get(own).map_or(0, |entered| entered.blocks);
            Some((own, (word.filter.clone(), shared.requests.len(), blocks)))
        });
        let mut ours: Vec<_> = ours.collect();
        ours.sort_by_key(|(own, _)| *own);
        ours.into_iter().map(|(_, step)| step).collect()
    }

    /// Returns the number of frames that the program has processed.
    pub(super) fn processed_frame_count(&self) -> u64 {
        self.read_counter(self.fused.counter_index(CounterId::Ran)).blocks
    }

    /// Returns the value of the counter with this number, summed over all processors.
    fn read_counter(&self, number: u16) -> Amount {
        let (stride, at) = (self.layout.scratch.stride, self.layout.scratch.tally_offset(number));
        let word = |cpu: u32, at: u32| self.tallies.word((cpu * stride + at) as usize).unwrap_or(0);
        let cpus = || 0..self.layout.cpus;
        Amount {
            blocks: cpus().map(|cpu| word(cpu, at)).sum(),
            bytes: cpus().map(|cpu| word(cpu, at + 8)).sum(),
        }
    }
}

/// An assembled program for an attach point, before it is loaded.
struct ProgramAssembly<'l> {
    lines: Vec<&'l AttachedRequest>,
    numbers: Vec<u32>,
    fused: FusedTree,
    layout: tap::FusedTap,
    /// Descriptors of the maps that the program shares with others, in the order of their numbers.
    /// These numbers start at 1, because the counter map is number 0.
    given: Vec<i32>,
    code: ebpf::Program,
    words: Vec<ebpf::FilterSpan>,
}

impl<'l> ProgramAssembly<'l> {
    fn new(site: &AttachSite, lines: &[&'l AttachedRequest]) -> Result<Self, VersionError> {
        let lines = group_by_frame_ring(lines);
        let numbers: Vec<u32> = lines.iter().map(|line| line.number).collect();
        let members: Vec<FusedRequest<'_>> =
            lines.iter().map(|line| line.as_fused_request()).collect();
        let fused = FusedTree::fuse(&members);
        let (layout, given) = program_layout(site, &lines, &fused)?;
        let target = filter::program_target(&site.attach, site.hardened);
        let made = assemble(&fused, &members, (target, FrameAction::Tap(&layout)));
        let refused = |AssemblyError { at, why }: AssemblyError| VersionError {
            at: at.map(|(line, node)| (numbers[line], node)),
            ..VersionError::from_reason(why)
        };
        let code = made.map_err(refused)?.program;
        let words = (0..fused.steps.len()).map(|step| fused.label(&members, step)).collect();
        Ok(Self { lines, numbers, fused, layout, given, code, words })
    }
}

/// Sorts the requests so that requests with the same ring of frames are adjacent.
fn group_by_frame_ring<'l>(lines: &[&'l AttachedRequest]) -> Vec<&'l AttachedRequest> {
    let owner = |line: &&AttachedRequest| Arc::as_ptr(&line.owner);
    let owners: Vec<_> = lines.iter().map(owner).collect();
    let mut sorted = lines.to_vec();
    sorted.sort_by_key(|line| owners.iter().position(|first| *first == owner(line)));
    sorted
}

/// Divides the maps of a program by purpose. Returns the map of reason counters (`None` if there is
/// none), the state maps of filters, each with its request and step number, and all other maps.
/// `step_of` returns the request and step number of a filter.
fn partition_maps(
    code: &ebpf::Program,
    maps: Vec<Option<Map>>,
    step_of: impl Fn(&ebpf::FilterSpan) -> Option<(u32, usize)>,
) -> (Option<Map>, StateMaps, Vec<Map>) {
    let (mut counters, mut states, mut tables) = (None, StateMaps::new(), Vec::new());
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

/// Returns the memory layout of a program for these requests. Also returns the descriptors of the
/// maps that the program shares with others. These maps are numbered from 1; the counter map is
/// number 0.
fn program_layout(
    site: &AttachSite,
    lines: &[&AttachedRequest],
    fused: &FusedTree,
) -> Result<(tap::FusedTap, Vec<i32>), VersionError> {
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
            let shape = records.own_layout();
            owners.push(FrameRing {
                map: give(records.as_fd().as_raw_fd()),
                stride: shape.region_size(),
                records_at: shape.records_offset(),
                bytes: shape.bytes,
                record_max: shape.record_max,
                pointer_rings: Vec::new(),
            });
        }
        let shape = line.pointers.own_layout();
        let outlet = PointerRing {
            map: give(line.pointers.as_fd().as_raw_fd()),
            doorbell_map: give(line.doorbell_map.as_raw_fd()),
            stride: shape.region_size(),
            pointers_at: shape.sink_pointers_offset(0),
            pointers: shape.pointers,
            wake: line.wake_policy,
        };
        if let Some(owner) = owners.last_mut() {
            owner.pointer_rings.push(outlet);
        }
    }
    let cpus = lines.first().map_or(0, |line| line.pointers.layout().cpus);
    let tallies = ScratchLayout::new(lines.len(), fused.mark_count(), fused.counter_count());
    let many = || VersionError {
        full: true,
        ..VersionError::from_reason("it stores more data per frame than one program can address")
    };
    let tallies = tallies.ok_or_else(many)?;
    let sent = site.attach.side == TrafficDirection::Sent;
    let leads = fused.egress_steps.iter().map(|step| {
        let (mark, number) = fused.egress_mark(*step)?;
        let line = fused.steps.get(*step)?.requests.first().copied()?;
        let own = fused.request_step_number(line, *step)?;
        let known = lines.get(line)?.leads.iter().find(|(step, _)| *step == own);
        let interface = known.map(|(_, interface)| *interface)?;
        Some(Egress {
            interface,
            mark,
            failed_tally: fused.counter_index(CounterId::Refused(number)),
        })
    });
    let leads = leads.collect::<Option<Vec<Egress>>>();
    let leads = leads.ok_or_else(|| VersionError::from_reason("an interface has no index"))?;
    let own = site.sockets.as_ref().map(|sockets| sockets.user_sockets_config(&mut give));
    let base = cpus.saturating_mul(tallies.stride);
    let switches = Some(switch_layout(fused, base));
    let (scratch, rings, egresses, taken) = (tallies, owners, leads, fused.taken_mark());
    Ok((
        tap::FusedTap {
            cpus,
            observes_sent: sent,
            user: own,
            scratch,
            rings,
            egresses,
            withheld_mark: taken,
            switches,
        },
        given,
    ))
}
