//! Generator of one eBPF program for a chain of twins. [SL §5.3, §7.1]
//!
//! Input: catalog entries with arguments. Output: a program as plain data, which the caller loads
//! into the kernel.

use super::{Arguments, Description};
use crate::endpoint::AttachTarget;
use ebpf::emit::{self, Answer, EmitFn, Layers, ReturnConversion, Scope, Target, UnfitReason};
use ebpf::{FilterSpan, Hook, Program};

/// The twin of a sink that only counts blocks. The twin passes all blocks with their class.
pub const PASS_THROUGH_TWIN: EmitFn<Arguments> = emit_pass_through;

fn emit_pass_through<'s>(
    _: &Arguments,
    _: &mut Scope<'s, '_>,
    on: Layers<'s>,
    _: emit::Exit<'s>,
) -> Result<Answer<'s>, UnfitReason> {
    Ok(Answer::new(on.class, on))
}

/// Returns the target for a program that runs at this attach point: a cgroup program for the
/// sockets of the request's user, an XDP program if frames are redirected, and otherwise a tc
/// program. If `hardened` is true, the program uses only instructions that are allowed without
/// CAP_PERFMON.
#[must_use]
pub const fn program_target(attach: &AttachTarget, hardened: bool) -> Target {
    let place = match attach {
        AttachTarget { own_sockets: true, .. } => Hook::Cgroup,
        AttachTarget { redirects: true, .. } => Hook::Xdp,
        _ => Hook::Tc,
    };
    // A cgroup program reads packet bytes through a helper, which needs no CAP_PERFMON.
    let hardened = hardened || attach.own_sockets;
    Target { hook: place, hardened, redirects: attach.redirects, single_buffer: false }
}

/// Checks that a chain of filters, whose input is complete frames, can be compiled to a program for
/// this target.
///
/// # Errors
///
/// Fails in the same cases as [`emit_chain_program`].
pub fn check_twin_chain(
    chain: &[(&Description, &Arguments)],
    target: Target,
) -> Result<(), (usize, String)> {
    emit_chain_program(chain, target).map(drop)
}

/// Emits one program for a chain of filters. The program returns the class of the last filter.
///
/// # Errors
///
/// Fails with the index of the first filter that has no twin for these arguments, and the reason.
pub fn emit_chain_program(
    chain: &[(&Description, &Arguments)],
    target: Target,
) -> Result<Program, (usize, String)> {
    let mut at = 0;
    let made = emit::program(target, ReturnConversion::Answer, |s, on, out| {
        let mut answer = Answer::new(emit::NO_ANSWER_CLASS, on);
        for (place, (description, arguments)) in chain.iter().enumerate() {
            at = place;
            let twin = description.emit_twin.ok_or_else(|| UnfitReason::new("no twin"))?;
            let word = FilterSpan::new(description.name, place, 1);
            answer = s.emit_twin(word, twin, arguments, answer.layers, out)?;
        }
        Ok(answer)
    });
    made.map_err(|unfit| (at, unfit.why.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::FILTERS;

    fn find_description(name: &str) -> &'static Description {
        FILTERS.iter().find(|d| d.name == name).unwrap()
    }

    #[test]
    fn chain_fails_at_the_filter_without_a_twin() {
        let given = |name: &str| {
            (
                find_description(name),
                Arguments::from_parameter_defaults(find_description(name).parameters),
            )
        };
        let fits = |names: &[&str]| {
            let chain: Vec<_> = names.iter().map(|name| given(name)).collect();
            let chain: Vec<_> = chain.iter().map(|(d, a)| (*d, a)).collect();
            let attach = |takes: bool, own: bool| AttachTarget {
                redirects: takes,
                own_sockets: own,
                ..AttachTarget::observing("x")
            };
            let places = [attach(false, false), attach(true, false), attach(false, true)];
            let targets =
                places.iter().flat_map(|at| [program_target(at, false), program_target(at, true)]);
            targets.map(|target| check_twin_chain(&chain, target)).collect::<Vec<_>>()
        };
        assert!(fits(&["ip", "udp", "dport", "count"]).iter().all(Result::is_ok));
        assert!(fits(&[]).iter().all(Result::is_ok));
        for refused in fits(&["ip", "tcp", "count"]) {
            assert_eq!(refused, Err((1, "no twin".to_owned())));
        }
    }
}
