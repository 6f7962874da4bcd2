//! Interfaces and name spaces as a request names them, and what to say when they cannot be had.

use crate::Failure;
use crate::fail::reason;
use filter::{Arguments, Description};
use sys::machine::Capabilities;
use sys::net::{Interface, Namespace, RouteSocket};
use wire::link::LinkType;

/// The frames that a source counts, for the message about an interface that is gone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counts {
    /// All that came.
    All(u64),
    /// Frames passed by a filter in the kernel; the others are not counted.
    Passed(u64),
    /// The process that counted them is gone, too.
    Unknown,
}

/// The failure of a source whose interface is gone.
pub(crate) fn removed(call: &'static str, name: &str, counts: Counts) -> Failure {
    let after = |frames: u64| match frames {
        1 => "after 1 frame".to_owned(),
        frames => format!("after {frames} frames"),
    };
    let why = match counts {
        Counts::All(frames) => format!("the interface was removed {}", after(frames)),
        Counts::Passed(frames) => {
            format!("the interface was removed {} that passed the kernel's filter", after(frames))
        }
        Counts::Unknown => "the interface was removed".to_owned(),
    };
    Failure::new(call, name, why)
        .hint("all that came before was handed on; start again when the interface is back")
}

/// Does `work` in a name space, or where no name is given in that of this thread.
pub(crate) fn within<T: Send>(
    netns: Option<&str>,
    work: impl FnOnce() -> Result<T, Failure> + Send,
) -> Result<T, Failure> {
    let Some(netns) = netns else { return work() };
    let enter = |error| {
        let failure = failed("enter", &format!("name space {netns}"), &error);
        let hint = "`ip netns list` shows those with a name; a path or a process id also works";
        match failure.needs {
            Some(_) => Failure { needs: Some(Capabilities::SYS_ADMIN), ..failure },
            None => failure.hint(hint),
        }
    };
    let space = Namespace::open(netns).map_err(enter)?;
    sys::net::run_in(&space, work).map_err(enter)?
}

/// The interface of this name in the name space of this thread, and what its frames begin with.
pub(crate) fn named(call: &'static str, name: &str) -> Result<(Interface, LinkType), Failure> {
    let all = RouteSocket::open().and_then(|links| links.all());
    let all = all.map_err(|error| failed(call, name, &error))?;
    let called = |interface: &&Interface| {
        interface.name == name || interface.alternative.iter().any(|other| other == name)
    };
    let Some(found) = all.iter().find(called) else {
        let names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
        let why = "there is no such interface in this name space";
        return Err(Failure::new(call, name, why).hint(format!("there are {}", names.join(", "))));
    };
    match filter::general::bpf::link_type(found.hatype) {
        Some(link) => Ok((found.clone(), link)),
        None => {
            let why = format!("frames of its kind (ARPHRD {}) are not known here", found.hatype);
            Err(Failure::new(call, name, why))
        }
    }
}

/// Returns the reason why `rx` or `tx` with these arguments sees one direction only of this host's
/// connections: its interface has addresses of its own. `None` on a mirror port, where both
/// directions come in, on the loopback interface, and where it cannot be found out.
#[must_use]
pub fn sees_one_way(source: &Description, arguments: &Arguments) -> Option<String> {
    let side = match source.name {
        "rx" if !arguments.flag("both") && !arguments.flag("own") => "comes in",
        "tx" => "goes out",
        _ => return None,
    };
    let interface = arguments.text("interface");
    let found = within(arguments.text("netns"), || {
        let of_links = |links: RouteSocket| {
            let one = interface.map(|name| links.named(name)).transpose()?;
            Ok((one, links.addresses()?))
        };
        RouteSocket::open()
            .and_then(of_links)
            .map_err(|error| failed("look at", "addresses", &error))
    });
    let (one, addresses) = found.ok()?;
    if one.as_ref().is_some_and(|one| one.flags.loopback()) {
        return None;
    }
    let own = |(index, _): &&(u32, _)| one.as_ref().is_none_or(|one| one.index == *index);
    let (_, address) = addresses.iter().find(own)?;
    let place = interface.map_or_else(|| "this host".to_owned(), str::to_owned);
    Some(format!("{place} has the address {address}, and `{}` gives only what {side}", source.name))
}

/// Turns a refusal of the machine into a failure; the caller, which knows the program's door,
/// explains missing rights.
pub(crate) fn failed(call: &'static str, target: &str, error: &sys::Error) -> Failure {
    let why = std::io::Error::from_raw_os_error(error.errno);
    let refused = why.kind() == std::io::ErrorKind::PermissionDenied;
    let told = match error.call {
        "socket" => format!("the kernel refuses a packet socket: {}", reason(&why)),
        call => format!("{call}: {}", reason(&why)),
    };
    let failure = Failure::new(call, target, told).errno(Some(error.errno));
    Failure { needs: refused.then_some(Capabilities::NET_RAW), ..failure }
}
