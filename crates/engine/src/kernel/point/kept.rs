//! Descriptors of a point that a keeper holds while this process restarts: links, programs and
//! memory go on, and the next process adopts them. (RELIABILITY T10)
//!
//! In: a point, before and behind each change of its program. Out: descriptors with names for a
//! [`Keeper`], and a note that says what they are. Whoever dies in between leaves a note that has
//! both programs; which of them runs the link itself says. What is tallied lies in memory of a
//! program's own, so what was counted is there however this process ended.
//!
//! Nothing is put together again by hand: the line is read again, and what is assembled must be, to
//! the instruction, what was loaded. Another version of this program, for which it is not, takes
//! nothing up, and the links go.
//!
//! Before the sockets of a user there are two links, one each way: where their programs differ, who
//! changed them died in between, and the second follows the first. A line in whose place another
//! one was put by somebody who died before that was told is taken up too: it runs nowhere, and what
//! it has counted is still to be told ([`Still::Ended`]).

use super::super::ended::{self, Ended};
use super::super::handout::{Part, Running as Handed, bounded};
use super::super::host::{Asked, Refuses};
use super::line::{Has, Line, New, Owned, Whose};
use super::sockets::Sockets;
use super::version::{States, Version};
use super::{Closed, Place, Point, Points, Running, Standing, State};
use filter::Attach;
use pipeline::graph::Graph;
use pipeline::plan::{Kernel, Machine, programs_of};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::{Debug, Write as _};
use std::fs::File;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use sys::bpf::{Link, Map, Program, RingBuffer, Rings};

/// Holds descriptors under names.
pub trait Keeper: Debug + Send + Sync {
    /// Keeps one. Who cannot says nothing: then it is not there the next time.
    fn keep(&self, name: &str, descriptor: BorrowedFd<'_>);
    /// Keeps it no more.
    fn forget(&self, name: &str);
}

/// Metadata of a persisted request.
#[derive(Debug)]
pub struct Read {
    /// Its request, its ends complete.
    pub graph: Graph,
    /// The part that runs in the kernel.
    pub part: Part,
    /// The owner's user id.
    pub owner: u32,
}

/// A line that was taken up again.
#[derive(Debug)]
pub struct Adopted {
    /// The note that its requester left about it.
    pub about: String,
    /// The line.
    pub still: Still,
}

/// The state of a persisted request after a restart.
#[derive(Debug)]
pub enum Still {
    /// It runs.
    Runs(Handed),
    /// It has left, or another one runs in its place, and nobody may have told what it has counted.
    Ended(Box<Ended>),
}

/// Prefix of all names.
pub const KEPT: &str = "kernel-";
/// A note is no longer.
const NOTE_MAX: u64 = 4 << 20;

/// The descriptors that the keeper holds for a point.
#[derive(Debug, Default)]
pub(super) struct Stored {
    names: BTreeSet<String>,
    /// The number of the note.
    notes: u64,
}

/// The program about to run at a point.
#[derive(Clone, Copy, Debug)]
pub(super) struct Next<'n> {
    pub(super) version: &'n Version,
    /// The line that comes with it.
    pub(super) line: Option<&'n Line>,
    pub(super) states: &'n States,
}

/// The contents of a note.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Note {
    numbers: u32,
    replaced: u64,
    frames: u64,
    /// Number, what was said about it, and what was counted by programs that are in no note.
    lines: Vec<(u32, String, String)>,
    /// The number of the program, the print of its code, its lines in their order; the oldest
    /// first.
    versions: Vec<(u32, u64, Vec<u32>)>,
    /// The notes about requests that have left, and their final records.
    left: Vec<(String, String)>,
}

