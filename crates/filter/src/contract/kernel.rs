//! Chains of twins as one program of the kernel.
//!
//! In: descriptions with their arguments. Out: plain data for whoever plans; nothing is loaded.
//! [SL §5.3, §7.1]

use super::{Arguments, Description};
use crate::endpoint::Attach;
use ebpf::emit::{self, Answer, Emit, Finish, Layers, Scope, Target, Unfit};
use ebpf::{FilterSpan, Hook, Program};

/// The twin of what does nothing with a block but let it by, or end it: a sink that forgets.
pub const PLAIN: Emit<Arguments> = plain;

fn plain<'s>(
    _: &Arguments,
    _: &mut Scope<'s, '_>,
    on: Layers<'s>,
    _: emit::Exit<'s>,
) -> Result<Answer<'s>, Unfit> {
    Ok(Answer::new(on.class, on))
}

/// Returns the target for a program attached there: traffic control if it observes, XDP if it
/// takes, control groups if it is about sockets. `hardened` is for programs that are loaded without
/// CAP_PERFMON.
#[must_use]
pub const fn target(attach: &Attach, hardened: bool) -> Target {
    let place = match attach {
        Attach { own: true, .. } => Hook::Cgroup,
        Attach { takes: true, .. } => Hook::Xdp,
        _ => Hook::Tc,
    };
    // What asks a helper for every byte is the same with more rights.
    let hardened = hardened || attach.own;
    Target { hook: place, hardened, takes: attach.takes, single: false }
}

/// Checks that a chain of filters, the first of which sees whole frames, can be a program there;
/// fails with the filter's place in the chain and the reason.
pub fn expressible(
    chain: &[(&Description, &Arguments)],
    target: Target,
) -> Result<(), (usize, String)> {
    joined(chain, target).map(drop)
}

/// A chain of filters as one program, which answers the class; or the place of the filter that
/// cannot be part of it, and why.
pub fn joined(
    chain: &[(&Description, &Arguments)],
    target: Target,
) -> Result<Program, (usize, String)> {
    let mut at = 0;
    let made = emit::program(target, Finish::Answer, |s, on, out| {
        let mut answer = Answer::new(emit::NONE, on);
        for (place, (description, arguments)) in chain.iter().enumerate() {
            at = place;
            let twin = description.kernel.ok_or_else(|| Unfit::new("no twin"))?;
            let word = FilterSpan::new(description.name, place, 1);
            answer = s.piece(word, twin, arguments, answer.layers, out)?;
        }
        Ok(answer)
    });
    made.map_err(|unfit| (at, unfit.why.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::FILTERS;

    fn named(name: &str) -> &'static Description {
        FILTERS.iter().find(|d| d.name == name).unwrap()
    }

    #[test]
    fn a_chain_is_refused_at_the_filter_that_has_no_twin_or_none_there() {
        let given = |name: &str| (named(name), Arguments::defaults(named(name)));
        let fits = |names: &[&str]| {
            let chain: Vec<_> = names.iter().map(|name| given(name)).collect();
            let chain: Vec<_> = chain.iter().map(|(d, a)| (*d, a)).collect();
            let attach = |takes: bool, own: bool| Attach { takes, own, ..Attach::observing("x") };
            let places = [attach(false, false), attach(true, false), attach(false, true)];
            let targets = places.iter().flat_map(|at| [target(at, false), target(at, true)]);
            targets.map(|target| expressible(&chain, target)).collect::<Vec<_>>()
        };
        assert!(fits(&["ip", "udp", "dport", "count"]).iter().all(Result::is_ok));
        assert!(fits(&[]).iter().all(Result::is_ok));
        for refused in fits(&["ip", "tcp", "count"]) {
            assert_eq!(refused, Err((1, "no twin".to_owned())));
        }
    }
}
