//! A twin on a real interface, instrumented to record its input and its result.
//!
//! Input: a program that returns its class. Output: one record per packet, in order. Only the entry
//! and the exits of the program are changed: the entry stores the length of the linear data, and
//! each exit records the class, counters, metadata, and all bytes of the frame, read by a helper.
//! The frame then continues as without the program.

use std::os::fd::{AsFd as _, AsRawFd as _};

use super::super::judge::program_kind;
use ebpf::asm::{Assembler, Label};
use ebpf::emit::Outcome;
use ebpf::exam::{TwinJudge, TwinVerdict, decode_counters};
use ebpf::insn::{self, Alu, Cond, Helper, Insn, R0, R1, R2, R3, R4, R6, R7, R8, R9, R10, Size};
use ebpf::interpret::{Packet, Tag};
use ebpf::{Hook, MapSpec, Program};
use sys::bpf::{ChainPosition, Link, LoadParameters, Map, TrafficDirection, XdpMode};
use sys::memory::ReadMapping;
use sys::net::RouteSocket;

/// The processor on which a test runs. Packets that the kernel sends from other processors are
/// ignored, so that the order of packets is defined.
pub(super) const TEST_PROCESSOR: usize = 0;
/// Total size of the records in bytes. Packets that do not fit are not recorded.
const RECORDS_SIZE: u32 = 4 << 20;
/// Maximum recorded length of a frame in bytes: a GRO frame with its headers.
const FRAME_LENGTH_MAX: u32 = 1 << 17;

/// Offsets in the map in which the program stores the records of packets.
mod records_map_offset {
    pub(super) const POSITION: i16 = 0;
    pub(super) const LOST: i16 = 8;
    pub(super) const LINEAR: i16 = 16;
    pub(super) const RECORDS: i16 = 64;
}

/// Offsets of the fields of one packet's record.
mod record_offset {
    pub(super) const CLASS: usize = 0;
    pub(super) const LENGTH: usize = 4;
    pub(super) const LINEAR: usize = 8;
    pub(super) const TAGGED: usize = 12;
    pub(super) const TCI: usize = 16;
    pub(super) const PROTOCOL: usize = 20;
    /// Offset of the counters in a record. The frame follows the counters.
    pub(super) const COUNTERS: usize = 24;
}

/// The hook to which a program is attached: TCX in one direction, or XDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttachPoint {
    Tcx(TrafficDirection),
    Xdp,
}

impl AttachPoint {
    pub(super) const fn hook(self) -> Hook {
        match self {
            Self::Tcx(_) => Hook::Tc,
            Self::Xdp => Hook::Xdp,
        }
    }

    /// Returns the return value with which a program passes a frame on at this hook (`TCX_NEXT` or
    /// `XDP_PASS`).
    const fn pass_verdict(self) -> i32 {
        match self {
            Self::Tcx(_) => -1,
            Self::Xdp => 2,
        }
    }
}

/// An attached program that records the packets it processes.
pub(super) struct RecordedProgram<'p> {
    program: &'p Program,
    maps: Vec<Map>,
    records: ReadMapping,
    _link: Link,
}

impl<'p> RecordedProgram<'p> {
    /// Attaches the program to an interface in this thread's namespace.
    pub(super) fn attach(program: &'p Program, device: &str, point: AttachPoint) -> Self {
        let staged = instrument(program, point);
        let array = |map: &MapSpec| Map::array(&map.name, map.value_size, 1, map.mappable).unwrap();
        let maps: Vec<Map> = staged.maps.iter().map(array).collect();
        let descriptors: Vec<i32> = maps.iter().map(|map| map.as_fd().as_raw_fd()).collect();
        let code = insn::encode(&staged.relocate(&descriptors).unwrap());
        let load = LoadParameters::new(program_kind(point.hook()), "live", &code);
        let load = LoadParameters { fragments: point == AttachPoint::Xdp, ..load };
        let loaded = load.load().unwrap_or_else(|why| panic!("{why}\n{}", why.log));
        let index = RouteSocket::open().unwrap().interface_by_name(device).unwrap().index;
        let link = match point {
            AttachPoint::Tcx(side) => {
                Link::attach_tcx(&loaded, index, side, ChainPosition::Head, None)
            }
            AttachPoint::Xdp => Link::attach_xdp(&loaded, index, XdpMode::Native),
        };
        let records = maps.last().unwrap().map_read().unwrap();
        Self { program, maps, records, _link: link.unwrap() }
    }

