//! Constructors for the errors of `io.streamline`, and formatting of errors for users.

use crate::varlink::Fault;
use serde_json::json;

/// Creates `NoSuchPath`: the path does not exist or is not visible to the caller.
#[must_use]
pub fn no_such_path(path: &str) -> Fault {
    let path: String = path.chars().take(80).collect();
    Fault::new("io.streamline.NoSuchPath", &json!({ "path": path }))
}

/// Creates `WhichPath`: several paths that are visible to the caller have this name.
#[must_use]
pub fn ambiguous_path(path: &str, numbers: &[u32]) -> Fault {
    Fault::new("io.streamline.WhichPath", &json!({ "path": path, "numbers": numbers }))
}

/// Creates `NotYours`: the path belongs to another user.
#[must_use]
pub fn not_yours(path: &str, uid: u32) -> Fault {
    Fault::new("io.streamline.NotYours", &json!({ "path": path, "uid": uid }))
}

/// Creates `NameTaken`: another path of the same user has this name.
#[must_use]
pub fn name_taken(name: &str, number: u32) -> Fault {
    Fault::new("io.streamline.NameTaken", &json!({ "name": name, "number": number }))
}

/// Creates `Refused`: the daemon refuses a call because of the value of `parameter`. `why` is the
/// reason.
#[must_use]
pub fn refused(parameter: &str, why: &str) -> Fault {
    Fault::new("io.streamline.Refused", &json!({ "parameter": parameter, "why": why }))
}

/// Creates `QuotaExceeded`: the user's quota of `what` is exhausted.
#[must_use]
pub fn quota_exceeded(what: &str, limit: u64) -> Fault {
    Fault::new("io.streamline.QuotaExceeded", &json!({ "what": what, "limit": limit }))
}

/// Creates `Busy`: the path's process does not read from its socket, or the daemon has no free
/// descriptors.
#[must_use]
pub fn busy(path: &str) -> Fault {
    Fault::new("io.streamline.Busy", &json!({ "path": path }))
}

/// Creates `NotInKernel`: the node cannot run in the kernel. `by` names the component that has
/// refused the node, and `why` is the reason.
#[must_use]
pub fn not_in_kernel(node: usize, by: &str, why: &str) -> Fault {
    Fault::new(NOT_IN_KERNEL_ERROR, &json!({ "node": node, "by": by, "why": why }))
}

/// Value of the parameter `by` of `NotInKernel` if the daemon was restarted during the call. The
/// caller may then repeat the call.
pub const RETRY_CAUSE: &str = "again";

/// Name of the error made by [`not_in_kernel`].
pub const NOT_IN_KERNEL_ERROR: &str = "io.streamline.NotInKernel";

/// Creates `NeedsDescriptors`: the method transfers descriptors, but was called over a stream.
#[must_use]
pub fn needs_descriptors(socket: &str) -> Fault {
    Fault::new("io.streamline.NeedsDescriptors", &json!({ "socket": socket }))
}

/// Creates `Unchanged`: the change failed, and the path continues unchanged.
#[must_use]
pub fn unchanged(why: &str) -> Fault {
    Fault::new("io.streamline.path.Unchanged", &json!({ "why": why }))
}

/// Value of the parameter `by` of `Unchanged` if the requested change is itself invalid, so that no
/// path could apply it.
pub const WRONG_CHANGE_CAUSE: &str = "change";

/// Creates `Unchanged` for a change that does not fit the request, or would make the request
/// invalid.
#[must_use]
pub fn wrong_change(why: &str) -> Fault {
    Fault::new("io.streamline.path.Unchanged", &json!({ "why": why, "by": WRONG_CHANGE_CAUSE }))
}

/// Returns true if a fault was made by [`wrong_change`].
#[must_use]
pub fn is_wrong_change(fault: &Fault) -> bool {
    fault.name == "io.streamline.path.Unchanged" && fault.text_parameter("by") == WRONG_CHANGE_CAUSE
}

