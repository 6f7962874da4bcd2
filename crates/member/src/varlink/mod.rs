//! The Varlink protocol: calls and replies as JSON objects, interfaces as text. (varlink.org)
//!
//! Parses the bytes of an untrusted peer into a well-formed [`Call`] or [`Reply`], or returns an
//! error. This module does no I/O and does not depend on any method.
//!
//! ```text
//! {"method":"io.streamline.List","parameters":{}}          optional: more, oneway
//! {"parameters":{"paths":[]}}                              continues: true, if more replies follow
//! {"error":"io.streamline.NoSuchPath","parameters":{"path":"web"}}
//! ```
//!
//! On a sequenced-packet socket, each message is one packet and may carry descriptors. On a stream
//! socket, each message ends with a zero byte, so that common Varlink tools work.

mod fault;
pub mod interface;
mod result;

pub use fault::Fault;
pub use result::ResultText;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

#[cfg(test)]
mod tests;

/// Maximum length of a call, in bytes.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Maximum length of a reply, in bytes. A reply must fit into one packet of a local socket.
pub const REPLY_BYTES_MAX: usize = 192 << 10;

/// The named parameters of a call or reply.
pub type Parameters = Map<String, Value>;

/// A call of a method, as a Varlink message.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Names of the interface and the method, joined by a dot.
    pub method: String,
    /// Parameters of the method.
    #[serde(default, skip_serializing_if = "Map::is_empty", deserialize_with = "null_as_default")]
    pub parameters: Parameters,
    /// True if the caller accepts several replies.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "null_as_default")]
    pub more: bool,
    /// True if the caller expects no reply.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "null_as_default")]
    pub oneway: bool,
    /// True if the caller asks to upgrade the connection to another protocol. Such calls are
    /// refused.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "null_as_default")]
    pub upgrade: bool,
}

/// A call whose parameters are serialized directly, without conversion to JSON values.
#[derive(Serialize)]
struct TypedCall<'c, P> {
    method: &'c str,
    parameters: &'c P,
    #[serde(skip_serializing_if = "is_false")]
    oneway: bool,
}

/// A reply to a call, as a Varlink message: a result or an error.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// Result of the method, or the parameters of the error.
    #[serde(default, skip_serializing_if = "ResultText::is_empty")]
    pub parameters: ResultText,
    /// True if more replies follow.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "null_as_default")]
    pub continues: bool,
    /// Name of the error, or `None` for a result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// An error found while parsing a message.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MessageError {
    /// The message is longer than [`MESSAGE_BYTES_MAX`] or [`REPLY_BYTES_MAX`].
    #[error("a call has at most {MESSAGE_BYTES_MAX} bytes, and a reply {REPLY_BYTES_MAX}")]
    TooLong,
    /// The bytes are not JSON of the required form. Contains the position of the error.
    #[error("invalid Varlink message: {0}")]
    Invalid(String),
}

impl Call {
    /// Creates a call that expects one reply.
    #[must_use]
    pub fn new(method: &str, parameters: &impl Serialize) -> Self {
        let parameters = to_parameters(parameters);
        Self { method: method.to_owned(), parameters, more: false, oneway: false, upgrade: false }
    }

    /// Serializes a call that expects one reply, or none if `oneway` is true, without a terminator.
    pub(crate) fn serialize_call(
        method: &str,
        parameters: &impl Serialize,
        oneway: bool,
    ) -> Vec<u8> {
        serialize(&TypedCall { method, parameters, oneway })
    }

    /// Parses a call. Fails if the text is longer than [`MESSAGE_BYTES_MAX`] or malformed.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        read(bytes, MESSAGE_BYTES_MAX)
    }

    /// Serializes the call without a terminator.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serialize(self)
    }

    /// Splits the name into interface and method.
    #[must_use]
    pub fn interface_and_method(&self) -> (&str, &str) {
        self.method.rsplit_once('.').unwrap_or(("", &self.method))
    }

    /// Deserializes the parameters. Fails with `InvalidParameter`, which names the first invalid
    /// parameter, or `parameters` if this is unknown.
    pub fn deserialize_parameters<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        T::deserialize(&self.parameters)
            .map_err(|error| Fault::invalid_parameter(&parameter_name(&error)))
    }
}

impl Reply {
    /// Creates a successful reply, which is the only or last reply to its call.
    #[must_use]
    pub fn new(parameters: &impl Serialize) -> Self {
        Self { parameters: ResultText::new(parameters), ..Self::default() }
    }

    /// Parses a reply. Fails if the text is longer than [`REPLY_BYTES_MAX`] or malformed.
    pub fn read(bytes: &[u8]) -> Result<Self, MessageError> {
        read(bytes, REPLY_BYTES_MAX)
    }

    /// Serializes the reply without a terminator.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        serialize(self)
    }

    /// Converts the parameters of a successful reply to the result type.
    pub fn deserialize_result<T: DeserializeOwned>(self) -> Result<T, MessageError> {
        self.parameters.deserialize().map_err(|error| MessageError::Invalid(error.to_string()))
    }
}

impl From<&Fault> for Reply {
    fn from(fault: &Fault) -> Self {
        Self {
            error: Some(fault.name.clone()),
            parameters: ResultText::new(&fault.parameters),
            ..Self::default()
        }
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8], most: usize) -> Result<T, MessageError> {
    if bytes.len() > most {
        return Err(MessageError::TooLong);
    }
    serde_json::from_slice(bytes).map_err(|error| MessageError::Invalid(error.to_string()))
}

fn serialize(message: &impl Serialize) -> Vec<u8> {
    // Names, numbers and texts can always be serialized.
    serde_json::to_vec(message).unwrap_or_default()
}

/// Converts a struct to named parameters.
fn to_parameters(value: &impl Serialize) -> Parameters {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        // A method without parameters passes a unit value.
        _ => Map::new(),
    }
}

/// Returns the parameter that an error message of serde names in backticks; `parameters` if it
/// names none.
fn parameter_name(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split('`').nth(1).unwrap_or("parameters").to_owned()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde wants")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// Deserializes a value; `null` becomes the default value.
fn null_as_default<'d, T: Deserialize<'d> + Default, D: serde::Deserializer<'d>>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}
