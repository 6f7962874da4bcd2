//! The entries of each directory: files, links and directories by name. Like the tree, this module
//! is a pure function of the running paths.

mod lookup;
mod numbered;
mod text;

use crate::tree::{Child, Directory, DirectoryId, STREAM_ENTRIES, Tree};
use streamline::paths;

pub use text::FileText;

/// Identity of an object of the file system. The object is a directory of the [`Tree`], or an entry
/// of such a directory: a file, a link or a fixed subdirectory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ObjectKey {
    /// The directory to which the object belongs.
    pub place: DirectoryId,
    /// The object: the directory itself, or one of its entries.
    pub part: DirectoryObject,
}

/// The part of a [`ObjectKey`] that identifies an object within a directory of the [`Tree`]: the
/// directory itself, or one of its entries.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum DirectoryObject {
    /// The directory itself, as opposed to one of its entries.
    Whole,
    /// A directory with a file for each argument of a filter.
    Config,
    /// A directory with a file for each counter.
    Stats,
    /// A directory with a file for each reason for which blocks were lost.
    Dropped,
    /// A directory with a file for the state that a filter publishes.
    State,
    /// The hidden directory with the streams of a node (`.streams`).
    Streams,
    /// A stream of the blocks that leave the directory's node.
    Stream(Stream),
    /// A stream with a line for each start, change or end of a path.
    Events,
    /// A symbolic link to a stream or a directory. The string is the name of the link.
    Link(String),
    /// A file with a text, of the given kind.
    Text(FileText),
}

/// A stream of the blocks that leave a node, or of one class of these blocks.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Stream {
    /// The format in which the stream carries the blocks.
    pub form: StreamForm,
    /// The point in the past at which the stream starts, in the syntax of `streamline tap --from`.
    /// If `None`, the stream starts with the next block.
    pub from: Option<String>,
}

/// The format of the blocks in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum StreamForm {
    /// The bytes of each block that filters currently see (the view).
    Bytes,
    /// The whole frames, as a pcap capture.
    Capture,
    /// A JSON object for each block or message.
    Json,
}

impl StreamForm {
    const ALL: [(Self, &str); 3] =
        [(Self::Bytes, "all"), (Self::Capture, "all.pcap"), (Self::Json, "all.jsonl")];

    /// Returns the name of the format in the protocol of taps.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Capture => "capture",
            Self::Json => "json",
        }
    }
}

/// The file type of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ObjectKind {
    /// A directory.
    Directory,
    /// A file.
    File,
    /// A symbolic link.
    Link,
}

/// An entry of a directory of the file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Name of the entry.
    pub name: String,
    /// The object that the entry names.
    pub key: ObjectKey,
}

/// Name of the space for filters that run in the kernel.
const KERNEL_SPACE_NAME: &str = "kernel";
/// Name of the hidden directory with the streams.
const STREAMS_DIRECTORY: &str = ".streams";
/// Name of the stream of events.
const EVENTS_STREAM: &str = ".events";

impl ObjectKey {
    /// Returns the key of a directory of the tree.
    #[must_use]
    pub const fn directory(place: DirectoryId) -> Self {
        Self { place, part: DirectoryObject::Whole }
    }

    /// Returns the key of another object of the same directory of the tree.
    #[must_use]
    pub fn sibling(&self, part: DirectoryObject) -> Self {
        Self { place: self.place.clone(), part }
    }

    /// Returns the kind of the object.
    #[must_use]
    pub const fn kind(&self) -> ObjectKind {
        match self.part {
            DirectoryObject::Whole
            | DirectoryObject::Config
            | DirectoryObject::Stats
            | DirectoryObject::Dropped
            | DirectoryObject::State
            | DirectoryObject::Streams => ObjectKind::Directory,
            DirectoryObject::Link(_) => ObjectKind::Link,
            DirectoryObject::Stream(_) | DirectoryObject::Events | DirectoryObject::Text(_) => {
                ObjectKind::File
            }
        }
    }

    fn entry(&self, name: &str, part: DirectoryObject) -> Entry {
        Entry { name: name.to_owned(), key: self.sibling(part) }
    }

    fn text_entry(&self, name: &str, text: FileText) -> Entry {
        self.entry(name, DirectoryObject::Text(text))
    }
}

impl Tree {
    /// Returns true if an object exists.
    #[must_use]
    pub fn contains(&self, key: &ObjectKey) -> bool {
        match key.place {
            DirectoryId::Filters | DirectoryId::Machine | DirectoryId::Interface(_) => true,
            DirectoryId::Class(ref path, ref node, _) => {
                self.directory(&DirectoryId::Node(*path, node.clone())).is_some()
            }
            _ => self.directory(&key.place).is_some(),
        }
    }

    /// Returns true if an object is the directory of a class that no arc carries.
    #[must_use]
    pub fn is_unlisted_class(&self, key: &ObjectKey) -> bool {
        let is_class = matches!(key.place, DirectoryId::Class(..));
        is_class && key.part == DirectoryObject::Whole && self.directory(&key.place).is_none()
    }