/// Name of the error made by [`outdated`].
pub const OUTDATED_ERROR: &str = "io.streamline.path.Outdated";

/// Creates `Outdated`: the path no longer runs the request for which the change was made.
#[must_use]
pub fn outdated() -> Fault {
    Fault::new(OUTDATED_ERROR, &json!({}))
}

/// Creates `Untapped`: the node cannot be tapped, or cannot be written to.
#[must_use]
pub fn untapped(why: &str) -> Fault {
    Fault::new("io.streamline.path.Untapped", &json!({ "why": why }))
}

/// Creates `TooLarge`: a reply of `bytes` bytes exceeds the maximum length of a message.
#[must_use]
pub fn too_large(bytes: usize, limit: usize) -> Fault {
    Fault::new("io.streamline.path.TooLarge", &json!({ "bytes": bytes, "limit": limit }))
}

/// Name of the error made by [`not_your_page`].
pub const NOT_YOUR_PAGE_ERROR: &str = "io.streamline.page.NotYourPage";

/// Creates `NotYourPage`: the page serves only the user `uid`.
#[must_use]
pub fn not_your_page(uid: u32) -> Fault {
    Fault::new(NOT_YOUR_PAGE_ERROR, &json!({ "uid": uid }))
}

/// Creates `TooManyTokens`: the page already has the maximum of `limit` tokens.
#[must_use]
pub fn too_many_tokens(limit: usize) -> Fault {
    Fault::new("io.streamline.page.TooManyTokens", &json!({ "limit": limit }))
}

/// Formats an error for users: the error, its location, the reason and a remedy.
#[must_use]
pub fn format_fault(fault: &Fault) -> String {
    let text = |parameter| fault.text_parameter(parameter);
    let number = |parameter| fault.number_parameter(parameter);
    match fault.name.as_str() {
        "io.streamline.NoSuchPath" => {
            format!("no path is called `{}`: `streamline ps` lists those that run", text("path"))
        }
        "io.streamline.WhichPath" => {
            let numbers = fault.parameters.get("numbers").map(ToString::to_string);
            let numbers = numbers.unwrap_or_default();
            let path = text("path");
            format!("several users have a path called `{path}`: select one by its number {numbers}")
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
            "you have as many {} as the policy of this machine permits ({}): stop some, or ask the \
             administrator",
            text("what"),
            number("limit")
        ),
        "io.streamline.Busy" => format!(
            "the process of path `{}` reads nothing: it is stopped, or overloaded",
            text("path")
        ),
        NOT_IN_KERNEL_ERROR => text("why").to_owned(),
        "io.streamline.NeedsDescriptors" => {
            format!("descriptors can be sent only on `{}`", text("socket"))
        }
        "io.streamline.path.Unchanged" => {
            let why = text("why");
            let between = if why.trim_end().contains('\n') { '\n' } else { ' ' };
            format!("the path runs as before:{between}{why}")
        }
        OUTDATED_ERROR => "another edit came first: look at the path, and edit it again".to_owned(),
        "io.streamline.path.TooLarge" => format!(
            "the path has too many filters for one reply: it has {} bytes, and a reply at most {}",
            number("bytes"),
            number("limit")
        ),
        "io.streamline.path.Untapped" => format!("it cannot be tapped: {}", text("why")),
        NOT_YOUR_PAGE_ERROR => format!("the page is that of user {} alone", number("uid")),
        "org.varlink.service.InvalidParameter" => {
            format!(
                "the daemon does not understand `{}`: it has another version",
                text("parameter")
            )
        }
        "org.varlink.service.MethodNotFound" | "org.varlink.service.InterfaceNotFound" => {
            format!(
                "the other process does not support `{}{}`: it has another version",
                text("method"),
                text("interface")
            )
        }
        "org.varlink.service.PermissionDenied" => "the daemon does not permit it".to_owned(),
        _ => fault.to_string(),
    }
}
