//! A reader process, run as another user if possible, that receives the rings and the doorbell,
//! copies every block, and checks every byte.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use endpoint::source::kernel::reader;
use sys::bpf::{FramePointer, ProgramRings, RingBuffer, RingBufferListener, RingsLayout};
use sys::descriptor;

/// User id of `nobody`, as which the reader process runs if possible.
const UNPRIVILEGED_UID: u32 = 65_534;
/// Polling interval of a reader that is not notified.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// The counts of a reader: the frames that it received, lost or found to be torn, and others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReaderCounts {
    pub(crate) got: u64,
    pub(crate) lost: u64,
    pub(crate) torn: u64,
    pub(crate) bytes: u64,
    pub(crate) longest: u64,
    pub(crate) doorbells: u64,
}

/// The content of the sent frames, which the reader checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameContent {
    /// Frames that consist of an Ethernet header, a number, and bytes derived from the number.
    Numbered,
    /// Ethernet frames with TCP over IPv4. Each byte of the payload is its predecessor plus one.
    Counting,
}

/// The test's handle to a reader process.
pub(crate) struct Reader {
    child: Child,
    socket: OwnedFd,
}

impl Reader {
    /// Starts a reader process: this test executable, which runs its ignored test
    /// `child_process_runs_reader`.
    pub(crate) fn start(
        rings: &ProgramRings,
        doorbell: &RingBuffer,
        content: FrameContent,
    ) -> Self {
        let (socket, theirs) = descriptor::socket_pair().unwrap();
        let start = |user: Option<u32>| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "--ignored", "--nocapture", "child_process_runs_reader"]);
            command.stdin(theirs.try_clone().unwrap()).stdout(Stdio::null());
            if let Some(user) = user {
                command.uid(user).gid(user);
            }
            command.spawn()
        };
        let child = start(Some(UNPRIVILEGED_UID)).or_else(|why: io::Error| {
            println!("readers of the same user: {why}");
            start(None)
        });
        let RingsLayout { cpus, sinks, pointers, bytes, record_max } = rings.layout();
        let words = [cpus, sinks, pointers, bytes, record_max, content as u32];
        let message: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let waits = doorbell.map().open_read_only().unwrap();
        descriptor::send(&socket, &message, &[rings.as_fd(), waits.as_fd()]).unwrap();
        let mut ready = [0];
        let reader = Self { child: child.unwrap(), socket };
        assert_eq!(descriptor::receive(&reader.socket, &mut ready).unwrap().0, 1, "it reads");
        reader
    }

    /// Informs the reader that the writer has stopped. The reader then drains the rings. Returns
    /// the reader's counters.
    pub(crate) fn stop(mut self) -> ReaderCounts {
        descriptor::send(&self.socket, b"end", &[]).unwrap();
        let mut message = [0; 48];
        let (length, _) = descriptor::receive(&self.socket, &mut message).unwrap();
        assert_eq!(length, message.len(), "it tells");
        assert!(self.child.wait().unwrap().success());
        let (words, _) = message.as_chunks::<8>();
        let word = |number: usize| u64::from_ne_bytes(words[number]);
        ReaderCounts {
            got: word(0),
            lost: word(1),
            torn: word(2),
            bytes: word(3),
            longest: word(4),
            doorbells: word(5),
        }
    }
}

