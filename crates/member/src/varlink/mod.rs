//! Varlink: calls and replies as JSON objects, interfaces as text. (varlink.org)
//!
//! In: bytes of a peer that may send anything. Out: a [`Call`] or a [`Reply`] whose form is right,
//! or why it is not. Nothing here knows what a method does, and nothing does I/O.
//!
//! ```text
//! {"method":"io.streamline.List","parameters":{}}          more, oneway: true where wanted
//! {"parameters":{"paths":[]}}                              continues: true, more of them follow
//! {"error":"io.streamline.NoSuchPath","parameters":{"path":"web"}}
//! ```
//!
//! On a socket that keeps boundaries a message is a packet, and descriptors travel with it; on a
//! stream each message ends with a byte 0, so that the usual tools can speak to us.

mod fault;
pub mod interface;

pub use fault::Fault;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::fmt;

#[cfg(test)]
mod tests;

/// The longest call, in bytes.
pub const MESSAGE_MAX: usize = 64 << 10;

/// The longest reply in one packet, in bytes: what a socket takes in one piece.
pub const REPLY_MAX: usize = 192 << 10;

/// Names with values, as calls and replies carry them.
pub type Parameters = Map<String, Value>;

/// A call.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// The interface and the method, joined by a dot.
    pub method: String,
    /// The parameters of the method.
    #[serde(default, skip_serializing_if = "Map::is_empty", deserialize_with = "nullable")]
    pub parameters: Parameters,
    /// True if the caller accepts several replies.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "nullable")]
    pub more: bool,
    /// True if the caller wants no reply.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "nullable")]
    pub oneway: bool,
    /// True if the caller wants to upgrade the connection: refused here.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "nullable")]
    pub upgrade: bool,
}

/// A reply.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// The result of the method, or the parameters of the error.
    #[serde(default, skip_serializing_if = "Map::is_empty", deserialize_with = "nullable")]
    pub parameters: Parameters,
    /// True if more replies follow.
    #[serde(default, skip_serializing_if = "is_false", deserialize_with = "nullable")]
    pub continues: bool,
    /// The name of the error, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A malformed message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Malformed {
    /// There are more than [`MESSAGE_MAX`], or [`REPLY_MAX`].
    TooLong,
    /// They are not what they should be: where, and why.
    NotOne(String),
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => {
                write!(f, "a call has at most {MESSAGE_MAX} bytes, and a reply {REPLY_MAX}")
            }
            Self::NotOne(why) => write!(f, "this is no message of Varlink: {why}"),
        }
    }
}

impl std::error::Error for Malformed {}

impl Call {
    /// A call of this method.
    #[must_use]
    pub fn new(method: &str, parameters: &impl Serialize) -> Self {
        let parameters = object(parameters);
        Self { method: method.to_owned(), parameters, more: false, oneway: false, upgrade: false }
    }

    /// Parses a call.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        read(bytes, MESSAGE_MAX)
    }

    /// As bytes, without an end.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        text(self)
    }

    /// The interface and the method.
    #[must_use]
    pub fn parts(&self) -> (&str, &str) {
        self.method.rsplit_once('.').unwrap_or(("", &self.method))
    }

    /// Deserializes the parameters.
    pub fn take<T: DeserializeOwned>(&self) -> Result<T, Fault> {
        from_object(self.parameters.clone()).map_err(|error| Fault::invalid(&culprit(&error)))
    }
}

impl Reply {
    /// A reply with these parameters.
    #[must_use]
    pub fn new(parameters: &impl Serialize) -> Self {
        Self { parameters: object(parameters), ..Self::default() }
    }

    /// Parses a reply.
    pub fn read(bytes: &[u8]) -> Result<Self, Malformed> {
        read(bytes, REPLY_MAX)
    }

    /// As bytes, without an end.
    #[must_use]
    pub fn text(&self) -> Vec<u8> {
        text(self)
    }

    /// Deserializes the result.
    pub fn take<T: DeserializeOwned>(self) -> Result<T, Malformed> {
        from_object(self.parameters).map_err(|error| Malformed::NotOne(error.to_string()))
    }
}

impl From<&Fault> for Reply {
    fn from(fault: &Fault) -> Self {
        Self {
            error: Some(fault.name.clone()),
            parameters: fault.parameters.clone(),
            ..Self::default()
        }
    }
}

fn read<T: DeserializeOwned>(bytes: &[u8], most: usize) -> Result<T, Malformed> {
    if bytes.len() > most {
        return Err(Malformed::TooLong);
    }
    serde_json::from_slice(bytes).map_err(|error| Malformed::NotOne(error.to_string()))
}

fn text(message: &impl Serialize) -> Vec<u8> {
    // What is written here are names, numbers and texts: none of that can fail.
    serde_json::to_vec(message).unwrap_or_default()
}

/// The fields of a value.
fn object(value: &impl Serialize) -> Parameters {
    match serde_json::to_value(value) {
        Ok(Value::Object(map)) => map,
        // Nothing to say: a method without parameters.
        _ => Map::new(),
    }
}

fn from_object<T: DeserializeOwned>(map: Parameters) -> serde_json::Result<T> {
    serde_json::from_value(Value::Object(map))
}

/// The parameter that an error is about: it stands in the first backticks.
fn culprit(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split('`').nth(1).unwrap_or("parameters").to_owned()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde wants")]
const fn is_false(value: &bool) -> bool {
    !*value
}

/// null is as good as nothing.
fn nullable<'d, T: Deserialize<'d> + Default, D: serde::Deserializer<'d>>(
    from: D,
) -> Result<T, D::Error> {
    Option::<T>::deserialize(from).map(Option::unwrap_or_default)
}
