//! Persistence of an attach point across restarts of this process: a keeper holds the descriptors
//! of links, programs and memory, and the next process adopts them. (RELIABILITY T10)
//!
//! Input: a point, before and after each change of its program. Output: named descriptors for a
//! keeper, and a note that describes them. If the process dies during a change, its note describes
//! both programs, and the link identifies the running one. A program's counters are in its memory,
//! so they survive with it.
//!
//! Adoption parses each request again, and requires that the assembled program equals the loaded
//! program, instruction for instruction. If this version of Streamline assembles a different
//! program for a point, it adopts nothing at that point and closes the links.
//!
//! At a user's sockets there are two links, one per direction. If they have different programs, the
//! last process died between two updates, and adoption updates the second link. A request whose
//! replacement or removal was not yet reported when the process died is adopted too: it no longer
//! runs, but its counters must still be reported ([`AdoptedStatus::Ended`]).

use super::super::delegation::{DelegatedRequest, KernelPart, clamp_ring_sizes};
use super::super::final_counters::FinalCounters;
use super::super::host::{InjectedRefusal, KernelRequest};
use super::super::taps::OpenTaps;
use super::descriptor_keeper::{PERSISTED_NAME_PREFIX, StoredDescriptorNames};
use super::point_note::{PersistedDescriptors, PointNote, take_newest_note};
use super::program_version::{NextProgram, ProgramVersion};
use super::request::{
    AttachedRequest, NewRequest, RequestResources, SharedFrameRing, SharingDomain,
};
use super::sockets::UserSockets;
use super::{
    AttachError, AttachPoint, AttachPoints, PointState, RequestHandle, RunningProgram,
    SharedAttachPoint,
};
use filter::AttachTarget;
use pipeline::graph::Graph;
use pipeline::plan::{Kernel, Machine, programs_for_nodes};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use sys::bpf::{Link, Map, Program, ProgramRings, RingBuffer};

/// A persisted request of an earlier process, as parsed again after a restart.
#[derive(Debug)]
pub struct PersistedRequest {
    /// The graph of the request, with default sources and sinks added.
    pub graph: Graph,
    /// The part of the request that runs in the kernel.
    pub part: KernelPart,
    /// User id of the request's owner.
    pub owner: u32,
}

/// An adopted request, with its state after the restart.
#[derive(Debug)]
pub struct AdoptedRequest {
    /// The note that the requester passed with the request.
    pub about: String,
    /// The state of the request after the restart.
    pub status: AdoptedStatus,
}

/// The state of a persisted request after a restart.
#[derive(Debug)]
pub enum AdoptedStatus {
    /// The request still runs in the kernel.
    Runs(DelegatedRequest),
    /// The request was removed or replaced. Its counters may not have been reported yet.
    Ended(Box<FinalCounters>),
}