    /// Returns the number of bytes that the records fill.
    pub(super) fn filled_bytes(&self) -> usize {
        self.records.word(records_map_offset::POSITION as usize).unwrap() as usize
    }

    /// Returns the records of all packets, in the order in which the program processed them.
    pub(super) fn records(&self) -> Vec<PacketRecord> {
        assert_eq!(
            self.records.word(records_map_offset::LOST as usize),
            Some(0),
            "the map of records was full"
        );
        let (mut at, end) = (records_map_offset::RECORDS as usize, self.filled_bytes());
        let mut records = Vec::new();
        while at < records_map_offset::RECORDS as usize + end {
            let begin = at;
            let half = |field| self.records.word32(begin + field).unwrap();
            let counters = self.program.counters.len();
            let mut bytes = vec![0; counters * 8 + half(record_offset::LENGTH) as usize];
            assert!(self.records.copy(at + record_offset::COUNTERS, &mut bytes));
            let tag = Tag {
                tci: half(record_offset::TCI) as u16,
                // The value is in network byte order, as in the kernel.
                protocol: u16::from_be(half(record_offset::PROTOCOL) as u16),
            };
            at += (record_offset::COUNTERS + bytes.len()).next_multiple_of(8);
            let frame = bytes.split_off(counters * 8);
            records.push(PacketRecord {
                outcome: Outcome::decode(half(record_offset::CLASS)),
                linear_length: half(record_offset::LINEAR) as usize,
                tag: (half(record_offset::TAGGED) != 0).then_some(tag),
                counters: decode_counters(&bytes),
                frame,
            });
        }
        records
    }

    /// Returns a judge for the comparison with the other implementations. Its verdicts are the
    /// results that the attached program recorded.
    pub(super) fn recorded_verdicts(&self, records: &[PacketRecord]) -> RecordedVerdicts {
        let mut before = vec![0; self.program.counters.len()];
        let mut rulings = Vec::new();
        for record in records {
            let counted = record.counters.iter().zip(&before).map(|(now, was)| now - was).collect();
            before.clone_from(&record.counters);
            rulings.push(TwinVerdict::Answered {
                outcome: record.outcome,
                counter_increases: counted,
                frame: None,
            });
        }
        let has_a_clock = self.program.code.contains(&Insn::call(Helper::KtimeNs));
        let specs = self.program.maps.iter().zip(&self.maps);
        let states = specs.filter(|(spec, _)| spec.state_of.is_some());
        let states = states.map(|(_, map)| map.get(0).unwrap()).collect();
        RecordedVerdicts { rulings: rulings.into_iter(), states: (!has_a_clock).then_some(states) }
    }
}

/// Attaches a program, ahead of all others, that puts a VLAN tag into the metadata of every frame
/// whose destination MAC address begins with four zero bytes, as a VLAN device does. The tag has
/// the protocol 0x8100 if the frame length is even, and 0x88a8 if it is odd.
pub(super) fn attach_tagger(device: &str, side: TrafficDirection) -> Link {
    /// The helper BPF_FUNC_skb_vlan_push.
    const SKB_VLAN_PUSH: i32 = 18;
    let mut a = Assembler::new();
    let (service, push, on) = (a.new_label(), a.new_label(), a.new_label());
    a.push(Insn::mov(R6, R1));
    a.push(Insn::mov(R2, 0));
    a.push(Insn::mov(R3, R10));
    a.push(Insn::alu(Alu::Add, R3, -8));
    a.push(Insn::mov(R4, 4));
    a.push(Insn::call(Helper::SkbLoadBytes));
    a.jump_if(Cond::Ne, R0, 0, on);
    a.push(Insn::load(Size::W, R2, R10, -8));
    a.jump_if(Cond::Ne, R2, 0, on);
    a.push(Insn::load(Size::W, R4, R6, 0));
    a.jump_if(Cond::Set, R4, 1, service);
    a.push(Insn::mov(R2, i32::from(0x8100_u16.to_be())));
    a.jump(push);
    a.bind(service);
    a.push(Insn::mov(R2, i32::from(0x88a8_u16.to_be())));
    a.bind(push);
    a.push(Insn::mov(R1, R6));
    a.push(Insn::mov(R3, 0xa00f));
    a.push(Insn { imm: SKB_VLAN_PUSH, ..Insn::call(Helper::CpuId) });
    a.bind(on);
    a.push(Insn::mov(R0, AttachPoint::Tcx(side).pass_verdict()));
    a.push(Insn::exit());
    let code = insn::encode(&a.finish().unwrap());
    let program = LoadParameters::new(program_kind(Hook::Tc), "tagger", &code).load();
    let program = program.unwrap_or_else(|why| panic!("{why}\n{}", why.log));
    let index = RouteSocket::open().unwrap().interface_by_name(device).unwrap().index;
    Link::attach_tcx(&program, index, side, ChainPosition::Head, None).unwrap()
}