    /// Returns true if a file can be opened for writing: a stream, or an argument that a running
    /// filter can change.
    #[must_use]
    pub fn is_writable(&self, key: &ObjectKey) -> bool {
        match &key.part {
            DirectoryObject::Stream(stream) => {
                stream.from.is_none() && stream.form != StreamForm::Json
            }
            DirectoryObject::Text(FileText::Argument(name)) => self
                .directory(&key.place)
                .and_then(|place| self.first_node(place))
                .is_some_and(|(_, node)| {
                    node.arguments.iter().any(|known| known.name == *name && known.writable)
                }),
            DirectoryObject::Text(FileText::Freeze) => true,
            _ => false,
        }
    }

    /// Returns the listed entries of a directory, or `None` if the directory does not exist.
    /// `names` contains the names that cannot be derived from the tree: reasons for losses, or
    /// interfaces of the machine.
    #[must_use]
    pub fn entries(&self, key: &ObjectKey, names: &[String]) -> Option<Vec<Entry>> {
        match (&key.part, &key.place) {
            (DirectoryObject::Whole, _) => {
                let mut entries = self.fixed_entries(key, names)?;
                let directory = self.directory(&key.place);
                entries.extend(directory.into_iter().flat_map(|of| self.children(key, of)));
                Some(entries)
            }
            (DirectoryObject::Config, _) => {
                let (_, node) = self.first_node(self.directory(&key.place)?)?;
                let argument = |argument: &paths::Argument| {
                    key.text_entry(&argument.name, FileText::Argument(argument.name.clone()))
                };
                let mut entries: Vec<Entry> = node.arguments.iter().map(argument).collect();
                entries.dedup_by(|one, other| one.name == other.name);
                Some(entries)
            }
            (DirectoryObject::Stats, _) => Some(vec![
                key.text_entry("blocks", FileText::Blocks),
                key.text_entry("bytes", FileText::Bytes),
                key.text_entry("ns_per_block", FileText::NsPerBlock),
                key.text_entry("taken_by_readers", FileText::Read),
                key.text_entry("missed_by_readers", FileText::Missed),
                key.text_entry("written", FileText::Written),
                key.entry("dropped", DirectoryObject::Dropped),
            ]),
            (DirectoryObject::Dropped, _) => {
                let lost = |reason: &String| {
                    key.text_entry(&crate::names::escape(reason), FileText::Lost(reason.clone()))
                };
                Some(names.iter().map(lost).collect())
            }
            (DirectoryObject::State, _) => {
                let (_, node) = self.first_node(self.directory(&key.place)?)?;
                let state = |name: &str| key.text_entry(name, FileText::State(name.to_owned()));
                Some(published_state_name(node).map(state).into_iter().collect())
            }
            (DirectoryObject::Streams, DirectoryId::Root) => {
                Some(vec![key.entry(EVENTS_STREAM, DirectoryObject::Events)])
            }
            (DirectoryObject::Streams, _) => {
                let forms = self.stream_forms(&key.place).into_iter();
                Some(forms.map(|(form, name)| key.entry(name, stream(form, None))).collect())
            }
            _ => None,
        }
    }

    /// Returns the entries of a directory that are neither filters nor links between filters.
    /// Returns `None` if the directory does not exist. `names` is as in [`entries`](Self::entries).
    fn fixed_entries(&self, key: &ObjectKey, names: &[String]) -> Option<Vec<Entry>> {
        match &key.place {
            DirectoryId::Root => Some(root_entries(key)),
            DirectoryId::Filters => {
                let manual =
                    |name: &&str| key.text_entry(name, FileText::Manual((*name).to_owned()));
                Some(paths::manual_names().iter().map(manual).collect())
            }
            DirectoryId::Machine => {
                let interface = |name: &String| Entry {
                    name: crate::names::escape(name),
                    key: ObjectKey::directory(DirectoryId::Interface(name.clone())),
                };
                Some(names.iter().map(interface).collect())
            }
            DirectoryId::Interface(_) => Some(vec![key.text_entry("others", FileText::Neighbors)]),
            _ => self.node_or_path_entries(key),
        }
    }

