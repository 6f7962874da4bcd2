//! The errors of `io.streamline`, and all errors as a person reads them: what, where, why, what to
//! do.

use crate::varlink::Fault;
use serde_json::json;

/// There is no such path.
#[must_use]
pub fn no_such_path(path: &str) -> Fault {
    let path: String = path.chars().take(80).collect();
    Fault::new("io.streamline.NoSuchPath", &json!({ "path": path }))
}

/// Several users have a path of this name.
#[must_use]
pub fn which_path(path: &str, numbers: &[u32]) -> Fault {
    Fault::new("io.streamline.WhichPath", &json!({ "path": path, "numbers": numbers }))
}

/// The path is another user's.
#[must_use]
pub fn not_yours(path: &str, uid: u32) -> Fault {
    Fault::new("io.streamline.NotYours", &json!({ "path": path, "uid": uid }))
}

/// The name is taken.
#[must_use]
pub fn name_taken(name: &str, number: u32) -> Fault {
    Fault::new("io.streamline.NameTaken", &json!({ "name": name, "number": number }))
}

/// This is no name, or no line.
#[must_use]
pub fn refused(parameter: &str, why: &str) -> Fault {
    Fault::new("io.streamline.Refused", &json!({ "parameter": parameter, "why": why }))
}

/// The user has as much as it may have.
#[must_use]
pub fn quota(what: &str, limit: u64) -> Fault {
    Fault::new("io.streamline.QuotaExceeded", &json!({ "what": what, "limit": limit }))
}

/// The process of the path does not take what is sent to it.
#[must_use]
pub fn busy(path: &str) -> Fault {
    Fault::new("io.streamline.Busy", &json!({ "path": path }))
}

/// A node of a line does not run in the kernel, by the word of this party.
#[must_use]
pub fn not_in_kernel(node: usize, by: &str, why: &str) -> Fault {
    Fault::new(NOT_IN_KERNEL, &json!({ "node": node, "by": by, "why": why }))
}

/// The daemon was started again before the call was done; no refusal.
pub const AGAIN: &str = "again";

/// The name of that error.
pub const NOT_IN_KERNEL: &str = "io.streamline.NotInKernel";

/// The method takes or gives descriptors.
#[must_use]
pub fn needs_descriptors(socket: &str) -> Fault {
    Fault::new("io.streamline.NeedsDescriptors", &json!({ "socket": socket }))
}

/// The path runs as before.
#[must_use]
pub fn unchanged(why: &str) -> Fault {
    Fault::new("io.streamline.path.Unchanged", &json!({ "why": why }))
}

/// A node that cannot be tapped.
#[must_use]
pub fn untapped(why: &str) -> Fault {
    Fault::new("io.streamline.path.Untapped", &json!({ "why": why }))
}

/// An error as a person reads it: what, where, why, what to do.
#[must_use]
pub fn sentence(fault: &Fault) -> String {
    let text = |parameter| fault.text(parameter);
    let number = |parameter| fault.number(parameter);
    match fault.name.as_str() {
        "io.streamline.NoSuchPath" => {
            format!("no path is called `{}`: `streamline ps` lists those that run", text("path"))
        }
        "io.streamline.WhichPath" => {
            let numbers = fault.parameters.get("numbers").map(ToString::to_string);
            let numbers = numbers.unwrap_or_default();
            let path = text("path");
            format!("several users have a path called `{path}`: say which by its number {numbers}")
        }
        "io.streamline.NotYours" => format!(
            "path `{}` belongs to user {}: only that user and root control it",
            text("path"),
            number("uid")
        ),
        "io.streamline.NameTaken" => format!(
            "the name `{}` is that of your path {}: choose another, or `streamline stop {}`",
            text("name"),
            number("number"),
            text("name"),
        ),
        "io.streamline.Refused" => format!("the {} is refused: {}", text("parameter"), text("why")),
        "io.streamline.QuotaExceeded" => format!(
            "you have as many {} as the policy of this machine lets you have ({}): end some, or \
             ask its administrator",
            text("what"),
            number("limit")
        ),
        "io.streamline.Busy" => format!(
            "the process of path `{}` takes nothing: it is stopped, or overrun",
            text("path")
        ),
        NOT_IN_KERNEL => text("why").to_owned(),
        "io.streamline.NeedsDescriptors" => {
            format!("descriptors travel on `{}` alone", text("socket"))
        }
        "io.streamline.path.Unchanged" => {
            let why = text("why");
            let between = if why.trim_end().contains('\n') { '\n' } else { ' ' };
            format!("the path runs as before:{between}{why}")
        }
        "io.streamline.path.Untapped" => format!("it cannot be looked at: {}", text("why")),
        "org.varlink.service.InvalidParameter" => {
            format!(
                "the daemon does not understand `{}`: it is of another version",
                text("parameter")
            )
        }
        "org.varlink.service.MethodNotFound" | "org.varlink.service.InterfaceNotFound" => {
            format!(
                "the other side does not know `{}{}`: it is of another version",
                text("method"),
                text("interface")
            )
        }
        "org.varlink.service.PermissionDenied" => "the daemon does not let you".to_owned(),
        _ => fault.to_string(),
    }
}