impl SharedAttachPoint {
    /// Stores the descriptors of this point and a new note in the keeper. They cover the running
    /// program, the replaced programs whose counters are not yet collected, and the program `next`,
    /// if there is one. Then discards stored descriptors that are no longer needed, notes first.
    /// Does nothing without a keeper.
    pub(super) fn store_descriptors(&self, state: &mut PointState, next: Option<NextProgram<'_>>) {
        let Some(keeper) = &self.keeper else { return };
        let stored = std::mem::take(&mut state.stored);
        let mut now = StoredDescriptorNames { names: BTreeSet::new(), notes: stored.notes + 1 };
        let mut note = PointNote { replaced: state.replaced, ..PointNote::default() };
        // This is the number of the next request.
        note.numbers = self.numbers.load(Ordering::Relaxed);
        note.frames = state.frames;
        let mut put = |name: String, descriptor: BorrowedFd<'_>| {
            if !stored.names.contains(&name) {
                keeper.store(&name, descriptor);
            }
            now.names.insert(name);
        };
        if let Some(running) = &state.running
            && let Some(link) = running.links.first()
            && let Ok(info) = link.info()
        {
            let head = format!("{PERSISTED_NAME_PREFIX}{}", info.id);
            for (nth, link) in running.links.iter().enumerate() {
                put(format!("{head}-link{nth}"), link.as_fd());
            }
            if let Some(sockets) = &self.site.sockets {
                // Earlier versions used this name, too.
                put(format!("{head}-seats"), sockets.claims.as_fd());
            }
            let versions = state.retired.iter().chain([&running.version]);
            for version in versions.chain(next.map(|next| next.version)) {
                let Ok(program) = version.program.info() else { continue };
                let name = format!("{head}-p{}", program.id);
                put(format!("{name}-program"), version.program.as_fd());
                put(format!("{name}-desk"), version.tallies_map.as_fd());
                version.counters.iter().for_each(|map| {
                    put(format!("{name}-counters"), map.as_fd());
                });
                note.versions.push((program.id, version.fingerprint(), version.requests.clone()));
            }
            for line in state.requests.iter().chain(next.and_then(|next| next.line)) {
                let name = format!("{head}-l{}", line.number);
                put(format!("{name}-records"), line.owner.records.as_fd());
                put(format!("{name}-pointers"), line.pointers.as_fd());
                put(format!("{name}-bell"), line.doorbell_map.as_fd());
                for (step, map) in &line.states {
                    put(format!("{name}-s{step}"), map.as_fd());
                }
                let ended = FinalCounters {
                    counted: line.counted.clone(),
                    measured: line.measured,
                    busy: line.busy_before,
                    ..FinalCounters::default()
                };
                note.lines.push((line.number, line.about.clone(), ended.to_text()));
            }
            for (number, step, map) in next.iter().flat_map(|next| next.states) {
                put(format!("{head}-l{number}-s{step}"), map.as_fd());
            }
            let left = state.final_counters.iter();
            note.left.extend(left.map(|(about, ended)| (about.clone(), ended.to_text())));
            if let Ok(text) = sys::service::memfd_from_bytes(&note.to_text()) {
                put(format!("{head}-note{}", now.notes), text.as_fd());
            }
        }
        // A note describes all other descriptors, so notes are discarded before them.
        let gone = stored.names.difference(&now.names);
        let (notes, rest): (Vec<&String>, Vec<&String>) =
            gone.partition(|name| name.contains("-note"));
        notes.into_iter().chain(rest).for_each(|name| keeper.discard(name));
        state.stored = now;
    }
}

impl AttachPoints {
    /// Adopts the persisted descriptors of an earlier process. `read` parses a requester's note
    /// again; it fails if the request may no longer run. Returns the adopted requests, and the
    /// reason for each point that could not be adopted. The descriptors of such a point are
    /// discarded.
    pub fn adopt_persisted_points(
        &self,
        all: Vec<(String, OwnedFd)>,
        machine: &Machine,
        read: &dyn Fn(&str) -> Result<PersistedRequest, String>,
    ) -> (Vec<AdoptedRequest>, Vec<String>) {
        let mut points: BTreeMap<String, PersistedDescriptors> = BTreeMap::new();
        for (name, descriptor) in all {
            let rest =
                name.strip_prefix(PERSISTED_NAME_PREFIX).and_then(|rest| rest.split_once('-'));
            if let Some((link, part)) = rest {
                points.entry(link.to_owned()).or_default().insert(part.to_owned(), descriptor);
            }
        }
        let (mut adopted, mut refused) = (Vec::new(), Vec::new());
        for (link, given) in points {
            let names: Vec<String> =
                given.keys().map(|part| format!("{PERSISTED_NAME_PREFIX}{link}-{part}")).collect();
            match self.adopt_point(&names, given, machine, read) {
                Ok(lines) => adopted.extend(lines),
                Err(why) => {
                    refused.push(why);
                    let forget = |name: &String| {
                        self.keeper.iter().for_each(|keeper| keeper.discard(name));
                    };
                    names.iter().for_each(forget);
                }
            }
        }
        (adopted, refused)
    }

