//! The parameters of a reply as JSON text.
//!
//! Replies carry the counters of whole paths. A result is serialized directly to text, and the text
//! is parsed directly into a result, without an intermediate tree of JSON values.

use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::{RawValue, to_raw_value};

/// The text of a JSON object: the result of a method, or the parameters of an error.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct ResultText(Option<Box<RawValue>>);

/// The text of an object without members.
const EMPTY_OBJECT: &str = "{}";

impl ResultText {
    /// Serializes a result. If the result is not an object, such as the unit value of a method
    /// without result, the text is an object without members.
    #[must_use]
    pub fn new(result: &impl Serialize) -> Self {
        Self(to_raw_value(result).ok().filter(|text| is_object(text)))
    }

    /// Returns the text of the object.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_ref().map_or(EMPTY_OBJECT, |text| text.get())
    }

    /// Returns true if the object has no members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.as_str() == EMPTY_OBJECT
    }

    /// Parses this text into the type of the result.
    pub fn deserialize<T: DeserializeOwned>(&self) -> serde_json::Result<T> {
        serde_json::from_str(self.as_str())
    }
}

impl PartialEq for ResultText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl<'d> Deserialize<'d> for ResultText {
    fn deserialize<D: Deserializer<'d>>(from: D) -> Result<Self, D::Error> {
        match Option::<Box<RawValue>>::deserialize(from)? {
            Some(text) if !is_object(&text) => {
                Err(D::Error::custom("parameters must be an object"))
            }
            text => Ok(Self(text)),
        }
    }
}

fn is_object(text: &RawValue) -> bool {
    text.get().starts_with('{')
}
