//! Hostile acts for tests of the confinement. Compiled only with the feature `testing`; the product
//! does not use this module.

use std::fs::File;
use std::net::TcpStream;
use std::ptr;

/// Names of the hostile acts that [`HostileAct::prepare`] accepts.
pub const HOSTILE_ACT_NAMES: &[&str] = &[
    "abort", "allocate", "connect", "cursor", "exec", "exit", "flood", "fork", "hang", "kill",
    "memfd", "open", "panic", "ptrace", "ring", "segment", "setuid", "signal", "sleep", "spoof",
    "thread",
];

/// A hostile act, with facts about the process that were gathered before it was confined.
#[derive(Debug)]
pub struct HostileAct {
    name: String,
    /// Shared mappings of this process, each with its address, its length in bytes, true if it is
    /// writable, and the name of its file.
    shared: Vec<(usize, usize, bool, String)>,
    /// Process id of the parent process.
    parent: libc::pid_t,
}

impl HostileAct {
    /// Prepares the act called `name`: records the shared mappings of this process and the id of
    /// its parent, as hostile code that runs before the confinement could do.
    #[must_use]
    pub fn prepare(name: &str) -> Self {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let shared = maps.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            let (range, rights) = (words.next()?, words.next()?);
            let (from, to) = range.split_once('-')?;
            let from = usize::from_str_radix(from, 16).ok()?;
            let to = usize::from_str_radix(to, 16).ok()?;
            let name = words.nth(3)?.to_owned();
            rights.ends_with('s').then_some((from, to - from, rights.contains('w'), name))
        });
        let parent = rustix::process::getppid().map_or(1, |parent| parent.as_raw_nonzero().get());
        Self { name: name.to_owned(), shared: shared.collect(), parent }
    }

    /// Performs the act; does nothing if the name is unknown. In a confined process, returns only
    /// if the kernel refuses the act without killing the process.
    pub fn perform(&self) {
        match self.name.as_str() {
            "abort" => std::process::abort(),
            "allocate" => allocate_without_limit(),
            "connect" => drop(TcpStream::connect("127.0.0.1:9")),
            "cursor" => self.spoof_mappings("streamline-cursor"),
            "exec" => exec(),
            "exit" => std::process::exit(0),
            "flood" => flood_sockets(),
            "fork" => fork(),
            "hang" => loop_forever(),
            "kill" => kill(self.parent, libc::SIGKILL),
            "memfd" => drop(crate::memory::Memfd::create("mine", 4096)),
            "open" => drop(File::open("/etc/passwd")),
            #[expect(clippy::panic, reason = "the act is a panic")]
            "panic" => panic!("this filter panics on purpose"),
            "ptrace" => ptrace(self.parent),
            "ring" => self.make_ring_writable(),
            "segment" => write_word(8),
            "setuid" => setuid(),
            "signal" => kill(self.parent, libc::SIGTERM),
            "sleep" => park_forever(),
            "spoof" => self.spoof_mappings("streamline-ring"),
            "thread" => drop(std::thread::spawn(loop_forever)),
            _ => {}
        }
    }

    /// Makes a read-only mapping of a ring writable, and writes to it.
    fn make_ring_writable(&self) {
        let found = self
            .shared
            .iter()
            .find(|(.., writes, name)| !writes && name.contains("streamline-ring"));
        if let Some((address, length, ..)) = found {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: not sound, and not meant to be: the kernel refuses.
            unsafe { libc::mprotect(*address as *mut libc::c_void, *length, access) };
            write_word(*address);
        }
    }

    /// Overwrites the first page (positions, counts, sleep flags) of each writable shared mapping
    /// whose file name contains `file` with arbitrary values, then loops forever.
    fn spoof_mappings(&self, file: &str) {
        for (address, length, ..) in
            self.shared.iter().filter(|(.., writes, name)| *writes && name.contains(file))
        {
            for at in (0..4096.min(*length)).step_by(8) {
                let word = 0x0123_4567_89ab_cdef_u64.rotate_left(at as u32);
                // SAFETY: the memory is mapped for writing; that others read it is the point of the
                // act.
                unsafe { ptr::write_volatile((address + at) as *mut u64, word) };
            }
        }
        loop_forever();
    }
}

fn allocate_without_limit() {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        all.push(vec![1; 16 << 20]);
    }
}

fn loop_forever() {
    loop {
        std::hint::spin_loop();
    }
}

fn park_forever() {
    loop {
        std::thread::park();
    }
}

/// Sends one byte over every open socket whose number is below 64, in an endless loop.
fn flood_sockets() {
    loop {
        for socket in 0..64 {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: send(2) reads one byte of a constant; the call fails for a number that is not
            // that of a socket.
            unsafe { libc::send(socket, [1u8].as_ptr().cast(), 1, flags) };
        }
    }
}

fn fork() {
    // SAFETY: a process with one thread forks.
    unsafe { libc::fork() };
}

fn exec() {
    let words = [c"/bin/true".as_ptr(), ptr::null()];
    // SAFETY: a path and a null-terminated list of words.
    unsafe { libc::execv(words[0], words.as_ptr()) };
}

fn ptrace(parent: libc::pid_t) {
    let none = ptr::null_mut::<libc::c_void>();
    // SAFETY: the request uses only the process id.
    unsafe { libc::ptrace(libc::PTRACE_ATTACH, parent, none, none) };
}

fn kill(parent: libc::pid_t, signal: libc::c_int) {
    // SAFETY: kill(2) accepts any numbers.
    unsafe { libc::kill(parent, signal) };
}

fn setuid() {
    // SAFETY: setuid(2) accepts any number.
    unsafe { libc::setuid(0) };
}

fn write_word(address: usize) {
    // SAFETY: not sound, and not meant to be: the process ends here.
    unsafe { ptr::write_volatile(address as *mut u64, 1) };
}
