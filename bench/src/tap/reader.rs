//! A reader of a kernel ring, which copies each record: another instance of this program, which
//! receives descriptors and requests over a socket on its standard input.

use super::Tap;
use std::os::fd::{AsFd as _, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use sys::bpf::ring::region_offset;
use sys::bpf::{CpuRing, FramePointer, ProgramRings, RingBufferListener, RingsLayout};
use sys::descriptor;

/// Polling interval of a reader that is not notified.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Divisor of the ring's capacity in pointers. After a loss, the reader skips the quotient in
/// addition to the overwritten pointers, so that the writer does not immediately lap it again.
const SKIP_DIVISOR: u64 = 8;
/// Number of records copied between two checks for a lap. The writer stores its position with each
/// frame, so each check fetches that cache line from the writer's processor.
const RECORDS_PER_CHECK: usize = 16;
/// Number of 64-bit words in the first message to a reader, which contains the layout of the rings.
const START_MESSAGE_WORDS: usize = 5;

/// The counts of a reader: records received, records lost, and doorbells that woke it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReaderCounts {
    pub(crate) got: u64,
    pub(crate) lost: u64,
    pub(crate) doorbells: u64,
}

/// The bench's handle to a reader process.
#[derive(Debug)]
pub(crate) struct TapReader {
    child: Child,
    socket: OwnedFd,
}

impl TapReader {
    /// Starts a reader on a processor, and waits until it is reading.
    pub(crate) fn start(tap: &Tap, processor: usize) -> Result<Self, String> {
        let (socket, theirs) = descriptor::socket_pair().map_err(|why| why.to_string())?;
        let itself = std::env::current_exe().map_err(|why| why.to_string())?;
        let child = Command::new(itself)
            .args(["--reader", "tap", &processor.to_string(), "0"])
            .stdin(Stdio::from(theirs))
            .spawn()
            .map_err(|why| why.to_string())?;
        let reader = Self { child, socket };
        let RingsLayout { cpus, sinks, pointers, bytes, record_max } = tap.rings.layout();
        let message = encode_numbers(&[cpus, sinks, pointers, bytes, record_max].map(u64::from));
        let (rings, doorbell) = tap.descriptors()?;
        let sent = descriptor::send(&reader.socket, &message, &[rings, doorbell.as_fd()]);
        sent.map_err(|why| why.to_string())?;
        reader.receive_numbers::<1>()?;
        Ok(reader)
    }

    /// Returns the reader's process id.
    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the reader has received or lost `records` records in total. Returns its counts.
    pub(crate) fn wait_for_records(&self, records: u64) -> Result<ReaderCounts, String> {
        let sent = descriptor::send(&self.socket, &encode_numbers(&[records]), &[]);
        sent.map_err(|why| why.to_string())?;
        let [got, lost, doorbells] = self.receive_numbers()?;
        Ok(ReaderCounts { got, lost, doorbells })
    }

    fn receive_numbers<const N: usize>(&self) -> Result<[u64; N], String> {
        let mut message = [0; 64];
        let readable = descriptor::receive(&self.socket, &mut message);
        match readable.map_err(|why| why.to_string())? {
            (length, _) if length == N * 8 => {
                Ok(std::array::from_fn(|at| decode_number(&message, at)))
            }
            _ => Err("a reading process has ended".to_owned()),
        }
    }
}

