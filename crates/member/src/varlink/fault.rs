//! The error reply of a method: its name and parameters.

use super::{Parameters, Reply, to_parameters};
use serde::Serialize;
use serde_json::{Value, json};

/// An error that a method returns in place of a result.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[error("{name} {}", Value::Object(.parameters.clone()))]
pub struct Fault {
    /// Names of the interface and the error, joined by a dot.
    pub name: String,
    /// Parameters of the error.
    pub parameters: Parameters,
}

/// The interface that defines the standard errors.
const SERVICE_INTERFACE_NAME: &str = "org.varlink.service";

impl Fault {
    /// Creates an error reply with this name and these parameters.
    #[must_use]
    pub fn new(name: &str, parameters: &impl Serialize) -> Self {
        Self { name: name.to_owned(), parameters: to_parameters(parameters) }
    }

    /// Creates `InterfaceNotFound`: the service lacks this interface.
    #[must_use]
    pub fn interface_not_found(interface: &str) -> Self {
        Self::standard_fault("InterfaceNotFound", &json!({ "interface": truncate(interface) }))
    }

    /// Creates `MethodNotFound`: the interface lacks this method.
    #[must_use]
    pub fn method_not_found(method: &str) -> Self {
        Self::standard_fault("MethodNotFound", &json!({ "method": truncate(method) }))
    }

    /// Creates `InvalidParameter`: a parameter is missing, unknown or of the wrong type.
    #[must_use]
    pub fn invalid_parameter(parameter: &str) -> Self {
        Self::standard_fault("InvalidParameter", &json!({ "parameter": truncate(parameter) }))
    }

    /// Creates `PermissionDenied`: the caller may not call the method.
    #[must_use]
    pub fn permission_denied() -> Self {
        Self::standard_fault("PermissionDenied", &json!({}))
    }

    /// Creates `ExpectedMore`: the method sends several replies, but the caller accepts only one.
    #[must_use]
    pub fn expected_more() -> Self {
        Self::standard_fault("ExpectedMore", &json!({}))
    }

    fn standard_fault(name: &str, parameters: &Value) -> Self {
        Self::new(&format!("{SERVICE_INTERFACE_NAME}.{name}"), parameters)
    }

    /// Returns the error in a reply, or `None` if the reply is a result.
    #[must_use]
    pub fn from_reply(reply: &Reply) -> Option<Self> {
        let name = reply.error.clone()?;
        Some(Self { name, parameters: reply.parameters.deserialize().unwrap_or_default() })
    }

    /// Returns the value of a text parameter, or an empty text if it is absent.
    #[must_use]
    pub fn text_parameter(&self, parameter: &str) -> &str {
        self.parameters.get(parameter).and_then(Value::as_str).unwrap_or_default()
    }

    /// Returns the value of a numeric parameter; 0 if it is absent.
    #[must_use]
    pub fn number_parameter(&self, parameter: &str) -> u64 {
        self.parameters.get(parameter).and_then(Value::as_u64).unwrap_or(0)
    }
}

/// Truncates a text that an untrusted peer has sent, for use in an error reply to this peer.
fn truncate(text: &str) -> String {
    text.chars().take(80).collect()
}