/// A packet that the attached program has recorded, with the result of the twin.
pub(super) struct PacketRecord {
    pub(super) outcome: Outcome,
    /// Number of bytes that the program could read directly when it started: the linear data or, at
    /// XDP, the first buffer.
    pub(super) linear_length: usize,
    pub(super) tag: Option<Tag>,
    pub(super) counters: Vec<u64>,
    pub(super) frame: Vec<u8>,
}

impl PacketRecord {
    /// Returns the frame with its VLAN tag, if it has one, inline.
    pub(super) fn frame_with_tag(&self) -> Vec<u8> {
        let Some(tag) = self.tag else { return self.frame.clone() };
        let (addresses, rest) = self.frame.split_at(12);
        [addresses, &tag.protocol.to_be_bytes(), &tag.tci.to_be_bytes(), rest].concat()
    }

    /// Returns the packet in the form that the other implementations of a twin accept.
    pub(super) fn packet(&self) -> Packet<'_> {
        let packet = Packet { tag: self.tag, ..Packet::new(&self.frame) };
        packet.with_linear_length(self.linear_length)
    }
}

/// The verdicts of the attached program, in the order of its packets.
pub(super) struct RecordedVerdicts {
    rulings: std::vec::IntoIter<TwinVerdict>,
    states: Option<Vec<Vec<u8>>>,
}

impl TwinJudge for RecordedVerdicts {
    fn name(&self) -> &str {
        "attached program"
    }

    fn judge(&mut self, _: &Packet<'_>) -> TwinVerdict {
        self.rulings.next().expect("a ruling per packet")
    }

    fn filter_states(&mut self) -> Option<Vec<Vec<u8>>> {
        // The final state is known only after the last packet.
        self.rulings.as_slice().is_empty().then(|| self.states.clone()).flatten()
    }
}

/// Returns the program with code around it that records each packet. The map of records becomes the
/// last map.
fn instrument(program: &Program, point: AttachPoint) -> Program {
    let number = u32::try_from(program.maps.len()).unwrap();
    let mut code = recording_entry(number, point);
    let ends = code.len() + program.code.len();
    for insn in &program.code {
        let to_the_end = i16::try_from(ends - code.len() - 1).unwrap();
        code.push(if *insn == Insn::exit() { Insn::jump(to_the_end) } else { *insn });
    }
    code.extend(recording_exit(number, program.counters.len(), point));
    let mut maps = program.maps.clone();
    let value_size = records_map_offset::RECORDS as u32 + RECORDS_SIZE + 2 * FRAME_LENGTH_MAX;
    maps.push(MapSpec::array("witness", value_size));
    Program { code, maps, ..program.clone() }
}

/// Returns the code at the entry of a recording program. The code passes packets of other
/// processors without recording them, and stores the length of a packet's linear data.
fn recording_entry(map: u32, point: AttachPoint) -> Vec<Insn> {
    let (data, end) = if point == AttachPoint::Xdp { (0, 4) } else { (76, 80) };
    let mut code = vec![
        Insn::mov(R6, R1),
        Insn::call(Helper::CpuId),
        Insn::jump_if(Cond::Eq, R0, TEST_PROCESSOR as i32, 2),
        Insn::mov(R0, point.pass_verdict()),
        Insn::exit(),
        Insn::mov(R1, R6),
        Insn::load(Size::W, R2, R1, end),
        Insn::load(Size::W, R3, R1, data),
        Insn::alu(Alu::Sub, R2, R3),
    ];
    code.extend(Insn::load_map_value(R3, map, 0));
    code.push(Insn::store(Size::DW, R3, records_map_offset::LINEAR, R2));
    code
}