impl Point {
    /// Has all of this point kept, as it is and as it is about to be.
    pub(super) fn store(&self, state: &mut State, next: Option<Next<'_>>) {
        let Some(keeper) = &self.keeper else { return };
        let stored = std::mem::take(&mut state.stored);
        let mut now = Stored { names: BTreeSet::new(), notes: stored.notes + 1 };
        let mut note = Note { replaced: state.replaced, ..Note::default() };
        // The number of the next line.
        note.numbers = self.numbers.load(Ordering::Relaxed);
        note.frames = state.frames;
        let mut put = |name: String, descriptor: BorrowedFd<'_>| {
            if !stored.names.contains(&name) {
                keeper.keep(&name, descriptor);
            }
            now.names.insert(name);
        };
        if let Some(running) = &state.running
            && let Some(link) = running.links.first()
            && let Ok(info) = link.info()
        {
            let head = format!("{KEPT}{}", info.id);
            for (nth, link) in running.links.iter().enumerate() {
                put(format!("{head}-link{nth}"), link.as_fd());
            }
            if let Some(sockets) = &self.sockets {
                put(format!("{head}-seats"), sockets.seats());
            }
            let versions = state.retired.iter().chain([&running.version]);
            for version in versions.chain(next.map(|next| next.version)) {
                let Ok(program) = version.program().info() else { continue };
                let name = format!("{head}-p{}", program.id);
                put(format!("{name}-program"), version.program().as_fd());
                put(format!("{name}-desk"), version.desk_map().as_fd());
                version.counters().iter().for_each(|map| {
                    put(format!("{name}-counters"), map.as_fd());
                });
                note.versions.push((program.id, version.print(), version.lines().to_vec()));
            }
            for line in state.lines.iter().chain(next.and_then(|next| next.line)) {
                let name = format!("{head}-l{}", line.number);
                put(format!("{name}-records"), line.owner.records.as_fd());
                put(format!("{name}-pointers"), line.pointers.as_fd());
                put(format!("{name}-bell"), line.bell_map.as_fd());
                for (step, map) in &line.states {
                    put(format!("{name}-s{step}"), map.as_fd());
                }
                let ended = Ended {
                    counted: line.counted.clone(),
                    measured: line.measured,
                    busy: line.busy_before,
                    ..Ended::default()
                };
                note.lines.push((line.number, line.about.clone(), ended.text()));
            }
            for (number, step, map) in next.iter().flat_map(|next| next.states) {
                put(format!("{head}-l{number}-s{step}"), map.as_fd());
            }
            let left = state.left.iter();
            note.left.extend(left.map(|(about, ended)| (about.clone(), ended.text())));
            if let Ok(text) = sys::service::memfd_with(note.text().as_bytes()) {
                put(format!("{head}-note{}", now.notes), text.as_fd());
            }
        }
        // First what says what the rest is.
        let gone = stored.names.difference(&now.names);
        let (notes, rest): (Vec<&String>, Vec<&String>) =
            gone.partition(|name| name.contains("-note"));
        notes.into_iter().chain(rest).for_each(|name| keeper.forget(name));
        state.stored = now;
    }
}

/// Persisted descriptors of one point, by name without the number of its link.
type Given = BTreeMap<String, OwnedFd>;

impl Points {
    /// Takes up what was kept. `read` reads again what was said about a line, or says that it may
    /// not run any more. What cannot be taken up goes, and why it cannot is told with what was said
    /// about the lines.
    pub fn adopt(
        &self,
        all: Vec<(String, OwnedFd)>,
        machine: &Machine,
        read: &dyn Fn(&str) -> Result<Read, String>,
    ) -> (Vec<Adopted>, Vec<String>) {
        let mut points: BTreeMap<String, Given> = BTreeMap::new();
        for (name, descriptor) in all {
            let rest = name.strip_prefix(KEPT).and_then(|rest| rest.split_once('-'));
            if let Some((link, part)) = rest {
                points.entry(link.to_owned()).or_default().insert(part.to_owned(), descriptor);
            }
        }
        let (mut adopted, mut refused) = (Vec::new(), Vec::new());
        for (link, given) in points {
            let names: Vec<String> =
                given.keys().map(|part| format!("{KEPT}{link}-{part}")).collect();
            match self.adopt_one(&names, given, machine, read) {
                Ok(lines) => adopted.extend(lines),
                Err(why) => {
                    refused.push(why);
                    let forget = |name: &String| {
                        self.keeper.iter().for_each(|keeper| keeper.forget(name));
                    };
                    names.iter().for_each(forget);
                }
            }
        }
        (adopted, refused)
    }

