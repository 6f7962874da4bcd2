//! Tests of the emitter: code run by the interpreter, and requests that must be rejected.

use super::*;
use crate::interpret::{Machine, Packet};
use crate::program::Hook;

const FRAME: &[u8] = &[0x00, 0x01, 0x02, 0x03, 0x14, 0x25, 0x36, 0x47, 0x58, 0x69];
const HOOKS: [Hook; 3] = [Hook::Tc, Hook::Xdp, Hook::Socket];

type Body =
    for<'p> fn(&mut Scope<'p, 'static>, Layers<'p>, Exit<'p>) -> Result<Answer<'p>, UnfitReason>;

fn run_body(hook: Hook, body: Body, frame: &[u8]) -> (Outcome, Vec<u64>) {
    let program = program(hook, ReturnConversion::Answer, body).unwrap();
    let mut machine = Machine::for_program(&program);
    let value = machine.run(&program.code, hook, &Packet::new(frame)).unwrap();
    let counters =
        machine.maps.first().map(|map| crate::exam::decode_counters(map)).unwrap_or_default();
    (Outcome::decode(value as u32), counters)
}

fn assert_outcome_at_every_hook(body: Body, expected: Outcome) {
    for hook in HOOKS {
        assert_eq!(run_body(hook, body, FRAME).0, expected, "{hook:?}");
    }
}

#[test]
fn loads_and_arithmetic_compute_the_class() {
    assert_outcome_at_every_hook(
        |s, on, out| {
            let at = s.advance(on.at, 2);
            let window = s.need::<6>(at, out);
            let wide = s.load(window, be32::<0>());
            let high = s.shr(wide, 16);
            let low = s.and(wide, 0xffff);
            let sum = s.add(high, low);
            let half = s.load(window, be16::<4>());
            let difference = s.sub(sum, half);
            let shifted = s.shl(difference, 4);
            let single = s.load(window, byte::<5>());
            Ok(Answer::new(s.or(shifted, single), on))
        },
        // (0x0203 + 0x1425 - 0x3647) << 4 | 0x47
        Outcome::Class(0xfffd_fe10 | 0x47),
    );
}

#[test]
fn computed_positions_are_bounded() {
    // Byte 3 is the distance: 3 bytes from byte 4.
    let body: Body = |s, on, out| {
        let window = s.need::<4>(on.at, out);
        let by = s.load(window, byte::<3>());
        let behind = s.advance(on.at, 4);
        let at = s.advance_by(behind, by, 5, out);
        let window = s.need::<2>(at, out);
        Ok(Answer::new(s.load(window, be16::<0>()), on))
    };
    assert_outcome_at_every_hook(body, Outcome::Class(0x4758));
    for hook in HOOKS {
        assert_eq!(run_body(hook, body, &FRAME[..8]).0, Outcome::Class(0), "cut at {hook:?}");
        assert_eq!(
            run_body(hook, body, &[0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0]).0,
            Outcome::Class(0)
        );
        assert_eq!(
            run_body(hook, body, &[0, 0, 0, 5, 0, 0, 0, 0, 0, 1, 2]).0,
            Outcome::Class(0x102)
        );
    }
}

#[test]
fn arms_join_through_variables_only() {
    let body: Body = |s, on, out| {
        let window = s.need::<1>(on.at, out);
        let first = s.load(window, byte::<0>());
        let (class, at) = (s.var(1), s.position_var(on.at));
        s.arm(|t, not_two| {
            t.only(first, Cmp::Eq, 2, not_two);
            t.set(class, 20);
            let further = t.advance(on.at, 1);
            t.set_position(at, further);
        });
        let (class, at) = (s.get(class), s.get_position(at));
        let window = s.need::<1>(at, out);
        let second = s.load(window, byte::<0>());
        Ok(Answer::new(s.add(class, second), on))
    };
    for hook in HOOKS {
        assert_eq!(run_body(hook, body, &[2, 9]).0, Outcome::Class(29), "{hook:?}");
        assert_eq!(run_body(hook, body, &[3, 9]).0, Outcome::Class(4), "{hook:?}");
        assert_eq!(run_body(hook, body, &[2]).0, Outcome::Class(0), "{hook:?}");
    }
}