/// Returns the code that writes a packet's record at an exit of the program. In this code, register
/// r0 holds the class, and r6 the context.
fn recording_exit(map: u32, counters: usize, point: AttachPoint) -> Vec<Insn> {
    let mut a = Assembler::new();
    let (lost, on) = (a.new_label(), a.new_label());
    a.push(Insn::mov(R9, R0));
    a.push_wide(Insn::load_map_value(R7, map, 0));
    a.push(Insn::load(Size::DW, R8, R7, records_map_offset::POSITION));
    a.jump_if(Cond::Ge, R8, RECORDS_SIZE as i32, lost);
    // r7: the record, by an index whose bounds the verifier knows.
    a.push(Insn::alu(Alu::Add, R7, R8));
    emit_record_header(&mut a, map, point);
    for counter in 0..counters {
        a.push_wide(Insn::load_map_value(R1, 0, (counter * 8) as u32));
        a.push(Insn::load(Size::DW, R1, R1, 0));
        a.push(store_field(Size::DW, record_offset::COUNTERS + counter * 8, R1));
    }
    let head = (record_offset::COUNTERS + counters * 8) as i32;
    emit_frame_copy(&mut a, head, point, lost);
    a.push(Insn::load(Size::DW, R1, R10, -8));
    a.push(Insn::alu(Alu::Add, R1, head + 7));
    a.push(Insn::alu(Alu::And, R1, -8));
    a.push(Insn::alu(Alu::Add, R8, R1));
    a.push_wide(Insn::load_map_value(R1, map, 0));
    a.push(Insn::store(Size::DW, R1, records_map_offset::POSITION, R8));
    a.jump(on);
    a.bind(lost);
    a.push_wide(Insn::load_map_value(R1, map, 0));
    a.push(Insn::mov(R2, 1));
    a.push(Insn::atomic(Size::DW, insn::atomic::ADD, R1, records_map_offset::LOST, R2));
    a.bind(on);
    a.push(Insn::mov(R0, point.pass_verdict()));
    a.push(Insn::exit());
    a.finish().unwrap()
}

/// Emits code that writes the fields of a record that precede its counters. The code also stores
/// the frame's length at stack offset -8.
fn emit_record_header(a: &mut Assembler, map: u32, point: AttachPoint) {
    a.push(store_field(Size::W, record_offset::CLASS, R9));
    a.push_wide(Insn::load_map_value(R1, map, 0));
    a.push(Insn::load(Size::DW, R1, R1, records_map_offset::LINEAR));
    a.push(store_field(Size::W, record_offset::LINEAR, R1));
    if point == AttachPoint::Xdp {
        a.push(Insn::mov(R1, R6));
        a.push(Insn::call(Helper::XdpBuffLen));
    } else {
        a.push(Insn::load(Size::W, R0, R6, 0));
        for (from, to) in
            [(20, record_offset::TAGGED), (24, record_offset::TCI), (28, record_offset::PROTOCOL)]
        {
            a.push(Insn::load(Size::W, R1, R6, from));
            a.push(store_field(Size::W, to, R1));
        }
    }
    a.push(store_field(Size::W, record_offset::LENGTH, R0));
    a.push(Insn::store(Size::DW, R10, -8, R0));
}

/// Emits code that copies all bytes of the frame into its record.
fn emit_frame_copy(a: &mut Assembler, head: i32, point: AttachPoint, lost: Label) {
    a.push(Insn::load(Size::DW, R4, R10, -8));
    a.jump_if(Cond::Gt, R4, FRAME_LENGTH_MAX as i32, lost);
    a.jump_if(Cond::Lt, R4, 1, lost);
    a.push(Insn::mov(R1, R6));
    a.push(Insn::mov(R2, 0));
    a.push(Insn::mov(R3, R7));
    a.push(Insn::alu(Alu::Add, R3, i32::from(records_map_offset::RECORDS) + head));
    let xdp = point == AttachPoint::Xdp;
    a.push(Insn::call(if xdp { Helper::XdpLoadBytes } else { Helper::SkbLoadBytes }));
    a.jump_if(Cond::Ne, R0, 0, lost);
}

/// Returns the instruction that stores a field of the record at r7.
fn store_field(size: Size, at: usize, from: insn::Reg) -> Insn {
    Insn::store(size, R7, records_map_offset::RECORDS + at as i16, from)
}
