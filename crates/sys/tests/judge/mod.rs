//! The kernel as judge of generated programs: each must pass the verifier, and is then executed on
//! every packet in a test run.

#![allow(dead_code, reason = "each test binary uses some of the helpers")]
#![allow(unreachable_pub, reason = "shared by test binaries")]

use std::os::fd::{AsFd, AsRawFd};

use ebpf::emit::Outcome;
use ebpf::exam::{TwinJudge, TwinVerdict, decode_counters};
use ebpf::interpret::Packet;
use ebpf::{Hook, MapSpec, Program, disasm, insn};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use sys::bpf::{self, LoadError, Map, ProgramKind};

const EINVAL: i32 = rustix::io::Errno::INVAL.raw_os_error();

/// A judge that runs a program in the kernel: the loaded program, with its maps.
pub struct KernelJudge {
    pub loaded: bpf::Program,
    maps: Vec<Map>,
    /// For each map, true if it holds a filter's state.
    states: Vec<bool>,
    before: Vec<u64>,
    place: Hook,
    has_a_clock: bool,
    edits: bool,
}

impl KernelJudge {
    /// Loads a program, and panics if the verifier rejects it.
    pub fn load(program: &Program, name: &str) -> Self {
        Self::try_load(program, name).unwrap_or_else(|refused| {
            panic!("{refused}\n{}\n{}", refused.log, disasm::list_program(program))
        })
    }

    /// Loads a program; returns the kernel's error if the verifier rejects it.
    pub fn try_load(program: &Program, name: &str) -> Result<Self, LoadError> {
        let array = |map: &MapSpec| match map.programs {
            0 => Map::array(&map.name, map.value_size, 1, map.mappable).expect("a map"),
            programs => Map::create_program_array(&map.name, programs).expect("a map of programs"),
        };
        let maps: Vec<Map> = program.maps.iter().map(array).collect();
        let descriptors: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
        let code = insn::encode(&program.relocate(&descriptors).expect("a descriptor per map"));
        let loaded = bpf::Program::load(program_kind(program.hook), name, &code)?;
        let links = program.maps.iter().zip(&maps).find(|(spec, _)| spec.programs > 0);
        let parts = program.relocate_tails(&descriptors).expect("a descriptor per map");
        for (at, part) in (0..).zip(parts) {
            let part = bpf::Program::load(program_kind(program.hook), name, &insn::encode(&part))?;
            links.expect("a map of parts").1.set_descriptor(at, part.as_fd()).expect("a part");
        }
        let before = vec![0; program.counters.len()];
        let states = program.maps.iter().map(|map| map.state_of.is_some()).collect();
        let has_a_clock = program.code.contains(&insn::Insn::call(insn::Helper::KtimeNs));
        let Program { hook: place, edits_frames: edits, .. } = *program;
        Ok(Self { loaded, maps, states, before, place, has_a_clock, edits })
    }

    fn take_counter_gains(&mut self) -> Vec<u64> {
        let counters = self.maps.first().filter(|_| !self.before.is_empty());
        let Some(counters) = counters else { return Vec::new() };
        let now = decode_counters(&counters.get(0).expect("the counters"));
        let gained = now.iter().zip(&self.before).map(|(now, before)| now - before).collect();
        self.before = now;
        gained
    }
}

impl TwinJudge for KernelJudge {
    fn name(&self) -> &str {
        "kernel"
    }

    fn judge(&mut self, packet: &Packet<'_>) -> TwinVerdict {
        if packet.tag.is_some()
            || packet.is_unfilled && self.place != Hook::Xdp
            || packet.linear < packet.bytes.len()
        {
            let why = "a test run makes whole frames without a tag beside, checksums filled in";
            return TwinVerdict::Refused(why.to_owned());
        }
        // The program's input begins after the Ethernet header, so an empty header precedes the
        // frame.
        let hidden = if self.place.reads_packet_by_helper() { vec![0; 14] } else { Vec::new() };
        let frame = [&hidden, packet.bytes].concat();
        let run = match (self.edits, self.place) {
            (true, _) => self
                .loaded
                .test_run_output(&frame)
                .map(|(run, left)| (run.return_value, Some(left))),
            (false, Hook::Cgroup) => self.loaded.test_run_with_cb(&frame).map(|(run, verdict)| {
                assert_eq!(run.return_value, 1, "whatever it finds, the packet goes on");
                (verdict, None)
            }),
            (false, _) => self.loaded.test_run(&frame, 1).map(|run| (run.return_value, None)),
        };
        match run {
            Ok((value, frame)) => {
                let (outcome, counted) = (Outcome::decode(value), self.take_counter_gains());
                TwinVerdict::Answered { outcome, counter_increases: counted, frame }
            }
            Err(error) if error.errno == EINVAL && is_refused(self.place, packet.bytes) => {
                TwinVerdict::Refused(error.to_string())
            }
            Err(error) => TwinVerdict::Broken(error.to_string()),
        }
    }

    fn filter_states(&mut self) -> Option<Vec<Vec<u8>>> {
        if self.has_a_clock {
            // Clock values are not comparable.
            return None;
        }
        let states = self.maps.iter().zip(&self.states).filter(|(_, is_state)| **is_state);
        Some(states.map(|(map, _)| map.get(0).expect("the state")).collect())
    }
}

/// Returns the program type for an attachment hook.
pub fn program_kind(place: Hook) -> ProgramKind {
    match place {
        Hook::Tc => ProgramKind::Tc,
        Hook::Xdp => ProgramKind::Xdp,
        Hook::Socket => ProgramKind::SocketFilter,
        Hook::Cgroup => ProgramKind::CgroupPacket,
    }
}

/// Runs `work` in a thread without CAP_PERFMON, so that programs load hardened against speculation,
/// as they do for an unprivileged user.
pub fn run_without_perfmon<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    with_capabilities(CapabilitySet::BPF | CapabilitySet::NET_ADMIN, work)
}

/// Runs `work` in a thread with exactly these capabilities.
pub fn with_capabilities<T: Send>(kept: CapabilitySet, work: impl FnOnce() -> T + Send) -> T {
    let stripped = || {
        let mut sets = capabilities(None).expect("this thread's capabilities");
        (sets.effective, sets.permitted) = (kept, kept);
        sets.inheritable = CapabilitySet::empty();
        // Affects this thread alone, which ends here.
        set_capabilities(None, sets).expect("fewer capabilities");
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(stripped).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Returns true for a frame that a test run rejects: at XDP and tc, a frame shorter than an
/// Ethernet header; at tc also an IP packet shorter than its header; at other hooks, an empty
/// frame.
pub fn is_refused(place: Hook, frame: &[u8]) -> bool {
    match (place, frame.get(12..14)) {
        (Hook::Socket | Hook::Cgroup, _) => frame.is_empty(),
        (_, None) => true,
        (Hook::Tc, Some([0x08, 0x00])) => frame.len() < 14 + 20,
        (Hook::Tc, Some([0x86, 0xdd])) => frame.len() < 14 + 40,
        _ => false,
    }
}
