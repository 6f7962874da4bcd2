//! The interface descriptions, and `org.varlink.service`, which every service implements.

use super::{Call, Fault};
use serde_json::{Value, json};

/// An interface: its name and description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Qualified name of the interface, such as `io.streamline`.
    pub name: &'static str,
    /// Description in the Varlink interface language.
    pub text: &'static str,
}

/// The interface of the daemon.
pub const DAEMON_INTERFACE: Interface =
    Interface { name: "io.streamline", text: include_str!("../io.streamline.varlink") };
/// The interface of a path's process.
pub const PATH_INTERFACE: Interface =
    Interface { name: "io.streamline.path", text: include_str!("../io.streamline.path.varlink") };
/// The interface of the live page that serves several users.
pub const PAGE_INTERFACE: Interface =
    Interface { name: "io.streamline.page", text: include_str!("../io.streamline.page.varlink") };
/// The standard Varlink interface, which every service has.
pub const SERVICE_INTERFACE: Interface =
    Interface { name: "org.varlink.service", text: include_str!("org.varlink.service.varlink") };

/// Executes a call of `org.varlink.service`, the standard interface of every service. `own` is the
/// other interface of the called service.
pub fn execute_service_call(call: &Call, own: Interface) -> Result<Value, Fault> {
    match call.interface_and_method().1 {
        "GetInfo" => Ok(json!({
            "vendor": "Streamline",
            "product": own.name,
            "version": env!("CARGO_PKG_VERSION"),
            "url": "",
            "interfaces": [SERVICE_INTERFACE.name, own.name],
        })),
        "GetInterfaceDescription" => {
            #[derive(serde::Deserialize)]
            struct InterfaceQuery {
                interface: String,
            }
            let InterfaceQuery { interface } = call.deserialize_parameters()?;
            let known = [SERVICE_INTERFACE, own].into_iter().find(|known| known.name == interface);
            let known = known.ok_or_else(|| Fault::interface_not_found(&interface))?;
            Ok(json!({ "description": known.text }))
        }
        _ => Err(Fault::method_not_found(&call.method)),
    }
}