#[test]
fn comparisons_use_all_32_bits() {
    let cases: [(Cmp, u32, [u32; 3]); 8] = [
        (Cmp::Eq, 0x8000_0000, [0, 1, 0]),
        (Cmp::Ne, 0x8000_0000, [1, 0, 1]),
        (Cmp::Lt, 0x8000_0000, [1, 0, 0]),
        (Cmp::Le, 0x8000_0000, [1, 1, 0]),
        (Cmp::Gt, 0x8000_0000, [0, 0, 1]),
        (Cmp::Ge, 0x8000_0000, [0, 1, 1]),
        (Cmp::Any, 0x8000_0000, [0, 1, 1]),
        (Cmp::NotAny, 0x8000_0000, [1, 0, 0]),
    ];
    for (cmp, right, expected) in cases {
        let program = program(Hook::Xdp, ReturnConversion::Answer, |s, on, out| {
            let window = s.need::<4>(on.at, out);
            let left = s.load(window, be32::<0>());
            s.only(left, cmp, right, out);
            Ok(Answer::new(1, on))
        })
        .unwrap();
        for (left, expected) in
            [0x7fff_ffff_u32, 0x8000_0000, 0x8000_0001].into_iter().zip(expected)
        {
            let frame = left.to_be_bytes();
            let answer =
                Machine::for_program(&program).run(&program.code, Hook::Xdp, &Packet::new(&frame));
            assert_eq!(answer, Ok(expected.into()), "{left:#x} {cmp:?} {right:#x}");
        }
    }
}

#[test]
fn class_range_selects_the_arc() {
    let body: Body = |s, on, out| {
        let window = s.need::<1>(on.at, out);
        let class = s.load(window, byte::<0>());
        s.only_in_range(class.into(), 22, 23, out);
        s.only_in_range(Value::Const(5), 5, 9, out);
        Ok(Answer::new(class, on))
    };
    for (first, expected) in [(21, 0), (22, 22), (23, 23), (24, 0)] {
        assert_eq!(run_body(Hook::Tc, body, &[first]).0, Outcome::Class(expected));
    }
    let never: Body = |s, on, out| {
        s.only_in_range(Value::Const(4), 5, 9, out);
        Ok(Answer::new(1, on))
    };
    assert_outcome_at_every_hook(never, Outcome::Class(NO_ANSWER_CLASS));
}

#[test]
fn absent_exit_counts_and_natural_zero_is_a_class() {
    let body: Body = |s, on, out| {
        let empty = s.absent("empty", out);
        let window = s.need::<1>(on.at, empty);
        s.count("seen");
        let class = s.load(window, byte::<0>());
        let unsure = s.unsure();
        s.only(class, Cmp::Ne, 9, unsure);
        Ok(Answer::new(s.natural_class(class), on))
    };
    for hook in HOOKS {
        assert_eq!(run_body(hook, body, &[]), (Outcome::Class(NO_ANSWER_CLASS), vec![1, 0]));
        assert_eq!(run_body(hook, body, &[7]), (Outcome::Class(7), vec![0, 1]));
        assert_eq!(run_body(hook, body, &[0]), (Outcome::Class(NATURAL_ZERO_CLASS), vec![0, 1]));
        assert_eq!(run_body(hook, body, &[9]), (Outcome::Unsure, vec![0, 1]));
    }
}

#[test]
fn dynamic_windows_are_checked_while_emitting() {
    let body: Body = |s, on, out| {
        let span = s.need_dyn(on.at, 4, out)?;
        Ok(Answer::new(s.load_dyn::<u16>(span, 2)?, on))
    };
    assert_outcome_at_every_hook(body, Outcome::Class(0x0203));
    let past = program(Hook::Tc, ReturnConversion::Answer, |s, on, out| {
        let span = s.need_dyn(on.at, 4, out)?;
        Ok(Answer::new(s.load_dyn::<u16>(span, 3)?, on))
    });
    assert!(past.unwrap_err().why.contains("past the bytes"));
    let dropped = program(Hook::Tc, ReturnConversion::Answer, |s, on, out| {
        s.need_dyn(on.at, 513, out).ok();
        Ok(Answer::new(1, on))
    });
    assert!(dropped.unwrap_err().why.contains("more than 512"), "a dropped refusal stays one");
}

#[test]
fn metadata_is_loaded_at_every_hook() {
    let length: Body = |s, on, _| Ok(Answer::new(s.load_metadata(MetadataField::Length), on));
    assert_outcome_at_every_hook(length, Outcome::Class(10));
}

#[test]
fn program_with_exhausted_stack_is_unfit() {
    let many = |count: u32| {
        program(Hook::Tc, ReturnConversion::Answer, |s, on, _| {
            let first = s.constant(1);
            let sum = (1..count).fold(first, |sum, number| s.add(sum, number));
            Ok(Answer::new(sum, on))
        })
    };
    assert!(many(64).is_ok());
    let unfit = many(65).unwrap_err();
    assert_eq!(
        unfit.to_string(),
        "cannot run in the kernel: its values need more than 512 bytes of stack"
    );
}

