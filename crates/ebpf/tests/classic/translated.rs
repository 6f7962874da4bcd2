//! Translation of classic programs to eBPF for tests, and test frames: captured, truncated, and
//! generated to take a program's branches, in every form in which the kernel may hold a frame.

#![allow(dead_code, reason = "each test binary uses some of the helpers")]

use ebpf::classic::{ClassicMetadata, ClassicProgram};
use ebpf::emit::{self, Answer, Outcome, ReturnConversion, Target, UnfitReason};
use ebpf::exam::{TwinJudge, TwinVerdict};
use ebpf::interpret::Packet;
use ebpf::{FilterSpan, Hook};

use super::frames::{Frame, Random, random_frame, steer_frame, truncate_randomly};
use super::programs::insert_tags;

/// Targets for which the tests translate classic programs: every hook except cgroups, and TC and
/// XDP a second time without CAP_PERFMON, where programs have no packet pointers.
pub(crate) const TARGETS: [Target; 5] = [
    Target { hook: Hook::Tc, hardened: false, redirects: false, single_buffer: false },
    Target { hook: Hook::Xdp, hardened: false, redirects: false, single_buffer: false },
    Target { hook: Hook::Socket, hardened: false, redirects: false, single_buffer: false },
    Target::without_perfmon(Hook::Tc),
    Target::without_perfmon(Hook::Xdp),
];

/// Emits an eBPF program from a classic program, as a twin that answers 1 for accepted frames.
pub(crate) fn emit_classic(
    program: &ClassicProgram,
    target: Target,
) -> Result<ebpf::Program, UnfitReason> {
    emit::program(target, ReturnConversion::Answer, |s, on, out| {
        let twin: emit::EmitFn<ClassicProgram> = |program, s, on, out| {
            let no_match = s.absent("no match", out);
            s.only_accepted_by_classic(program, no_match)?;
            Ok(Answer::new(1, on))
        };
        s.emit_twin(FilterSpan::new("bpf", 0, 3), twin, program, on, out)
    })
}

/// A judge that runs a classic program itself, as the reference for the program's eBPF translation.
/// The frames are in the form in which this hook sees them.
pub(crate) struct ClassicJudge<'p>(pub(crate) &'p ClassicProgram, pub(crate) Hook);

impl TwinJudge for ClassicJudge<'_> {
    fn name(&self) -> &str {
        "classic"
    }

    fn judge(&mut self, packet: &Packet<'_>) -> TwinVerdict {
        let mut frame = packet.bytes.to_vec();
        if let (Some(tag), true, false) = (packet.tag, frame.len() >= 12, self.1 == Hook::Xdp) {
            let put = [tag.protocol.to_be_bytes(), tag.tci.to_be_bytes()].concat();
            frame.splice(12..12, put);
        }
        let length = frame.len() as u32;
        let accepts = self.0.run(&frame, length, &ClassicMetadata::EMPTY) != 0;
        let outcome = Outcome::Class(accepts.into());
        TwinVerdict::Answered { outcome, counter_increases: vec![(!accepts).into()], frame: None }
    }
}

/// Returns test frames for a program, made from captured and random frames in `count` rounds.
pub(crate) fn captured_and_random_frames(
    program: &ClassicProgram,
    captured: &[Frame],
    count: usize,
    random: &mut Random,
) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for round in 0..count {
        let mut frame = match captured.len() {
            0 => random_frame(random),
            _ if random.one_in(3) => random_frame(random),
            length => captured[random.number_below(length)].clone(),
        };
        if random.one_in(3) {
            insert_tags(&mut frame, random);
        }
        frame.wire_length = frame.bytes.len() as u32;
        if round % 8 != 0 {
            steer_frame(program, &mut frame, &mut ClassicMetadata::default(), random);
        }
        if random.one_in(6) {
            truncate_randomly(&mut frame, random);
        }
        if round == 1 {
            let length = frame.bytes.len().min(100);
            frames.extend((0..length).map(|length| frame.bytes[..length].to_vec()));
        }
        frames.push(frame.bytes);
    }
    frames
}

/// Returns a frame in linear and in nonlinear form. If the frame has at least 14 bytes, also
/// returns each form with a VLAN tag in its metadata.
pub(crate) fn frame_forms<'f>(frame: &'f [u8], random: &mut Random) -> Vec<Packet<'f>> {
    let whole = Packet::new(frame);
    let pieces = whole.with_linear_length(random.number_below(frame.len().min(80) + 1));
    let mut forms = vec![whole, pieces];
    if frame.len() >= 14 {
        let kind = [0x8100, 0x88a8][random.number_below(2)];
        forms.push(whole.with_tag(random.word() as u16, kind));
        forms.push(pieces.with_tag(100, kind));
    }
    forms
}