impl Drop for TapReader {
    fn drop(&mut self) {
        // The process may be waiting, so it is killed.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the reader process, which the bench starts with the arguments `--reader tap PROCESSOR 0`.
pub(crate) fn serve(arguments: &[String]) -> Result<(), String> {
    let processor = arguments.get(1).and_then(|word| word.parse().ok()).ok_or("a processor")?;
    // On a machine with one processor, the reader shares it with the sender.
    let _ = sys::process::pin_to_processor(processor);
    let socket = std::io::stdin();
    let mut message = [0; START_MESSAGE_WORDS * 8];
    let received = descriptor::receive(&socket, &mut message);
    let (_, mut descriptors) = received.map_err(|why| why.to_string())?;
    let [cpus, sinks, pointers, bytes, record_max] =
        std::array::from_fn(|at| u32::try_from(decode_number(&message, at)).unwrap_or(0));
    let shape = RingsLayout { cpus, sinks, pointers, bytes, record_max };
    let (doorbell, rings) = (descriptors.pop(), descriptors.pop());
    let rings =
        ProgramRings::from_received(rings.ok_or("rings")?, shape).map_err(|why| why.to_string())?;
    // Closing the descriptor of the doorbell ends the notifications.
    let doorbell = doorbell.ok_or("a bell")?;
    let readable = [doorbell.as_fd(), socket.as_fd()];
    let listener = RingBufferListener::new(&readable).map_err(|why| why.to_string())?;
    let mut walk = ReaderState::new(shape);
    let reply = |numbers: &[u64]| {
        descriptor::send(&socket, &encode_numbers(numbers), &[]).map_err(|why| why.to_string())
    };
    reply(&[1])?;
    let mut wanted = None;
    loop {
        let woken = listener.wait(POLL_INTERVAL);
        // Records are read only once per wakeup. Later records cause another notification, and a
        // reader that follows the writer closely would fetch the cache lines that each frame
        // modifies.
        let found = walk.read_available_records(&rings);
        walk.observed.doorbells += u64::from(woken && found);
        if !found && wanted.is_none() && has_request(&socket, Duration::ZERO) {
            let mut request = [0; 8];
            let readable =
                descriptor::receive(&socket, &mut request).map_err(|why| why.to_string())?;
            if readable.0 == 0 {
                return Ok(());
            }
            wanted = Some(decode_number(&request, 0));
            walk.read_available_records(&rings);
        }
        if wanted.is_some_and(|wanted| walk.observed.got + walk.observed.lost >= wanted) {
            reply(&[walk.observed.got, walk.observed.lost, walk.observed.doorbells])?;
            wanted = None;
        }
    }
}

fn has_request(socket: impl std::os::fd::AsFd, limit: Duration) -> bool {
    sys::poll::wait_until_readable(&[socket.as_fd()], Some(limit)) == [true]
}

/// The state of a process that reads a tap's ring: its positions in the ring, and its counters.
struct ReaderState {
    shape: RingsLayout,
    next: Vec<u64>,
    record: Vec<u8>,
    observed: ReaderCounts,
}

impl ReaderState {
    fn new(shape: RingsLayout) -> Self {
        Self {
            shape,
            next: vec![0; shape.cpus as usize],
            record: vec![0; (region_offset::RECORD_HEADER_SIZE + shape.record_max) as usize],
            observed: ReaderCounts::default(),
        }
    }

    /// Reads all available records of the rings. Returns true if there were any.
    fn read_available_records(&mut self, rings: &ProgramRings) -> bool {
        let mut found = false;
        for cpu in 0..self.shape.cpus {
            if let Some(region) = rings.cpu_ring(cpu) {
                found |= self.read_next_record(&region, cpu as usize);
            }
        }
        found
    }

    fn read_next_record(&mut self, region: &CpuRing<'_>, cpu: usize) -> bool {
        let (begin, head) = (self.next[cpu], region.sink_pointer_count(0));
        let pointers = u64::from(self.shape.pointers);
        let (mut next, mut newest, mut reserved) = (begin, head, region.reserved_position());
        while next < head {
            let behind = newest - next;
            if behind >= pointers {
                let skip = (behind - pointers + 1 + pointers / SKIP_DIVISOR).min(behind);
                self.observed.lost += skip;
                next += skip;
                continue;
            }
            let end = head.min(next + RECORDS_PER_CHECK as u64);
            let mut copied = [None; RECORDS_PER_CHECK];
            for (number, place) in (next..end).zip(&mut copied) {
                *place = self.copy_record(region, number, reserved);
            }
            // The positions must be read after the copies; `reserved` begins with a fence.
            (reserved, newest) = (region.reserved_position(), region.sink_pointer_count(0));
            for (number, position) in (next..end).zip(copied) {
                let here = newest - number < pointers;
                match position.filter(|position| here && !self.may_be_lapped(*position, reserved)) {
                    None => self.observed.lost += 1,
                    Some(_) => self.observed.got += 1,
                }
            }
            next = end;
        }
        self.next[cpu] = next;
        next > begin
    }

    /// Copies the record with the given number. Returns its position, or `None` if the writer has
    /// lapped it.
    fn copy_record(&mut self, region: &CpuRing<'_>, number: u64, reserved: u64) -> Option<u64> {
        let FramePointer { position, length, .. } = region.frame_pointer(0, number)?;
        // If lapped records were copied, the reader would never catch up.
        if self.may_be_lapped(position, reserved) {
            return None;
        }
        let length = length.min(self.shape.record_max) as usize;
        let to = self.record.get_mut(..region_offset::RECORD_HEADER_SIZE as usize + length)?;
        let inside = region.copy_record_bytes(position, 0, to);
        std::hint::black_box(to);
        inside.then_some(position)
    }

    /// Returns true if the writer may have overwritten a record, given that it has reserved space
    /// up to `reserved`.
    fn may_be_lapped(&self, position: u64, reserved: u64) -> bool {
        reserved.wrapping_sub(position) > u64::from(self.shape.bytes)
    }
}

fn encode_numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

fn decode_number(message: &[u8], at: usize) -> u64 {
    let (words, _) = message.as_chunks::<8>();
    words.get(at).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}
