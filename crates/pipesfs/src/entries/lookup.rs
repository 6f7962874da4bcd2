//! Lookup of names in directories, including names that no listing contains.

use super::{DirectoryObject, ObjectKey, STREAMS_DIRECTORY, is_fixed_entry_name, stream};
use crate::names::unescape;
use crate::tree::{DirectoryId, Tree};
use streamline::paths;

impl Tree {
    /// Returns the object with this name in a directory, or `None` if there is none. The name may
    /// be missing from listings. `names` is as in [`entries`](Self::entries).
    #[must_use]
    pub fn lookup(&self, key: &ObjectKey, name: &str, names: &[String]) -> Option<ObjectKey> {
        let directory = self.directory(&key.place).filter(|_| key.part == DirectoryObject::Whole);
        if let Some(child) = directory.and_then(|directory| directory.child(name)) {
            return self.child_key(key, name, child);
        }
        let fixed = match (&key.part, &key.place) {
            // This case avoids building the list of all entries, which would dominate the cost of a
            // lookup.
            (
                DirectoryObject::Whole,
                DirectoryId::Node(..) | DirectoryId::Class(..) | DirectoryId::Path(_),
            ) if !is_fixed_entry_name(name) => self.contains(key).then(Vec::new)?,
            (DirectoryObject::Whole, _) => self.fixed_entries(key, names)?,
            _ => self.entries(key, names)?,
        };
        let listed = fixed.into_iter().find(|entry| entry.name == name);
        listed
            .map(|entry| entry.key)
            .or_else(|| self.lookup_by_node_number(key, name))
            .or_else(|| self.lookup_hidden_entry(key, name))
    }

    fn lookup_hidden_entry(&self, key: &ObjectKey, name: &str) -> Option<ObjectKey> {
        match (&key.part, &key.place) {
            (DirectoryObject::Whole, DirectoryId::Root) if name == STREAMS_DIRECTORY => {
                Some(key.sibling(DirectoryObject::Streams))
            }
            (
                DirectoryObject::Whole,
                DirectoryId::Node(..) | DirectoryId::Class(..) | DirectoryId::Path(_),
            ) if name == STREAMS_DIRECTORY && !self.stream_forms(&key.place).is_empty() => {
                Some(key.sibling(DirectoryObject::Streams))
            }
            (
                DirectoryObject::Whole,
                DirectoryId::Node(..) | DirectoryId::Class(..) | DirectoryId::Path(_),
            ) if self.parse_past_stream_name(key, name).is_some() => {
                Some(key.sibling(DirectoryObject::Link(name.to_owned())))
            }
            (DirectoryObject::Streams, _) => {
                self.parse_past_stream_name(key, name).map(|stream| key.sibling(stream))
            }
            (DirectoryObject::Whole, DirectoryId::Node(path, node)) => {
                let class = unescape(name)?;
                if paths::has_manual(&class) {
                    // A filter's name is not a class: `mkdir tcp/http` creates the filter `http`,
                    // and the class is `tcp/80`.
                    return None;
                }
                let directory = self.directory(&key.place)?;
                let (view, details) = self.first_node(directory)?;
                let valid = !details.form.is_empty()
                    && paths::can_have_class(&view.line, details, &class).unwrap_or(false);
                let place = DirectoryId::Class(*path, node.clone(), class);
                valid.then(|| ObjectKey::directory(place))
            }
            _ => None,
        }
    }

    /// Returns the stream that a name with a start in the past denotes, such as `all@-5s` or
    /// `all.pcap@block:4711`. Returns `None` for any other name.
    fn parse_past_stream_name(&self, key: &ObjectKey, name: &str) -> Option<DirectoryObject> {
        let (stem, from) = name.split_once('@')?;
        let (form, _) =
            self.stream_forms(&key.place).into_iter().find(|(_, known)| *known == stem)?;
        Some(stream(form, Some(from.to_owned())))
    }
}
