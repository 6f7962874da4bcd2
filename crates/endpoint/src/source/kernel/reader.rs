//! Reads the frames that programs handed over, in order of time, copied so that the writer may come
//! round at any moment. [SL §6.2; CONTRACT 16, 29; DESIGN §3, foreign bytes]
//!
//! In: the rings of all processors. Out: one frame after the other, or how many were lost for each
//! edge, exactly. Nothing here waits, and no reference to the ring is ever made. A copy is good if
//! the writer has reserved no further than one round behind its beginning when the copy is done; a
//! pointer is good if fewer than one round of pointers were written behind it. What says so, the
//! writer changes with every frame, and each look fetches it from his processor: so several are
//! copied, and then it is looked once.
//!
//! Ways of which a frame takes at most one share a sink. There each frame says which way it took
//! and how many took that way before it, so a gap is counted for the way that it is a gap of.
//!
//! On one processor the order is that in which the program ran. Between processors it is that of
//! time among what is there when somebody looks; what another one shows later is given later.

use crate::missing::Missing as Gaps;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use sys::bpf::ring::region_offset;
use sys::bpf::{FramePointer, Region, Rings, RingsLayout};

/// The part of all pointers skipped beyond those already lost, so that the writer does not come
/// round again at once.
const MARGIN: u64 = 8;

/// Frames copied before checking if the writer has come round meanwhile.
pub const AT_ONCE: usize = 16;

/// Bytes of a record before its frame.
const HEADER: usize = region_offset::HEADER as usize;

/// A frame that was handed over and is still there, as far as one can know before it is copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Handed {
    /// On which processor.
    pub cpu: u32,
    /// To which sink of the ring.
    pub sink: u32,
    /// The exit it took.
    pub way: u32,
    /// The number of frames on this exit and processor before it.
    pub number: u64,
    /// The program's pointer.
    pub pointer: FramePointer,
    /// The rest of what it says.
    pub header: Header,
}

/// Frames of an exit that did not become blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Missing {
    /// The writer came round before it was copied.
    pub lost: u64,
    /// It is there.
    pub unread: u64,
}

/// The words before a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The length of the frame.
    pub length: u32,
    /// Bytes of it that are present.
    pub kept: u32,
    /// The program's time, in ns of the monotonic clock.
    pub time: u64,
    /// The tag beside the frame and its protocol, if there is one.
    pub tag: Option<(u16, u16)>,
    /// Into pieces of how many bytes it is yet to be cut; 0 if it is not.
    pub segment: u16,
    /// True if the host sends it.
    pub sent: bool,
}

/// One reader of the rings of all processors.
#[derive(Debug)]
pub struct Reader {
    rings: Arc<Rings>,
    sinks: Vec<Sink>,
    /// The numbers of those on which something is left of what was there when somebody looked.
    filled: Vec<usize>,
    /// To which sink each way leads, by number.
    ways: Vec<u32>,
    /// Lost frames by exit, as far as the gap between two frames has shown.
    lost: Vec<u64>,
    /// Their positions, by exit.
    gaps: Vec<Gaps>,
    /// Frames passed so far, per processor and exit: of exits that share a sink.
    gone_by: Vec<u64>,
}

/// The pointers of one processor for one sink.
#[derive(Debug)]
struct Sink {
    cpu: u32,
    sink: u32,
    /// The way that leads there, if there is only one.
    only: Option<u32>,
    /// The number of the pointer that is looked at next.
    next: u64,
    /// The head at the last look.
    head: u64,
    /// The targets of the next pointers, as far as they were read; `None` where they are gone.
    ahead: VecDeque<Option<Handed>>,
}

impl Reader {
    /// Begins with the first that was ever handed over; `ways` says to which sink each way leads.
    #[must_use]
    pub fn new(rings: Arc<Rings>, ways: Vec<u32>) -> Self {
        let RingsLayout { cpus, sinks, .. } = rings.shape();
        let only = |sink| {
            let mut ours = (0..).zip(&ways).filter(|(_, to)| **to == sink);
            let (way, _) = ours.next()?;
            ours.next().is_none().then_some(way)
        };
        let sink = |cpu, sink| Sink {
            cpu,
            sink,
            only: only(sink),
            next: 0,
            head: 0,
            ahead: VecDeque::new(),
        };
        let all = (0..cpus).flat_map(|cpu| (0..sinks).map(move |number| (cpu, number)));
        let sinks = all.map(|(cpu, number)| sink(cpu, number)).collect();
        let (lost, gone_by) = (vec![0; ways.len()], vec![0; ways.len() * cpus as usize]);
        let gaps = vec![Gaps::default(); ways.len()];
        Self { rings, sinks, filled: Vec::new(), ways, lost, gaps, gone_by }
    }

    /// Looks once for what has come to all processors.
    pub fn look(&mut self) {
        self.filled.clear();
        for (number, sink) in self.sinks.iter_mut().enumerate() {
            if let Some(region) = self.rings.region(sink.cpu) {
                // Never back, whatever the writer does.
                sink.head = region.head(sink.sink).max(sink.head);
            }
            if sink.next < sink.head {
                self.filled.push(number);
            }
        }
    }