/// Emits so many twins that they fit into one program only if each of them releases its stack
/// slots.
#[test]
fn twins_release_their_stack_slots() {
    fn use_stack<'s>(
        _: &(),
        s: &mut Scope<'s, '_>,
        on: Layers<'s>,
        _: Exit<'s>,
    ) -> Result<Answer<'s>, UnfitReason> {
        let first = s.constant(0);
        let sum = (1..=40).fold(first, |sum, number| s.add(sum, number));
        let kept = s.add(sum, on.next.map_or(Value::Const(0), Value::Num));
        Ok(Answer::new(kept, Layers { next: Some(kept), ..on }))
    }
    assert_outcome_at_every_hook(
        |s, on, out| {
            let mut answer = Answer::new(0, on);
            for at in 0..20 {
                let word = crate::FilterSpan::new("use_stack", at, 1);
                answer = s.emit_twin(word, use_stack, &(), answer.layers, out)?;
            }
            Ok(answer)
        },
        Outcome::Class(820 * 20),
    );
}

#[test]
fn packet_offset_beyond_64_kib_is_unfit() {
    let far = |steps: u32| {
        program(Hook::Xdp, ReturnConversion::Answer, |s, on, out| {
            let mut at = on.at;
            for _ in 0..steps {
                let window = s.need::<1>(at, out);
                let by = s.load(window, byte::<0>());
                at = s.advance_by(at, by, 10_000, out);
            }
            Ok(Answer::new(1, on))
        })
    };
    assert_eq!(far(6).map(|program| program.read_end), Ok(50_001));
    assert!(far(7).unwrap_err().why.contains("65,535"));
}

/// Checks that code emitted after `leave` is dropped, because the verifier rejects unreachable
/// code.
#[test]
fn code_after_exit_is_dropped() {
    let program = program(Hook::Xdp, ReturnConversion::Answer, |s, on, out| {
        s.leave(out);
        let window = s.need::<4>(on.at, out);
        Ok(Answer::new(s.load(window, be32::<0>()), on))
    })
    .unwrap();
    let text = crate::disasm::list_program(&program);
    assert_eq!(program.code.len(), 6, "{text}");
}

/// Emits code that sets the second byte of the frame to 9 and removes the first.
fn edit_frame<'s>(
    s: &mut Scope<'s, '_>,
    on: Layers<'s>,
    out: Exit<'s>,
) -> Result<Answer<'s>, UnfitReason> {
    s.need::<8>(on.at, out);
    s.make_writable(FrameOffset::from_start(2));
    s.put::<u8>(FrameOffset::from_start(1), 9);
    s.remove_bytes_before(FrameOffset::from_start(1));
    let at = s.position_at(FrameOffset::from_start(0));
    let window = s.need::<2>(at, out);
    Ok(Answer::new(s.load(window, be16::<0>()), Layers { frame: at, at, ..on }))
}

#[test]
fn i6_taken_frames_are_edited() {
    for target in [Target::from(Hook::Xdp), Target::without_perfmon(Hook::Xdp)] {
        let program = program(target.redirecting(), ReturnConversion::Answer, edit_frame).unwrap();
        assert!(program.edits_frames);
        let frame: Vec<u8> = (0..20).collect();
        let mut machine = Machine::for_program(&program);
        let value = machine.run(&program.code, Hook::Xdp, &Packet::new(&frame));
        assert_eq!(value, Ok(0x0902));
        assert_eq!(machine.frame.as_deref(), Some(&[&[9, 2, 3][..], &frame[4..]].concat()[..]));
        let short = machine.run(&program.code, Hook::Xdp, &Packet::new(&frame[..14]));
        assert_eq!(short, Ok(UNSURE_RETURN_VALUE.into()), "the kernel leaves 14 bytes");
    }
}

#[test]
fn i6_observed_frames_stay_unchanged() {
    let why =
        |target: Target| program(target, ReturnConversion::Answer, edit_frame).unwrap_err().why;
    assert!(why(Hook::Xdp.into()).contains("only observed"));
    assert!(why(Hook::Tc.into()).contains("only observed"));
    assert!(why(Target::from(Hook::Socket).redirecting()).contains("socket filter"));
    assert!(why(Target::from(Hook::Tc).redirecting()).contains("link header"));
}