    fn adopt_one(
        &self,
        names: &[String],
        mut given: Given,
        machine: &Machine,
        read: &dyn Fn(&str) -> Result<Read, String>,
    ) -> Result<Vec<Adopted>, String> {
        let (number, note) = newest(&mut given).ok_or("no note says what it is")?;
        let told = |error: sys::Error| error.to_string();
        let kept = (0..).map_while(|nth| given.remove(&format!("link{nth}")));
        let links: Vec<Link> = kept.map(Link::received).collect::<Result<_, _>>().map_err(told)?;
        let info = links.first().ok_or("there is no link")?.info().map_err(told)?;
        let runs = note.versions.iter().position(|(id, ..)| *id == info.program);
        let runs = runs.ok_or("another program runs there than was noted")?;
        let mut machine = machine.clone();
        if let Kernel::Open { hardened, .. } = &mut machine.kernel {
            *hardened = true;
        }
        let versions = &note.versions[..=runs];
        let used = |number: u32| versions.iter().any(|(.., lines)| lines.contains(&number));
        let mut point: Option<Arc<Point>> = None;
        let mut lines: Vec<Line> = Vec::new();
        let mut handed: Vec<(Arc<Standing>, Adopted)> = Vec::new();
        for (number, about, ended) in note.lines.iter().filter(|(number, ..)| used(*number)) {
            let Read { graph, part, owner } = read(about)?;
            let programs = programs_of(&graph, &part.nodes, &machine, &bounded(&part.ring));
            let programs = programs.map_err(|refused| refused.why)?;
            let [planned] = programs.as_slice() else {
                return Err("a line is not one program".to_owned());
            };
            let source = planned.sources.first().copied().ok_or("a line without a source")?;
            let (nodes, steps, hardened) = (&part.nodes, &self.steps, true);
            let refuses = Refuses::Nothing;
            let asked = Asked { graph: &graph, planned, nodes, source, hardened, refuses, steps };
            let new = asked.new_line(owner).map_err(|error| error.to_string())?;
            let here = match &point {
                Some(point) if point.attach == planned.attach => Arc::clone(point),
                Some(_) => return Err("its lines are at several places".to_owned()),
                // Several may stand at one place.
                None => self
                    .point_again((&planned.attach, hardened), owner, given.remove("seats"))
                    .map_err(|closed| format!("its place is not there any more: {closed:?}"))?,
            };
            let bytes = |shape: sys::bpf::RingsLayout| shape.size().map_or(0, u64::from);
            let bytes = (bytes(new.shape.of_line()), bytes(new.shape.of_owner()));
            let (share, attach) = (new.share.clone(), planned.attach.clone());
            let new = New { about: about.clone(), ..new };
            let counted = Ended::from_text(ended).ok_or("what was counted cannot be read")?;
            lines.push(line(*number, &lines, new, counted, &mut given)?);
            let held =
                Standing { point: Arc::clone(&here), number: *number, ended: OnceLock::new() };
            let held = Arc::new(held);
            let still = Still::Runs(Handed { held: Arc::clone(&held) as _, attach, bytes, share });
            handed.push((held, Adopted { about: about.clone(), still }));
            point = Some(here);
        }
        let point = point.ok_or("no line is there")?;
        if !point.place.holds(&info.target) || links.len() != point.place.links() {
            return Err("the link is at another place".to_owned());
        }
        let mut made = Vec::new();
        for (id, print, numbers) in versions {
            let those = numbers.iter().map(|number| lines.iter().find(|l| l.number == *number));
            let those: Option<Vec<&Line>> = those.collect();
            let mut part = |what: &str| given.remove(&format!("p{id}-{what}"));
            let (program, desk) = (part("program"), part("desk"));
            let (program, desk) = program.zip(desk).ok_or("a program is not there")?;
            let counters = part("counters").map(Map::received).transpose().map_err(told)?;
            let program = Program::received(program).map_err(told)?;
            let desk = Map::received(desk).map_err(told)?;
            let those = those.ok_or("a line is not there")?;
            let version = Version::adopt(&point, &those, (program, desk, counters));
            let version = version.map_err(|failure| failure.why)?;
            if version.print() != *print || version.lines() != numbers.as_slice() {
                return Err("this program would make another one of its lines".to_owned());
            }
            made.push(version);
        }
        let version = made.pop().ok_or("no program is there")?;
        for link in &links {
            if link.info().map_err(told)?.program != info.program {
                link.update(version.program(), None).map_err(told)?;
            }
        }
        let mut state = point.state();
        self.numbers.fetch_max(note.numbers, Ordering::Relaxed);
        (state.replaced, state.frames) = (note.replaced, note.frames);
        (state.lines, state.retired) = (lines, made);
        state.running = Some(Running { links, version });
        state.stored = Stored { names: names.iter().cloned().collect(), notes: number };
        if !state.retired.is_empty() {
            state.begin_to_wait()?;
            state.settle();
        }
        for (held, adopted) in &mut handed {
            if let Some(ended) = point.replaced(&mut state, held.number) {
                let _ = held.ended.set(ended.clone());
                adopted.still = Still::Ended(Box::new(ended));
            }
        }
        let mut handed: Vec<Adopted> = handed.into_iter().map(|(_, adopted)| adopted).collect();
        for (about, ended) in note.left {
            let ended = Ended::from_text(&ended).ok_or("what was counted cannot be read")?;
            state.has_left(about.clone(), &ended);
            handed.push(Adopted { about, still: Still::Ended(Box::new(ended)) });
        }
        point.store(&mut state, None);
        drop(state);
        Ok(handed)
    }
}