    fn adopt_point(
        &self,
        names: &[String],
        mut given: PersistedDescriptors,
        machine: &Machine,
        read: &dyn Fn(&str) -> Result<PersistedRequest, String>,
    ) -> Result<Vec<AdoptedRequest>, String> {
        let (number, note) = take_newest_note(&mut given).ok_or("its note is missing")?;
        let describe = |error: sys::Error| error.to_string();
        let kept = (0..).map_while(|nth| given.remove(&format!("link{nth}")));
        let links: Vec<Link> =
            kept.map(Link::from_received).collect::<Result<_, _>>().map_err(describe)?;
        let info = links.first().ok_or("there is no link")?.info().map_err(describe)?;
        let runs = note.versions.iter().position(|(id, ..)| *id == info.program);
        let runs = runs.ok_or("the program that runs there is not the recorded one")?;
        let mut machine = machine.clone();
        if let Kernel::Open { hardened, .. } = &mut machine.kernel {
            *hardened = true;
        }
        let versions = &note.versions[..=runs];
        let used = |number: u32| versions.iter().any(|(.., lines)| lines.contains(&number));
        let mut point: Option<Arc<SharedAttachPoint>> = None;
        let mut lines: Vec<AttachedRequest> = Vec::new();
        let mut handed: Vec<(Arc<RequestHandle>, AdoptedRequest)> = Vec::new();
        for (number, about, ended) in note.lines.iter().filter(|(number, ..)| used(*number)) {
            let PersistedRequest { graph, part, owner } = read(about)?;
            let programs =
                programs_for_nodes(&graph, &part.nodes, &machine, &clamp_ring_sizes(&part.ring));
            let programs = programs.map_err(|refused| refused.why)?;
            let [planned] = programs.as_slice() else {
                return Err("a request does not run as one program".to_owned());
            };
            let source = planned.sources.first().copied().ok_or("a request without a source")?;
            let (nodes, steps, hardened) = (&part.nodes, &self.steps, true);
            let refuses = InjectedRefusal::Nothing;
            // The open taps are read from the memory of the program after its adoption.
            let taps = OpenTaps::default();
            let graph = &graph;
            let asked =
                KernelRequest { graph, planned, nodes, source, hardened, refuses, steps, taps };
            let new = asked.new_request(owner).map_err(|error| error.to_string())?;
            let here = match &point {
                Some(point) if point.site.attach == planned.attach => Arc::clone(point),
                Some(_) => return Err("its requests have several attachment points".to_owned()),
                // Several points may exist at the same place, so this one is always created.
                None => self
                    .restore_point((&planned.attach, hardened), owner, given.remove("seats"))
                    .map_err(|closed| {
                        format!("its attachment point no longer exists: {closed:?}")
                    })?,
            };
            let bytes = |shape: sys::bpf::RingsLayout| shape.size().map_or(0, u64::from);
            let bytes = (bytes(new.shape.pointers_only()), bytes(new.shape.records_only()));
            let (share, attach) = (new.share.clone(), planned.attach.clone());
            let new = NewRequest { about: about.clone(), ..new };
            let counted = FinalCounters::from_text(ended).ok_or("the counters cannot be read")?;
            lines.push(restore_request(*number, &lines, new, counted, &mut given)?);
            let held = RequestHandle::new(Arc::clone(&here), *number);
            let held = Arc::new(held);
            let status = AdoptedStatus::Runs(DelegatedRequest {
                held: Arc::clone(&held) as _,
                attach,
                bytes,
                share,
            });
            handed.push((held, AdoptedRequest { about: about.clone(), status }));
            point = Some(here);
        }
        let point = point.ok_or("it has no request")?;
        if !point.site.place.is_target_of(&info.target)
            || links.len() != point.site.place.link_count()
        {
            return Err("the link is attached elsewhere".to_owned());
        }
        let mut made = Vec::new();
        for (id, print, numbers) in versions {
            let those = numbers.iter().map(|number| lines.iter().find(|l| l.number == *number));
            let those: Option<Vec<&AttachedRequest>> = those.collect();
            let mut part = |what: &str| given.remove(&format!("p{id}-{what}"));
            let (program, tallies) = (part("program"), part("desk"));
            let (program, tallies) = program.zip(tallies).ok_or("a program is missing")?;
            let counters =
                part("counters").map(Map::from_received).transpose().map_err(describe)?;
            let program = Program::from_received(program).map_err(describe)?;
            let tallies = Map::from_received(tallies).map_err(describe)?;
            let those = those.ok_or("a request is missing")?;
            let version = ProgramVersion::adopt(&point.site, &those, (program, tallies, counters));
            let version = version.map_err(|failure| failure.why)?;
            if version.fingerprint() != *print || version.requests != *numbers {
                return Err("this version generates another program for its requests".to_owned());
            }
            made.push(version);
        }
        let version = made.pop().ok_or("its program is missing")?;
        for link in &links {
            if link.info().map_err(describe)?.program != info.program {
                link.replace_program(&version.program, None).map_err(describe)?;
            }
        }
        let mut state = point.lock_state();
        self.numbers.fetch_max(note.numbers, Ordering::Relaxed);
        (state.replaced, state.frames) = (note.replaced, note.frames);
        for line in &mut lines {
            line.taps = version.open_taps(line.number);
        }
        (state.requests, state.retired) = (lines, made);
        state.running = Some(RunningProgram { links, version });
        state.stored =
            StoredDescriptorNames { names: names.iter().cloned().collect(), notes: number };
        if !state.retired.is_empty() {
            state.create_grace_period()?;
            state.collect_retired_counters();
        }
        for (held, adopted) in &mut handed {
            if let Some(ended) = point.remove_replaced_request(&mut state, held.number) {
                let _ = held.ended.set(ended.clone());
                adopted.status = AdoptedStatus::Ended(Box::new(ended));
            }
        }
        let mut handed: Vec<AdoptedRequest> =
            handed.into_iter().map(|(_, adopted)| adopted).collect();
        for (about, ended) in note.left {
            let ended = FinalCounters::from_text(&ended).ok_or("the counters cannot be read")?;
            state.remember_final_counters(about.clone(), &ended);
            handed.push(AdoptedRequest { about, status: AdoptedStatus::Ended(Box::new(ended)) });
        }
        point.store_descriptors(&mut state, None);
        drop(state);
        Ok(handed)
    }
}