/// Runs a reader in the child process that [`Reader::start`] has started.
pub(crate) fn run_reader() {
    let socket = io::stdin();
    let mut message = [0; 24];
    let (length, mut descriptors) = descriptor::receive(&socket, &mut message).unwrap();
    assert_eq!((length, descriptors.len()), (24, 2));
    let (words, _) = message.as_chunks::<4>();
    let word = |number: usize| u32::from_ne_bytes(words[number]);
    let shape = RingsLayout {
        cpus: word(0),
        sinks: word(1),
        pointers: word(2),
        bytes: word(3),
        record_max: word(4),
    };
    let content = if word(5) == 0 { FrameContent::Numbered } else { FrameContent::Counting };
    let doorbell = descriptors.pop().unwrap();
    let rings = ProgramRings::from_received(descriptors.pop().unwrap(), shape).unwrap();
    let listener = RingBufferListener::new(&[doorbell.as_fd()]).unwrap();
    let mut counts = ReaderCounts::default();
    let mut walk = CheckingReader::new(rings, content);
    descriptor::send(&socket, b"r", &[]).unwrap();
    let mut stop = false;
    loop {
        if walk.read_available(&mut counts) > 0 {
            continue;
        }
        if stop {
            // Drained, or the sender would consider it undelivered.
            descriptor::receive(&socket, &mut [0; 8]).unwrap();
            break;
        }
        counts.doorbells += u64::from(listener.wait(POLL_INTERVAL));
        stop = sys::poll::wait_until_readable(&[socket.as_fd()], Some(Duration::ZERO)) == [true];
    }
    counts.lost = walk.lost_frame_count();
    let ReaderCounts { got, lost, torn, bytes, longest, doorbells } = counts;
    let message: Vec<u8> = [got, lost, torn, bytes, longest, doorbells]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect();
    descriptor::send(&socket, &message, &[]).unwrap();
}

/// A wrapper around the product's ring reader that checks the content of every frame.
struct CheckingReader {
    reader: reader::KernelRingReader,
    content: FrameContent,
    frame: Vec<u8>,
}

impl CheckingReader {
    fn new(rings: ProgramRings, content: FrameContent) -> Self {
        let frame = vec![0; rings.layout().record_max as usize];
        Self { reader: reader::KernelRingReader::new(Arc::new(rings), vec![0]), content, frame }
    }

    /// Reads the available frames; returns their number.
    fn read_available(&mut self, counts: &mut ReaderCounts) -> u64 {
        let mut count = 0;
        self.reader.load_writer_positions();
        while let Some(handed) = self.reader.front_frame() {
            count += 1;
            let frame = &mut self.frame[..handed.header.captured as usize];
            let inside = self.reader.copy_bytes(&handed, 0, frame);
            self.reader.advance_past_frame(&handed);
            if !self.reader.is_intact(&handed, self.reader.reserved_position(handed.cpu)) {
                self.reader.count_passed_frame_as_lost(&handed);
                continue;
            }
            counts.got += 1;
            counts.bytes += frame.len() as u64;
            counts.longest = counts.longest.max(frame.len() as u64);
            let FramePointer { length, class, offset, edge: way, .. } = handed.pointer;
            let is_expected = (length, class, offset, way) == (handed.header.length, 1, 0, 7);
            counts.torn += u64::from(!(inside && is_expected && is_intact(frame, self.content)));
        }
        count
    }

    fn lost_frame_count(&self) -> u64 {
        self.reader.exit_losses().iter().map(|missing| missing.lost).sum()
    }
}

/// Returns true if the frame has the content that was sent. For [`FrameContent::Counting`], also
/// returns true for a frame without TCP payload.
fn is_intact(frame: &[u8], content: FrameContent) -> bool {
    let payload = match content {
        FrameContent::Numbered => {
            let Some((number, rest)) = frame.get(14..).and_then(|rest| rest.split_first_chunk())
            else {
                return false;
            };
            let number = u32::from_be_bytes(*number) as usize;
            return rest.iter().enumerate().all(|(at, byte)| *byte == (number + at) as u8);
        }
        FrameContent::Counting => tcp_payload(frame),
    };
    payload.windows(2).all(|two| two[1] == two[0].wrapping_add(1))
}

/// Returns the TCP payload of an IPv4 frame; empty for any other frame.
fn tcp_payload(frame: &[u8]) -> &[u8] {
    let Some(&first) = frame.get(14) else { return &[] };
    let transport = 14 + usize::from(first & 15) * 4;
    let is_tcp = frame.get(12..14) == Some(&[8, 0]) && frame.get(23) == Some(&6);
    let Some(&offset) = frame.get(transport + 12).filter(|_| is_tcp) else { return &[] };
    frame.get(transport + usize::from(offset >> 4) * 4..).unwrap_or(&[])
}