impl Point {
    /// Takes a line out in whose place another one runs already; answers what it leaves behind.
    /// None: it runs.
    fn replaced(&self, state: &mut State, number: u32) -> Option<Ended> {
        let runs = state.running.as_ref().is_some_and(|running| running.version.runs(number));
        let place = state.lines.iter().position(|line| line.number == number).filter(|_| !runs)?;
        let line = state.lines.remove(place);
        let mut ended = self.ended(&line);
        // What a filter of another line goes on with is told there.
        let others = state.lines.iter().flat_map(|line| &line.states);
        let others: Vec<*const Map> = others.map(|(_, map)| Arc::as_ptr(map)).collect();
        let elsewhere = line.states.iter().filter(|(_, map)| others.contains(&Arc::as_ptr(map)));
        elsewhere.for_each(|(step, _)| drop(ended.states.remove(step)));
        state.has_left(line.about, &ended);
        Some(ended)
    }
}

impl Points {
    /// A point at which something runs already that was kept; the seats before it, where it is
    /// about sockets.
    fn point_again(
        &self,
        (attach, hardened): (&Attach, bool),
        owner: u32,
        seats: Option<OwnedFd>,
    ) -> Result<Arc<Point>, Closed> {
        let place = Place::find(attach)?;
        let sockets = attach.own.then(|| Sockets::of(&place, owner, seats)).transpose()?;
        Ok(self.another((attach, hardened), place, sockets))
    }
}

/// A line as it was, with what was kept of it.
fn line(
    number: u32,
    here: &[Line],
    new: New,
    ended: Ended,
    given: &mut Given,
) -> Result<Line, String> {
    let told = |error: sys::Error| error.to_string();
    let mut part = |what: &str| {
        let name = format!("l{number}-{what}");
        given.remove(&name).ok_or_else(|| format!("of a line there is no {what}"))
    };
    let records = Rings::received(part("records")?, new.shape.of_owner()).map_err(told)?;
    let id = |rings: &Rings| rings.map().info().map(|info| info.id).map_err(told);
    let own = id(&records)?;
    let known = here.iter().find(|line| id(&line.owner.records) == Ok(own));
    let owner = match known {
        Some(line) => Arc::clone(&line.owner),
        None => Arc::new(Owned { whose: Whose::of(&new), records: Arc::new(records) }),
    };
    let pointers = Rings::received(part("pointers")?, new.shape.of_line()).map_err(told)?;
    let pointers = pointers.beside(Arc::clone(&owner.records)).map_err(told)?;
    let bell_map = part("bell")?;
    RingBuffer::received(bell_map.try_clone().map_err(|error| error.to_string())?).map_err(told)?;
    let mut states = Vec::new();
    for step in 0..new.tree.steps.len() {
        let Some(map) = given.remove(&format!("l{number}-s{step}")) else { continue };
        let map = Map::received(map).map_err(told)?;
        let own = map.info().map_err(told)?.id;
        // A filter of another line may go on with it.
        let others = here.iter().flat_map(|line| &line.states);
        let same = |map: &Map| map.info().is_ok_and(|info| info.id == own);
        let known = others.map(|(_, map)| map).find(|map| same(map));
        states.push((step, known.map_or_else(|| Arc::new(map), Arc::clone)));
    }
    let new = New { states, ..new };
    Ok(Line::of(number, new, Has { owner, pointers, bell_map }, ended))
}