    /// The oldest of what was there when somebody looked. It stays until [`Reader::pass`].
    pub fn front(&mut self) -> Option<Handed> {
        let order = |one: &Handed| (one.header.time, one.cpu, one.pointer.position, one.way);
        let mut first: Option<Handed> = None;
        let mut at = 0;
        while let Some(number) = self.filled.get(at).copied() {
            match self.front_of(number) {
                // Nothing more until somebody looks.
                None => {
                    self.filled.swap_remove(at);
                    continue;
                }
                Some(front) if first.is_none_or(|first| order(&front) < order(&first)) => {
                    first = Some(front);
                }
                Some(_) => {}
            }
            at += 1;
        }
        first
    }

    fn front_of(&mut self, number: usize) -> Option<Handed> {
        let sink = self.sinks.get_mut(number)?;
        if let Some(Some(front)) = sink.ahead.front() {
            return Some(*front);
        }
        let region = self.rings.region(sink.cpu)?;
        let before = sink.next;
        let skipped = sink.advance(&region, self.rings.shape(), &self.ways);
        // Which ways the others took, the next ones say.
        if let Some(way) = sink.only {
            let cpu = sink.cpu;
            self.miss(way, (before, skipped), cpu);
        }
        let sink = self.sinks.get_mut(number)?;
        sink.ahead.front().copied().flatten()
    }

    /// Goes on behind this one, which [`Reader::front`] has answered.
    pub fn pass(&mut self, handed: &Handed) {
        let Handed { cpu, sink, way, pointer, .. } = *handed;
        let at = (cpu * self.rings.shape().sinks + sink) as usize;
        let Some(sink) = self.sinks.get_mut(at) else { return };
        sink.pass(1);
        if sink.only.is_some() {
            return;
        }
        let at = cpu as usize * self.ways.len() + way as usize;
        let Some(gone_by) = self.gone_by.get_mut(at) else { return };
        let before = std::mem::replace(gone_by, pointer.number.saturating_add(1));
        self.miss(way, (before, pointer.number.saturating_sub(before)), cpu);
    }

    /// Counts so many as lost that took a way, from this one on.
    fn miss(&mut self, way: u32, (from, count): (u64, u64), cpu: u32) {
        let way = way as usize;
        if let Some((lost, gaps)) = self.lost.get_mut(way).zip(self.gaps.get_mut(way)) {
            *lost += count;
            gaps.add(from, count, Some(cpu));
        }
    }

    /// Returns the lost frames of each exit, as far as one behind them has shown: positions on the
    /// exit, per processor.
    #[must_use]
    pub fn gaps(&self) -> &[Gaps] {
        &self.gaps
    }

    /// Copies bytes of the frame, from `from` on. Whether they are good says [`Reader::is_whole`].
    pub fn copy(&self, handed: &Handed, from: u32, to: &mut [u8]) -> bool {
        let region = self.rings.region(handed.cpu);
        region.is_some_and(|region| {
            region.copy(handed.pointer.position, region_offset::HEADER.saturating_add(from), to)
        })
    }

    /// Returns the position up to which a processor's writer may be writing, for
    /// [`Reader::is_whole`]. Call it after the last copy that it is to cover.
    #[must_use]
    pub fn reserved(&self, cpu: u32) -> u64 {
        self.rings.region(cpu).map_or(u64::MAX, |region| region.reserved())
    }

    /// Returns true if a copy of this frame, made before `reserved` was read, is what was written.
    #[must_use]
    pub fn is_whole(&self, handed: &Handed, reserved: u64) -> bool {
        is_whole(handed, reserved, self.rings.shape().bytes)
    }

    /// Counts this one, which was passed, as lost.
    pub fn lose(&mut self, handed: &Handed) {
        self.miss(handed.way, (handed.number, 1), handed.cpu);
    }

    /// Returns, for each exit, the frames lost, and those present that were neither passed nor
    /// lost.
    #[must_use]
    pub fn missing(&self) -> Vec<Missing> {
        let lost = self.lost.iter().map(|lost| Missing { lost: *lost, unread: 0 });
        let mut missing: Vec<Missing> = lost.collect();
        for sink in &self.sinks {
            let Some(region) = self.rings.region(sink.cpu) else { continue };
            match sink.only.and_then(|way| missing.get_mut(way as usize)) {
                Some(missing) => {
                    missing.unread += region.head(sink.sink).saturating_sub(sink.next);
                }
                None => self.missing_of(sink, &region, &mut missing),
            }
        }
        missing
    }