    fn node_or_path_entries(&self, key: &ObjectKey) -> Option<Vec<Entry>> {
        let mut entries = Vec::new();
        let directory = self.directory(&key.place);
        // The directory of a class exists even if no arc carries the class.
        if directory.is_none() && !self.contains(key) {
            return None;
        }
        for (_, name) in self.stream_forms(&key.place) {
            entries.push(key.entry(name, DirectoryObject::Link(name.to_owned())));
        }
        if let (DirectoryId::Node(..) | DirectoryId::Path(_), Some(directory)) =
            (&key.place, directory)
            && let Some((_, node)) = self.first_node(directory)
        {
            if !node.arguments.is_empty() {
                entries.push(key.entry("config", DirectoryObject::Config));
            }
            entries.push(key.entry("stats", DirectoryObject::Stats));
            if published_state_name(node).is_some() {
                entries.push(key.entry("state", DirectoryObject::State));
            }
            entries.push(key.text_entry("place", FileText::Space));
            match node.space == KERNEL_SPACE_NAME {
                true => entries.push(key.text_entry("hook", FileText::Hook)),
                false => entries.extend([
                    key.text_entry("replicas", FileText::Replicas),
                    key.text_entry("process", FileText::Process),
                    key.text_entry("processors", FileText::Processors),
                ]),
            }
            entries.push(key.text_entry("why", FileText::PlacementReason));
            if has_ebpf_program(node) {
                entries.push(key.text_entry("program", FileText::Program));
            }
            if node.form == "frame" && paths::is_source(&node.filter) {
                entries.push(key.text_entry("freeze", FileText::Freeze));
            }
        }
        if let DirectoryId::Path(_) = key.place {
            entries.push(key.text_entry("request", FileText::Request));
        }
        debug_assert!(entries.iter().all(|entry| is_fixed_entry_name(&entry.name)), "{entries:?}");
        Some(entries)
    }

    fn children<'t>(
        &'t self,
        key: &'t ObjectKey,
        directory: &'t Directory,
    ) -> impl Iterator<Item = Entry> + 't {
        directory.children.iter().filter_map(move |(name, child)| {
            Some(Entry { name: name.clone(), key: self.child_key(key, name, child)? })
        })
    }

    fn child_key(&self, key: &ObjectKey, name: &str, child: &Child) -> Option<ObjectKey> {
        Some(match child {
            Child::Directory(at) => ObjectKey::directory(self.directories.get(*at)?.place.clone()),
            Child::Link(_) => key.sibling(DirectoryObject::Link(name.to_owned())),
        })
    }

    /// Returns the stream formats that a node supports, with the file names of these streams.
    fn stream_forms(&self, place: &DirectoryId) -> Vec<(StreamForm, &'static str)> {
        let node = match place {
            DirectoryId::Class(path, node, _) => DirectoryId::Node(*path, node.clone()),
            place => place.clone(),
        };
        let node = self.directory(&node).and_then(|directory| self.first_node(directory));
        let form = node.map_or("", |(_, node)| node.form.as_str());
        let has = |(known, _): &(StreamForm, &str)| match known {
            StreamForm::Capture => matches!(form, "frame" | "packet" | "segment"),
            StreamForm::Bytes | StreamForm::Json => !form.is_empty(),
        };
        StreamForm::ALL.into_iter().filter(has).collect()
    }

    /// Returns the target of a symbolic link, or `None` if the link does not exist.
    #[must_use]
    pub fn link_target(&self, key: &ObjectKey) -> Option<String> {
        let DirectoryObject::Link(name) = &key.part else { return None };
        let directory = self.directory(&key.place);
        match directory.and_then(|directory| directory.child(name)) {
            Some(Child::Link(target)) => Some(target.clone()),
            Some(Child::Directory(_)) => None,
            None => Some(format!("{STREAMS_DIRECTORY}/{name}")),
        }
    }
}

/// Returns true if this is the name of a fixed entry. A fixed entry of the directory of a path, a
/// node or a class is neither a filter nor a link to a filter.
fn is_fixed_entry_name(name: &str) -> bool {
    STREAM_ENTRIES.contains(&name) || name == "freeze"
}

/// Returns true if a node is a filter that runs as an eBPF program in the kernel, so that its
/// instructions can be listed.
fn has_ebpf_program(node: &paths::NodeDetails) -> bool {
    let is_filter = !node.filter.is_empty() && !node.form.is_empty();
    is_filter && node.space == KERNEL_SPACE_NAME && !paths::is_source(&node.filter)
}

/// Returns the name under which a filter publishes its state, or `None` if it publishes none.
fn published_state_name(node: &paths::NodeDetails) -> Option<&str> {
    let state = node.arguments.iter().find(|argument| argument.name == "state")?;
    Some(state.value.as_str()).filter(|name| !name.is_empty())
}

fn root_entries(key: &ObjectKey) -> Vec<Entry> {
    vec![
        key.text_entry("README", FileText::Readme),
        key.text_entry(".error", FileText::Error),
        // The events are behind a link, because a program that reads every file of the tree would
        // never reach their end.
        key.entry(EVENTS_STREAM, DirectoryObject::Link(EVENTS_STREAM.to_owned())),
        Entry { name: ".filters".to_owned(), key: ObjectKey::directory(DirectoryId::Filters) },
        Entry { name: ".machine".to_owned(), key: ObjectKey::directory(DirectoryId::Machine) },
    ]
}

const fn stream(form: StreamForm, from: Option<String>) -> DirectoryObject {
    DirectoryObject::Stream(Stream { form, from })
}
