//! Interfaces as text, and the one that all services have: `org.varlink.service`.

use super::{Call, Fault};
use serde_json::{Value, json};

/// An interface: its name, and the file that describes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interface {
    /// Its name.
    pub name: &'static str,
    /// Its description, in Varlink's own language.
    pub text: &'static str,
}

/// The interface of the daemon.
pub const DAEMON: Interface =
    Interface { name: "io.streamline", text: include_str!("../io.streamline.varlink") };
/// The interface of the process of a path.
pub const PATH: Interface =
    Interface { name: "io.streamline.path", text: include_str!("../io.streamline.path.varlink") };
/// The interface of every service.
pub const SERVICE: Interface =
    Interface { name: "org.varlink.service", text: include_str!("org.varlink.service.varlink") };

/// Answers a call of `org.varlink.service` for a service that has one interface besides.
pub fn service(call: &Call, own: Interface) -> Result<Value, Fault> {
    match call.parts().1 {
        "GetInfo" => Ok(json!({
            "vendor": "Streamline",
            "product": own.name,
            "version": env!("CARGO_PKG_VERSION"),
            "url": "",
            "interfaces": [SERVICE.name, own.name],
        })),
        "GetInterfaceDescription" => {
            #[derive(serde::Deserialize)]
            struct Which {
                interface: String,
            }
            let Which { interface } = call.take()?;
            let known = [SERVICE, own].into_iter().find(|known| known.name == interface);
            let known = known.ok_or_else(|| Fault::interface(&interface))?;
            Ok(json!({ "description": known.text }))
        }
        _ => Err(Fault::method(&call.method)),
    }
}