    /// The same of one that several ways share: each counts what it gave, and what is not there any
    /// more of that is lost.
    fn missing_of(&self, sink: &Sink, region: &Region<'_>, missing: &mut [Missing]) {
        let gone_by = self.gone_by.iter().skip(sink.cpu as usize * self.ways.len());
        let ours = (0..).zip(self.ways.iter().zip(gone_by));
        let ours = ours.filter(|(_, (to, _))| **to == sink.sink);
        let rest = |(way, (_, gone_by)): (u32, (_, &u64))| {
            (way, region.count(way).saturating_sub(*gone_by))
        };
        let mut rest: Vec<(u32, u64)> = ours.map(rest).filter(|(_, rest)| *rest > 0).collect();
        let head = region.head(sink.sink).max(sink.next);
        let all: u64 = rest.iter().map(|(_, rest)| *rest).sum();
        if all > head - sink.next {
            // Some that are counted are gone: those that are there say which ways they take.
            let most = u64::from(self.rings.shape().pointers);
            let there = sink.next.max(head.saturating_sub(most))..head;
            let mut unread: HashMap<u32, u64> = HashMap::new();
            for pointer in there.filter_map(|number| region.pointer(sink.sink, number)) {
                *unread.entry(pointer.way).or_default() += 1;
            }
            for (way, rest) in &mut rest {
                let unread = unread.get(way).copied().unwrap_or(0).min(*rest);
                if let Some(missing) = missing.get_mut(*way as usize) {
                    missing.lost += *rest - unread;
                }
                *rest = unread;
            }
        }
        for (way, unread) in rest {
            if let Some(missing) = missing.get_mut(way as usize) {
                missing.unread += unread;
            }
        }
    }

    /// Returns the time of the last notification, in ns of the monotonic clock.
    #[must_use]
    pub fn rang(&self) -> u64 {
        let cpus = 0..self.rings.shape().cpus;
        let times =
            cpus.filter_map(|cpu| self.rings.region(cpu)?.scratch(region_offset::NOTIFY_TIME));
        times.max().unwrap_or(0)
    }
}

impl Sink {
    /// Goes on to the next one that is still there; answers how many are not.
    fn advance(&mut self, region: &Region<'_>, shape: RingsLayout, ways: &[u32]) -> u64 {
        let (all, mut skipped) = (u64::from(shape.pointers), 0);
        while self.next < self.head {
            if self.ahead.is_empty() {
                self.look_ahead(region, shape, ways);
            }
            if let Some(Some(_)) = self.ahead.front() {
                break;
            }
            let behind = region.head(self.sink).saturating_sub(self.next);
            let skip = match behind >= all {
                true => (behind - all + 1 + all / MARGIN).min(behind),
                false => 1,
            };
            skipped += skip;
            self.pass(skip);
        }
        skipped
    }

    /// Goes on behind so many.
    fn pass(&mut self, count: u64) {
        self.next += count;
        let known = usize::try_from(count).unwrap_or(usize::MAX).min(self.ahead.len());
        self.ahead.drain(..known);
    }

    /// Looks at some of the next ones. Both words of the writer that say whether they are still
    /// there are read behind what was copied, and only there.
    fn look_ahead(&mut self, region: &Region<'_>, shape: RingsLayout, ways: &[u32]) {
        let end = self.head.min(self.next + AT_ONCE as u64);
        let mut ahead = std::mem::take(&mut self.ahead);
        ahead.extend((self.next..end).map(|number| self.look_at(region, shape, ways, number)));
        // `reserved` begins with a fence, and `head` is read behind it.
        let (reserved, newest) = (region.reserved(), region.head(self.sink));
        for (number, place) in (self.next..end).zip(&mut ahead) {
            let here = newest.wrapping_sub(number) < u64::from(shape.pointers);
            *place = place.filter(|handed| here && is_whole(handed, reserved, shape.bytes));
        }
        self.ahead = ahead;
    }

    /// Reads the target of a pointer, which may be gone meanwhile.
    fn look_at(
        &self,
        region: &Region<'_>,
        shape: RingsLayout,
        ways: &[u32],
        number: u64,
    ) -> Option<Handed> {
        let pointer = region.pointer(self.sink, number)?;
        let mut bytes = [0; HEADER];
        let inside = region.copy(pointer.position, 0, &mut bytes);
        let header = Header::read(&bytes, shape.record_max);
        let way = self.only.unwrap_or(pointer.way);
        let leads_here = ways.get(way as usize) == Some(&self.sink);
        // Alone at its sink a way counts as the sink does.
        let number = if self.only.is_some() { number } else { pointer.number };
        let handed = Handed { cpu: self.cpu, sink: self.sink, way, number, pointer, header };
        (inside && leads_here).then_some(handed)
    }
}

fn is_whole(handed: &Handed, reserved: u64, bytes: u32) -> bool {
    reserved.wrapping_sub(handed.pointer.position) <= u64::from(bytes)
}

impl Header {
    fn read(bytes: &[u8; HEADER], most: u32) -> Self {
        let byte = |at: usize| bytes.get(at).copied().unwrap_or_default();
        let two = |at: usize| u16::from_ne_bytes([byte(at), byte(at + 1)]);
        let four = |at: usize| u32::from(two(at)) | u32::from(two(at + 2)) << 16;
        let marks = two(30);
        Self {
            length: four(8),
            kept: four(12).min(most),
            time: u64::from(four(16)) | u64::from(four(20)) << 32,
            tag: (marks & 1 != 0).then(|| (two(24), u16::from_be(two(26)))),
            segment: two(28),
            sent: marks & 2 != 0,
        }
    }
}
