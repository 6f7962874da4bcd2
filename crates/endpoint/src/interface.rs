//! Lookup of network interfaces and namespaces by name, and failures of the lookup.

use crate::Failure;
use crate::failure::reason_text;
use filter::{Arguments, Description};
use sys::machine::Capabilities;
use sys::net::{Interface, Namespace, RouteSocket};
use wire::link::LinkType;

/// Number of frames that a source received before its interface was removed. The failure message
/// reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FrameCount {
    /// Number of all frames that the source received.
    All(u64),
    /// Number of frames that passed the kernel's filter. Frames that the filter rejected are not
    /// counted.
    Passed(u64),
    /// The number of frames is unknown, because the process that counted them has exited.
    Unknown,
}

/// Creates the failure that a source reports when its interface has been removed.
pub(crate) fn interface_removed_failure(
    call: &'static str,
    name: &str,
    counts: FrameCount,
) -> Failure {
    let after = |frames: u64| match frames {
        1 => "after 1 frame".to_owned(),
        frames => format!("after {frames} frames"),
    };
    let why = match counts {
        FrameCount::All(frames) => format!("the interface was removed {}", after(frames)),
        FrameCount::Passed(frames) => {
            format!("the interface was removed {} that passed the kernel's filter", after(frames))
        }
        FrameCount::Unknown => "the interface was removed".to_owned(),
    };
    Failure::new(call, name, why)
        .with_hint("all frames before that were processed; start again when the interface is back")
}

/// Runs `work` in the named network namespace, or in this thread's namespace if `netns` is `None`.
/// Fails if the namespace cannot be opened or entered, or if `work` fails.
pub(crate) fn run_in_namespace<T: Send>(
    netns: Option<&str>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let Some(netns) = netns else { return work() };
    let enter = |error| {
        let failure = socket_failure("enter", &format!("namespace {netns}"), &error);
        let hint = "`ip netns list` shows those with a name; a path or a process id also works";
        match failure.missing_capability {
            Some(_) => Failure { missing_capability: Some(Capabilities::SYS_ADMIN), ..failure },
            None => failure.with_hint(hint),
        }
    };
    let space = Namespace::open(netns).map_err(enter)?;
    sys::net::run_in_namespace(&space, work).map_err(enter)?
}

/// Returns the interface with this name or alternative name in the network namespace of this
/// thread, and the link type of its frames. Fails if there is no such interface, or if its link
/// type is unknown.
pub(crate) fn find_interface_by_name(
    call: &'static str,
    name: &str,
) -> Result<(Interface, LinkType), Failure> {
    let all = RouteSocket::open().and_then(|links| links.list_interfaces());
    let all = all.map_err(|error| socket_failure(call, name, &error))?;
    let called = |interface: &&Interface| {
        interface.name == name || interface.alternative.iter().any(|other| other == name)
    };
    let Some(found) = all.iter().find(called) else {
        let names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
        let why = "there is no such interface in this namespace";
        return Err(
            Failure::new(call, name, why).with_hint(format!("there are {}", names.join(", ")))
        );
    };
    pair_with_link_type(call, found)
}

/// Returns the only interface that is up in the network namespace of this thread, and the link type
/// of its frames. Ignores the loopback interface. Fails if no interface or several are up.
pub(crate) fn find_only_interface(call: &'static str) -> Result<(Interface, LinkType), Failure> {
    const FAILURE_TARGET: &str = "an interface";
    let all = RouteSocket::open().and_then(|links| links.list_interfaces());
    let all = all.map_err(|error| socket_failure(call, FAILURE_TARGET, &error))?;
    let is_up = |interface: &&Interface| interface.flags.is_up() && !interface.flags.is_loopback();
    let up: Vec<&Interface> = all.iter().filter(is_up).collect();
    match up.as_slice() {
        [one] => pair_with_link_type(call, one),
        [] => {
            let why = "none is up in this namespace, apart from the loopback interface";
            Err(Failure::new(call, FAILURE_TARGET, why).with_hint("name the interface"))
        }
        several => {
            let names: Vec<&str> = several.iter().map(|one| one.name.as_str()).collect();
            let why = format!("several are up: {}", names.join(", "));
            Err(Failure::new(call, FAILURE_TARGET, why).with_hint("name one of them"))
        }
    }
}

/// Returns an interface together with the link type of its frames. Fails if this link type is
/// unknown.
fn pair_with_link_type(
    call: &'static str,
    found: &Interface,
) -> Result<(Interface, LinkType), Failure> {
    match filter::general::bpf::link_type(found.hatype) {
        Some(link) => Ok((found.clone(), link)),
        None => {
            let why = format!("frames of its type (ARPHRD {}) are not supported", found.hatype);
            Err(Failure::new(call, &found.name, why))
        }
    }
}

/// Returns a note if the interface with index `index` is no longer called `name`. Returns `None` if
/// the interface still has this name or alternative name, or if it cannot be looked up.
pub(crate) fn renaming_note(links: &RouteSocket, index: u32, name: &str) -> Option<String> {
    let now = links.interface_by_index(index).ok()?;
    let same = now.name == name || now.alternative.iter().any(|other| other == name);
    (!same).then(|| format!("{name} is now called {}", now.name))
}

/// Returns the reason why `rx` or `tx` with these arguments captures only one direction of
/// connections: its interface has an address of this host. Returns `None` if the interface has no
/// address, as a mirror port, which receives both directions. Also returns `None` for other
/// sources, for the loopback interface, with `both=yes` or `own=yes`, and if the addresses cannot
/// be read.
#[must_use]
pub fn one_way_capture_reason(source: &Description, arguments: &Arguments) -> Option<String> {
    let side = match source.name {
        "rx" if !arguments.flag("both") && !arguments.flag("own") => "comes in",
        "tx" => "goes out",
        _ => return None,
    };
    let interface = arguments.text("interface");
    let found = run_in_namespace(arguments.text("netns"), || {
        let of_links = |links: RouteSocket| {
            let one = interface.map(|name| links.interface_by_name(name)).transpose()?;
            Ok((one, links.addresses()?))
        };
        RouteSocket::open()
            .and_then(of_links)
            .map_err(|error| socket_failure("look at", "addresses", &error))
    });
    let (one, addresses) = found.ok()?;
    if one.as_ref().is_some_and(|one| one.flags.is_loopback()) {
        return None;
    }
    let own = |(index, _): &&(u32, _)| one.as_ref().is_none_or(|one| one.index == *index);
    let (_, address) = addresses.iter().find(own)?;
    let place = interface.map_or_else(|| "this host".to_owned(), str::to_owned);
    Some(format!(
        "{place} has the address {address}, and `{}` observes only what {side}",
        source.name
    ))
}

/// Converts an error from a packet socket into a failure. The caller must add the remedy for a
/// missing capability, because only the caller knows how the program was started.
pub(crate) fn socket_failure(call: &'static str, target: &str, error: &sys::Error) -> Failure {
    let why = std::io::Error::from_raw_os_error(error.errno);
    // A seccomp filter may refuse the socket with any error.
    let refused = error.call == "socket" || why.kind() == std::io::ErrorKind::PermissionDenied;
    let reason_text = match error.call {
        "socket" => format!("the kernel refuses a packet socket: {}", reason_text(&why)),
        call => format!("{call}: {}", reason_text(&why)),
    };
    let failure = Failure::new(call, target, reason_text).with_errno(Some(error.errno));
    Failure { missing_capability: refused.then_some(Capabilities::NET_RAW), ..failure }
}