#[test]
fn i6_positions_from_before_an_edit_are_rejected() {
    let uses: [Body; 3] = [
        |s, on, out| {
            let window = s.need::<2>(on.at, out);
            s.put::<u8>(FrameOffset::from_start(0), 1);
            Ok(Answer::new(s.load(window, byte::<1>()), on))
        },
        |s, on, out| {
            let window = s.need::<2>(on.at, out);
            let by = s.load(window, byte::<0>());
            let at = s.advance_by(on.at, by, 20, out);
            s.put::<u8>(FrameOffset::from_start(0), 1);
            let window = s.need::<2>(at, out);
            Ok(Answer::new(s.load(window, byte::<1>()), on))
        },
        |s, on, out| {
            let kept = s.position_var(on.at);
            s.arm(|t, _| t.put::<u8>(FrameOffset::from_start(0), 1));
            let at = s.get_position(kept);
            s.need::<2>(at, out);
            Ok(Answer::new(1, on))
        },
    ];
    for body in uses {
        for hook in [Hook::Tc, Hook::Xdp] {
            let unfit = program(Target::from(hook).redirecting(), ReturnConversion::Answer, body)
                .unwrap_err();
            assert!(unfit.why.contains("before the frame was changed"), "{unfit}");
        }
    }
}

/// Emits a chain that is too long for one program, in which each part continues with the answer of
/// the previous part.
#[test]
fn i6_long_chain_continues_in_tail_programs() {
    fn add_to_class<'s>(
        _: &(),
        s: &mut Scope<'s, '_>,
        on: Layers<'s>,
        _: Exit<'s>,
    ) -> Result<Answer<'s>, UnfitReason> {
        let first = s.constant(0);
        let sum = (0..200).fold(first, |sum, _| {
            s.arm(|t, _| {
                let one = t.constant(1);
                let _ = t.add(one, 1);
                sum
            })
        });
        let sum = s.add(sum, on.class);
        Ok(Answer::new(s.add(sum, 1), on))
    }
    let body: Body = |s, on, out| {
        let mut answer = Answer::new(1, on);
        for at in 0..30 {
            answer = s.end_part_if_long(answer);
            answer = s.emit_twin(
                crate::FilterSpan::new("adds", at, 1),
                add_to_class,
                &(),
                answer.layers,
                out,
            )?;
        }
        Ok(answer)
    };
    for hook in HOOKS {
        let program = program(hook, ReturnConversion::Answer, body).unwrap();
        assert!(program.tails.len() > 1, "{} parts", program.tails.len());
        assert_eq!(
            program.maps.iter().map(|map| map.programs as usize).sum::<usize>(),
            program.tails.len()
        );
        let mut machine = Machine::for_program(&program);
        assert_eq!(machine.run(&program.code, hook, &Packet::new(FRAME)), Ok(31));
        machine.parts.pop();
        let broken = machine.run(&program.code, hook, &Packet::new(FRAME));
        assert_eq!(broken, Ok(UNSURE_RETURN_VALUE.into()), "a part that is not there");
    }
}

/// Uses the test vectors of the reference implementation: the key is the bytes 00 to 0f, and a
/// message is the first bytes of 00 01 02 and so on.
#[test]
fn siphash_matches_reference_vectors() {
    const SIPHASH_VECTORS: [(u64, u64); 3] =
        [(0, 0x726f_db47_dd0e_0e31), (8, 0x93f5_f579_9a93_2462), (15, 0xa129_ca61_49be_45e5)];
    const KEY: [u64; 2] = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
    for (bytes, expected) in SIPHASH_VECTORS {
        let program = program(Hook::Xdp, ReturnConversion::Answer, |s, on, out| {
            let sip = s.begin_siphash(KEY);
            if bytes >= 8 {
                let word = s.wide_constant(0x0001_0203_0405_0607);
                s.absorb_siphash_word(sip, word);
            }
            let rest = if bytes == 15 { 0x0809_0a0b_0c0d_0e00 } else { 0 };
            let last = s.wide_constant(rest | bytes);
            let tag = s.finish_siphash(sip, last);
            let expected = s.wide_constant(expected.swap_bytes());
            s.only_if_wide(tag, Cmp::Eq, expected, out);
            Ok(Answer::new(1, on))
        });
        let program = program.unwrap();
        let value =
            Machine::for_program(&program).run(&program.code, Hook::Xdp, &Packet::new(FRAME));
        assert_eq!(value.unwrap(), 1, "{bytes} bytes");
    }
}
