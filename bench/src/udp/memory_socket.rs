//! Requests and answers in memory: a feeder that runs the kernel program of a ring on frames in
//! memory, as a card would, and the file in which a preloaded library keeps answers.

use super::servers::SERVER_PORT;
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use sys::bpf::ring::region_offset;
use sys::bpf::{Map, MapKind, ObjectKind, Program, TrafficDirection, object_ids, tcx_chain};
use sys::memory::{Mapping, Memfd, ReadMapping};
use sys::net::RouteSocket;
use testkit::net::{Namespace, SERVER_DEVICE};

/// Size in bytes of the file through which `memory_socket.c` receives requests and stores answers.
/// The following constants are offsets and sizes in this file.
const FILE_SIZE: usize = 8 << 20;
const REQUESTS_LEFT_OFFSET: usize = 64;
const REQUEST_COUNT_OFFSET: usize = 128;
const PORT_OFFSET: usize = 192;
const REQUESTS_OFFSET: usize = 4096;
const SLOT_SIZE: usize = 2048;

/// The file in memory in which a server's preloaded library stores answers, with the path of the
/// library.
pub(super) struct MemorySocket {
    file: Memfd,
    memory: Mapping,
    preloaded: PathBuf,
}

impl MemorySocket {
    /// Creates a file that contains the given requests, and compiles the library.
    pub(super) fn create(folder: &Path, requests: &[Vec<u8>]) -> Result<Self, String> {
        let file = Memfd::create("bench answers", FILE_SIZE).map_err(|why| why.to_string())?;
        let memory = file.map().map_err(|why| why.to_string())?;
        for (number, request) in requests.iter().enumerate() {
            let place = REQUESTS_OFFSET + number * SLOT_SIZE;
            let length = (request.len() as u32).to_ne_bytes();
            let _ = memory.store_bytes(place, &[&length, request.as_slice()].concat());
        }
        let _ = memory.set_word(REQUEST_COUNT_OFFSET, requests.len() as u64);
        let _ = memory.set_word(PORT_OFFSET, u64::from(SERVER_PORT));
        Ok(Self { file, memory, preloaded: compile_memory_library(folder)? })
    }

    /// Returns the environment variables with which a server starts, so that its preloaded library
    /// uses the file.
    pub(super) fn environment(&self) -> Vec<(&'static str, String)> {
        let number = self.file.as_fd().as_raw_fd();
        let file = format!("/proc/{}/fd/{number}", std::process::id());
        vec![("LD_PRELOAD", self.preloaded.display().to_string()), ("STREAMLINE_BENCH_UDP", file)]
    }

    /// Returns the number of answers that the server has stored so far.
    pub(super) fn answer_count(&self) -> u64 {
        self.memory.word(0).unwrap_or(0)
    }

    /// Lets the server receive this number of requests from the file.
    pub(super) fn set_requests_left(&self, count: u64) {
        let _ = self.memory.set_word(REQUESTS_LEFT_OFFSET, count);
    }
}

fn compile_memory_library(folder: &Path) -> Result<PathBuf, String> {
    let (source, library) = (folder.join("memory_socket.c"), folder.join("memory_socket.so"));
    if !library.is_file() {
        fs::write(&source, include_str!("../../c/memory_socket.c"))
            .map_err(|why| why.to_string())?;
        let mut command = Command::new("cc");
        command.args(["-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o"]);
        let output = command.arg(&library).arg(&source).arg("-ldl").output();
        let output = output.map_err(|why| format!("cc: {why}"))?;
        if !output.status.success() {
            return Err(format!("cc: {}", String::from_utf8_lossy(&output.stderr)));
        }
    }
    Ok(library)
}

/// A feeder that puts requests into a server's ring. It runs the kernel program on frames in
/// memory, and the program copies them to the ring like frames of the interface. The interface and
/// the host's stack are not involved. The feeder's processor time is not part of the server's.
pub(super) struct RingFeeder {
    program: Program,
    /// All kernel rings on this machine. One of them is the ring of the program.
    candidates: Vec<ReadMapping>,
    /// The ring that the program writes, or `None` until it has been found among the candidates.
    ring: Option<ReadMapping>,
}

impl RingFeeder {
    /// Finds the kernel program at the server's device, and creates its feeder. Returns `None` if
    /// there is no program.
    pub(super) fn open(space: &Namespace) -> Result<Option<Self>, String> {
        let chain = space.run_in_network_namespace(|| {
            let device =
                RouteSocket::open().and_then(|links| links.interface_by_name(SERVER_DEVICE));
            device.and_then(|device| tcx_chain(device.index, TrafficDirection::Ingress))
        });
        let chain = chain.map_err(|why| why.to_string())?;
        let Some(member) = chain.members.last() else { return Ok(None) };
        let program = Program::open_by_id(member.program).map_err(|why| why.to_string())?;
        let maps = object_ids(ObjectKind::Maps).map_err(|why| why.to_string())?;
        // Maps of other programs may have gone by now.
        let maps = maps.into_iter().filter_map(|id| Map::open_by_id(id).ok());
        let is_ring = |map: &Map| map.kind() == MapKind::Array && map.is_frozen().unwrap_or(false);
        let candidates = maps.filter(is_ring).filter_map(|map| map.map_read().ok()).collect();
        Ok(Some(Self { program, candidates, ring: None }))
    }

    /// Runs the program on a frame `count` times, from the first processor. Returns the number of
    /// copies that entered the ring. No copy enters while the ring's reader sleeps.
    pub(super) fn feed(&mut self, frame: &[u8], count: usize) -> Result<usize, String> {
        let written = |ring: &ReadMapping| ring.word(region_offset::HEADS as usize).unwrap_or(0);
        let before: Vec<u64> = self.ring.iter().chain(&self.candidates).map(written).collect();
        let run = self.program.test_run(frame, count as u32).map_err(|why| why.to_string())?;
        // A frame of the interface may enter at the same time.
        let entered = |(ring, before): (&ReadMapping, &u64)| {
            usize::try_from(written(ring) - before).map_or(count, |entered| entered.min(count))
        };
        if let (Some(ring), Some(before)) = (&self.ring, before.first()) {
            return Ok(entered((ring, before)));
        }
        // The ring may have been asleep for some of the frames.
        let all: Vec<usize> = self.candidates.iter().zip(&before).map(entered).collect();
        match all.iter().position(|entered| *entered > 0) {
            Some(at) => {
                self.ring = Some(self.candidates.swap_remove(at));
                self.candidates.clear();
                Ok(all.get(at).copied().unwrap_or(0))
            }
            None if run.return_value == TC_ACT_SHOT => {
                Err("the ring of the server was not found".to_owned())
            }
            None => Ok(0),
        }
    }
}

/// Return value of a program that takes a frame from the host (`TC_ACT_SHOT`).
const TC_ACT_SHOT: u32 = 2;