/// The newest note, and its number.
fn newest(given: &mut Given) -> Option<(u64, Note)> {
    let numbers = given.keys().filter_map(|name| name.strip_prefix("note")?.parse::<u64>().ok());
    let number = numbers.max()?;
    let file = File::from(given.remove(&format!("note{number}"))?);
    let mut bytes = vec![0; usize::try_from(file.metadata().ok()?.len().min(NOTE_MAX)).ok()?];
    file.read_exact_at(&mut bytes, 0).ok()?;
    Some((number, Note::from_text(&String::from_utf8(bytes).ok()?)?))
}

impl Note {
    /// As text, a line for each thing; what may hold anything in hexadecimal.
    fn text(&self) -> String {
        let Self { numbers, replaced, frames, lines, versions, left } = self;
        let mut text = format!("point {numbers} {replaced} {frames}\n");
        // Writing to a text does not fail.
        for (number, about, ended) in lines {
            let _ = writeln!(text, "line {number} {} {}", hex(about), hex(ended));
        }
        for (id, print, lines) in versions {
            let _ = write!(text, "version {id} {print}");
            lines.iter().for_each(|number| {
                let _ = write!(text, " {number}");
            });
            text.push('\n');
        }
        for (about, ended) in left {
            let _ = writeln!(text, "left {} {}", hex(about), hex(ended));
        }
        text.push_str("end\n");
        text
    }

    /// Out of text; none if it is not one of these, whole.
    fn from_text(text: &str) -> Option<Self> {
        let mut note = Self::default();
        let mut whole = false;
        for line in text.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            match words.as_slice() {
                ["point", numbers, replaced, frames] => {
                    (note.numbers, note.replaced, note.frames) =
                        (numbers.parse().ok()?, replaced.parse().ok()?, frames.parse().ok()?);
                }
                ["line", number, about, ended] => {
                    note.lines.push((number.parse().ok()?, unhex(about)?, unhex(ended)?));
                }
                ["version", id, print, lines @ ..] => {
                    let lines = lines.iter().map(|word| word.parse().ok());
                    let lines = lines.collect::<Option<Vec<u32>>>()?;
                    note.versions.push((id.parse().ok()?, print.parse().ok()?, lines));
                }
                ["left", about, ended] => note.left.push((unhex(about)?, unhex(ended)?)),
                ["end"] => whole = true,
                _ => return None,
            }
        }
        whole.then_some(note)
    }
}

fn hex(text: &str) -> String {
    let mut out = String::from("x");
    for byte in text.bytes() {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

fn unhex(text: &str) -> Option<String> {
    let bytes = ended::unhex(text.strip_prefix('x')?)?;
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_is_the_same_out_of_its_text_and_a_part_of_one_is_none() {
        let note = Note {
            numbers: 7,
            replaced: 3,
            frames: u64::MAX,
            lines: vec![(0, "{\"line\":\"rx ü | count\"}".to_owned(), "ran 1 2\n".to_owned())],
            versions: vec![(12, u64::MAX, vec![0]), (13, 0, Vec::new())],
            left: vec![("{}".to_owned(), String::new())],
        };
        let text = note.text();
        assert_eq!(Note::from_text(&text), Some(note));
        for end in 0..text.len() - 1 {
            assert_eq!(Note::from_text(text.get(..end).unwrap_or_default()), None, "{end}");
        }
    }
}
