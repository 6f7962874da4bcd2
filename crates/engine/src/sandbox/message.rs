//! Messages from a path to a sandboxed filter: first the filter's name and arguments, then blocks.
//!
//! A block is a message of [`endpoint::message`].

pub(super) use endpoint::message::{
    MESSAGE_HEAD_SIZE, MESSAGE_SIZE_MAX, MessageDefect, copy_into_intake, entry_without_frame,
    message_length, read, write,
};
use filter::{Arguments, Description, SessionNumbers, Value};
use pipeline::graph::FilterUse;
use serde::{Deserialize, Serialize};

/// Start parameters of a sandboxed filter, besides its name and arguments.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FilterContext {
    /// The class ranges that the filter's outgoing arcs name. Plain pipes and `|all` name none.
    pub(crate) selected_classes: Vec<(u32, u32)>,
    /// The seed of the filter's randomness, if the run must be repeatable.
    pub(crate) seed: Option<u64>,
    /// The session numbers that the filter may use.
    pub(crate) numbers: SessionNumbers,
    /// True if all successors of the filter accept fragments of messages.
    pub(crate) fragments: bool,
    /// True if the filter has inputs, and all of them carry messages, records or bytes.
    pub(crate) reads_messages: bool,
    /// True if the path's clock follows the timestamps of its blocks.
    pub(crate) drives_clock: bool,
    /// Offset from the monotonic clock to the path's clock, in ns.
    pub(crate) epoch: u64,
}

/// Specification of the filter to run: its name, arguments and start parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct FilterSpec {
    pub(super) name: String,
    pub(super) arguments: Vec<(String, Value)>,
    pub(super) about: FilterContext,
}

impl FilterSpec {
    pub(super) fn new(used: &FilterUse, about: FilterContext) -> Self {
        let arguments =
            used.arguments.iter().map(|(name, value)| (name.to_owned(), value.clone())).collect();
        Self { name: used.description.name.to_owned(), arguments, about }
    }

    /// Returns the filter's arguments, completed with the classes, seed and session numbers of the
    /// context. Omits arguments for which the description has no parameter.
    pub(super) fn arguments(&self, description: &'static Description) -> Arguments {
        let mut arguments = Arguments::default();
        for (name, value) in &self.arguments {
            if let Some(known) = description.parameter(name) {
                arguments.add(known.name, value.clone());
            }
        }
        let FilterContext { selected_classes, seed, numbers, reads_messages, .. } = &self.about;
        arguments
            .with_selected_classes(selected_classes.clone())
            .with_seed(*seed)
            .with_session_numbers(*numbers)
            .with_message_input(*reads_messages)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j5_filter_spec_decodes_to_the_encoded_one() {
        let about = FilterContext {
            selected_classes: vec![(80, 90), (1, 1)],
            seed: Some(7),
            numbers: SessionNumbers::for_initial_filter(1, 3),
            fragments: true,
            reads_messages: true,
            drives_clock: false,
            epoch: 3,
        };
        let arguments = vec![
            ("a".to_owned(), Value::Number(u64::MAX)),
            ("b".to_owned(), Value::Flag(true)),
            ("c".to_owned(), Value::Text("é".to_owned())),
            ("c".to_owned(), Value::Bytes(vec![0, 255])),
        ];
        let wanted = FilterSpec { name: "http".to_owned(), arguments, about };
        let bytes = serde_json::to_vec(&wanted).unwrap();
        let read: FilterSpec = serde_json::from_slice(&bytes).unwrap();
        assert_eq!((&read.name, &read.arguments), (&wanted.name, &wanted.arguments));
        assert_eq!(format!("{:?}", read.about), format!("{:?}", wanted.about));
        for cut in 0..bytes.len() {
            assert!(serde_json::from_slice::<FilterSpec>(&bytes[..cut]).is_err(), "{cut}");
        }
    }
}
