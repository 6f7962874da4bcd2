//! A reader of a kernel ring: this program again, with a socket as its standard input over which it
//! gets its descriptors and its orders. It copies every record.

use super::Tap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use sys::bpf::ring::region_offset;
use sys::bpf::{FramePointer, Listener, Region, Rings, RingsLayout};
use sys::descriptor;

/// A reader that hears no bell looks all the same, so often.
const PATIENCE: Duration = Duration::from_millis(20);
/// The share of the pointers that is skipped after a loss beyond the lost ones, so that the writer
/// does not come round again at once.
const MARGIN: u64 = 8;
/// The records copied between two checks whether the writer has come round: it writes its position
/// with every frame, and each check fetches that cache line from its processor.
const AT_ONCE: usize = 16;
/// Words of the first message.
const WORDS: usize = 5;

/// The records that a reader received since the last request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) got: u64,
    pub(crate) lost: u64,
    pub(crate) bells: u64,
}

/// A reader that runs.
#[derive(Debug)]
pub(crate) struct Reader {
    child: Child,
    socket: OwnedFd,
}

impl Reader {
    /// Starts one on a processor, and waits until it reads.
    pub(crate) fn start(tap: &Tap, processor: usize) -> Result<Self, String> {
        let (socket, theirs) = descriptor::pair().map_err(|why| why.to_string())?;
        let itself = std::env::current_exe().map_err(|why| why.to_string())?;
        let child = Command::new(itself)
            .args(["--reader", "tap", &processor.to_string(), "0"])
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|why| why.to_string())?;
        let reader = Self { child, socket };
        let RingsLayout { cpus, sinks, pointers, bytes, record_max } = tap.rings.shape();
        let message = words(&[cpus, sinks, pointers, bytes, record_max].map(u64::from));
        let (rings, bell) = tap.descriptors()?;
        let sent = descriptor::send(&reader.socket, &message, &[rings, bell.as_fd()]);
        sent.map_err(|why| why.to_string())?;
        reader.answer::<1>()?;
        Ok(reader)
    }

    /// The number of its process.
    pub(crate) fn process(&self) -> u32 {
        self.child.id()
    }

    /// Returns its counts, once it has received or lost so many records in all.
    pub(crate) fn seen(&self, records: u64) -> Result<Seen, String> {
        let sent = descriptor::send(&self.socket, &words(&[records]), &[]);
        sent.map_err(|why| why.to_string())?;
        let [got, lost, bells] = self.answer()?;
        Ok(Seen { got, lost, bells })
    }

    fn answer<const N: usize>(&self) -> Result<[u64; N], String> {
        let mut message = [0; 64];
        let heard = descriptor::receive(&self.socket, &mut message);
        match heard.map_err(|why| why.to_string())? {
            (length, _) if length == N * 8 => Ok(std::array::from_fn(|at| word(&message, at))),
            _ => Err("a reading process has ended".to_owned()),
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // It may be in the middle of waiting; nothing of it is needed any more.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The life of a reader: `--reader tap PROCESSOR 0`.
pub(crate) fn serve(arguments: &[String]) -> Result<(), String> {
    let processor = arguments.get(1).and_then(|word| word.parse().ok()).ok_or("a processor")?;
    // Where there is only one, it is shared.
    let _ = sys::process::pin_to(processor);
    let socket = std::io::stdin();
    let mut message = [0; WORDS * 8];
    let received = descriptor::receive(&socket, &mut message);
    let (_, mut descriptors) = received.map_err(|why| why.to_string())?;
    let [cpus, sinks, pointers, bytes, record_max] =
        std::array::from_fn(|at| u32::try_from(word(&message, at)).unwrap_or(0));
    let shape = RingsLayout { cpus, sinks, pointers, bytes, record_max };
    let (bell, rings) = (descriptors.pop(), descriptors.pop());
    let rings = Rings::received(rings.ok_or("rings")?, shape).map_err(|why| why.to_string())?;
    // Listening ends with the descriptor.
    let bell = bell.ok_or("a bell")?;
    let heard = [bell.as_fd(), socket.as_fd()];
    let listener = Listener::to(&heard).map_err(|why| why.to_string())?;
    let mut walk = Walk::new(shape);
    let tell = |numbers: &[u64]| {
        descriptor::send(&socket, &words(numbers), &[]).map_err(|why| why.to_string())
    };
    tell(&[1])?;
    let mut wanted = None;
    loop {
        let woken = listener.wait(PATIENCE);
        // Once: for what comes meanwhile a bell rings, and who chases the writer takes from it the
        // lines that it writes with each frame.
        let found = walk.all(&rings);
        walk.seen.bells += u64::from(woken && found);
        if !found && wanted.is_none() && order_waits(&socket, Duration::ZERO) {
            let mut order = [0; 8];
            let heard = descriptor::receive(&socket, &mut order).map_err(|why| why.to_string())?;
            if heard.0 == 0 {
                return Ok(());
            }
            wanted = Some(word(&order, 0));
            walk.all(&rings);
        }
        if wanted.is_some_and(|wanted| walk.seen.got + walk.seen.lost >= wanted) {
            tell(&[walk.seen.got, walk.seen.lost, walk.seen.bells])?;
            wanted = None;
        }
    }
}

fn order_waits(socket: impl std::os::fd::AsFd, limit: Duration) -> bool {
    sys::poll::readable(&[socket.as_fd()], Some(limit)) == [true]
}

/// The position of a reader.
struct Walk {
    shape: RingsLayout,
    next: Vec<u64>,
    record: Vec<u8>,
    seen: Seen,
}

impl Walk {
    fn new(shape: RingsLayout) -> Self {
        Self {
            shape,
            next: vec![0; shape.cpus as usize],
            record: vec![0; (region_offset::HEADER + shape.record_max) as usize],
            seen: Seen::default(),
        }
    }

    /// Reads what there is; answers whether there was anything.
    fn all(&mut self, rings: &Rings) -> bool {
        let mut found = false;
        for cpu in 0..self.shape.cpus {
            if let Some(region) = rings.region(cpu) {
                found |= self.one(&region, cpu as usize);
            }
        }
        found
    }

    fn one(&mut self, region: &Region<'_>, cpu: usize) -> bool {
        let (begin, head) = (self.next[cpu], region.head(0));
        let pointers = u64::from(self.shape.pointers);
        let (mut next, mut newest, mut reserved) = (begin, head, region.reserved());
        while next < head {
            let behind = newest - next;
            if behind >= pointers {
                let skip = (behind - pointers + 1 + pointers / MARGIN).min(behind);
                self.seen.lost += skip;
                next += skip;
                continue;
            }
            let end = head.min(next + AT_ONCE as u64);
            let mut copied = [None; AT_ONCE];
            for (number, place) in (next..end).zip(&mut copied) {
                *place = self.copy(region, number, reserved);
            }
            // What is checked is read after what was copied: `reserved` begins with a fence.
            (reserved, newest) = (region.reserved(), region.head(0));
            for (number, position) in (next..end).zip(copied) {
                let here = newest - number < pointers;
                match position.filter(|position| here && !self.lapped(*position, reserved)) {
                    None => self.seen.lost += 1,
                    Some(_) => self.seen.got += 1,
                }
            }
            next = end;
        }
        self.next[cpu] = next;
        next > begin
    }

    /// Copies a record; none if the writer had come round before. Answers its position.
    fn copy(&mut self, region: &Region<'_>, number: u64, reserved: u64) -> Option<u64> {
        let FramePointer { position, length, .. } = region.pointer(0, number)?;
        // Who is behind already copies nothing, or would never come up.
        if self.lapped(position, reserved) {
            return None;
        }
        let length = length.min(self.shape.record_max) as usize;
        let to = self.record.get_mut(..region_offset::HEADER as usize + length)?;
        let inside = region.copy(position, 0, to);
        std::hint::black_box(to);
        inside.then_some(position)
    }

    /// Returns true if the writer, which has reserved up to `reserved`, may have come round over a
    /// record.
    fn lapped(&self, position: u64, reserved: u64) -> bool {
        reserved.wrapping_sub(position) > u64::from(self.shape.bytes)
    }
}

fn words(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn word(message: &[u8], at: usize) -> u64 {
    let (words, _) = message.as_chunks::<8>();
    words.get(at).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}
