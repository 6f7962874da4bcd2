//! The error reply of a method: its name and parameters.

use super::{Parameters, Reply, object};
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;

/// An error as Varlink carries it.
#[derive(Clone, PartialEq, Debug)]
pub struct Fault {
    /// The interface and the error, joined by a dot.
    pub name: String,
    /// The parameters.
    pub parameters: Parameters,
}

/// The errors of the standard interface.
const SERVICE: &str = "org.varlink.service";

impl Fault {
    /// An error of this name.
    #[must_use]
    pub fn new(name: &str, parameters: &impl Serialize) -> Self {
        Self { name: name.to_owned(), parameters: object(parameters) }
    }

    /// An interface that this service does not have.
    #[must_use]
    pub fn interface(interface: &str) -> Self {
        Self::standard("InterfaceNotFound", &json!({ "interface": shortened(interface) }))
    }

    /// The interface has no such method.
    #[must_use]
    pub fn method(method: &str) -> Self {
        Self::standard("MethodNotFound", &json!({ "method": shortened(method) }))
    }

    /// The method is known, and nobody has built it here.
    #[must_use]
    pub fn not_here(method: &str) -> Self {
        Self::standard("MethodNotImplemented", &json!({ "method": shortened(method) }))
    }

    /// A parameter is missing, unknown or of another type.
    #[must_use]
    pub fn invalid(parameter: &str) -> Self {
        Self::standard("InvalidParameter", &json!({ "parameter": shortened(parameter) }))
    }

    /// The caller may not.
    #[must_use]
    pub fn denied() -> Self {
        Self::standard("PermissionDenied", &json!({}))
    }

    /// The method gives more than one reply, and the caller understands one.
    #[must_use]
    pub fn expected_more() -> Self {
        Self::standard("ExpectedMore", &json!({}))
    }

    fn standard(name: &str, parameters: &Value) -> Self {
        Self::new(&format!("{SERVICE}.{name}"), parameters)
    }

    /// The error that a reply tells.
    #[must_use]
    pub fn told(reply: &Reply) -> Option<Self> {
        let name = reply.error.clone()?;
        Some(Self { name, parameters: reply.parameters.clone() })
    }

    /// A text among what there is to know.
    #[must_use]
    pub fn text(&self, parameter: &str) -> &str {
        self.parameters.get(parameter).and_then(Value::as_str).unwrap_or_default()
    }

    /// A number among what there is to know.
    #[must_use]
    pub fn number(&self, parameter: &str) -> u64 {
        self.parameters.get(parameter).and_then(Value::as_u64).unwrap_or(0)
    }
}

/// Shortens a text of an untrusted peer before it is sent back.
fn shortened(text: &str) -> String {
    text.chars().take(80).collect()
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, Value::Object(self.parameters.clone()))
    }
}

impl std::error::Error for Fault {}