impl SharedAttachPoint {
    /// Removes a request that another request has replaced, and returns its final counters. Returns
    /// `None` if the request still runs.
    fn remove_replaced_request(
        &self,
        state: &mut PointState,
        number: u32,
    ) -> Option<FinalCounters> {
        let runs =
            state.running.as_ref().is_some_and(|running| running.version.has_request(number));
        let place =
            state.requests.iter().position(|line| line.number == number).filter(|_| !runs)?;
        let line = state.requests.remove(place);
        let mut ended = self.final_counters(&line);
        // If a filter of another request continues with this state, the other request reports it.
        let others = state.requests.iter().flat_map(|line| &line.states);
        let others: Vec<*const Map> = others.map(|(_, map)| Arc::as_ptr(map)).collect();
        let elsewhere = line.states.iter().filter(|(_, map)| others.contains(&Arc::as_ptr(map)));
        elsewhere.for_each(|(step, _)| drop(ended.states.remove(step)));
        state.remember_final_counters(line.about, &ended);
        Some(ended)
    }
}

impl AttachPoints {
    /// Creates an attach point for a persisted program. If the program observes its owner's
    /// sockets, the point gets the persisted map `claims`, or a new map if `claims` is `None`.
    fn restore_point(
        &self,
        (attach, hardened): (&AttachTarget, bool),
        owner: u32,
        claims: Option<OwnedFd>,
    ) -> Result<Arc<SharedAttachPoint>, AttachError> {
        let place = AttachPoint::find(attach)?;
        let sockets =
            attach.own_sockets.then(|| UserSockets::open(&place, owner, claims)).transpose()?;
        Ok(self.create_point((attach, hardened), place, sockets))
    }
}

/// Restores a persisted request from its descriptors. Fails with the reason if a descriptor is
/// missing or invalid.
fn restore_request(
    number: u32,
    here: &[AttachedRequest],
    new: NewRequest,
    ended: FinalCounters,
    given: &mut PersistedDescriptors,
) -> Result<AttachedRequest, String> {
    let describe = |error: sys::Error| error.to_string();
    let mut part = |what: &str| {
        let name = format!("l{number}-{what}");
        given.remove(&name).ok_or_else(|| format!("a request has no {what}"))
    };
    let records = ProgramRings::from_received(part("records")?, new.shape.records_only())
        .map_err(describe)?;
    let id = |rings: &ProgramRings| rings.map().info().map(|info| info.id).map_err(describe);
    let own = id(&records)?;
    let known = here.iter().find(|line| id(&line.owner.records) == Ok(own));
    let owner = match known {
        Some(line) => Arc::clone(&line.owner),
        None => Arc::new(SharedFrameRing {
            domain: SharingDomain::for_new_request(&new),
            records: Arc::new(records),
        }),
    };
    let pointers = ProgramRings::from_received(part("pointers")?, new.shape.pointers_only())
        .map_err(describe)?;
    let pointers = pointers.with_records(Arc::clone(&owner.records)).map_err(describe)?;
    let doorbell_map = part("bell")?;
    RingBuffer::from_received(doorbell_map.try_clone().map_err(|error| error.to_string())?)
        .map_err(describe)?;
    let mut states = Vec::new();
    for step in 0..new.tree.steps.len() {
        let Some(map) = given.remove(&format!("l{number}-s{step}")) else { continue };
        let map = Map::from_received(map).map_err(describe)?;
        let own = map.info().map_err(describe)?.id;
        // A filter of another request may share this state.
        let others = here.iter().flat_map(|line| &line.states);
        let same = |map: &Map| map.info().is_ok_and(|info| info.id == own);
        let known = others.map(|(_, map)| map).find(|map| same(map));
        states.push((step, known.map_or_else(|| Arc::new(map), Arc::clone)));
    }
    let new = NewRequest { states, ..new };
    Ok(AttachedRequest::new(number, new, RequestResources { owner, pointers, doorbell_map }, ended))
}
