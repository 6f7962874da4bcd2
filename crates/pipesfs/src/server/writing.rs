//! Opening of files for writing (streams, arguments of filters, `freeze`), and writes to arguments
//! and to `freeze`. [`Writers`](crate::writers::Writers) handles writes to streams.

use super::open::{FOPEN_DIRECT_IO, errno_and_reason};
use super::{Handle, Outcome, Server, lock};
use crate::entries::{DirectoryObject, FileText, ObjectKey, Stream, StreamForm};
use crate::protocol::{Header, Operation, Request, WriteRequest, errno};
use crate::tree::{DirectoryId, NodeIndex, Tree};
use std::time::{Duration, Instant};
use streamline::paths::{
    self, ChangeParameters, ClientError, FreezeHistoryParameters, PathClient, WriteParameters,
    WriterSocket,
};

/// Reply flag: the kernel allows parallel writes through different open files
/// (`FOPEN_PARALLEL_DIRECT_WRITES`).
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;
/// Access mode of open(2): write-only.
const O_WRONLY: u32 = 1;

impl Server {
    /// Opens a file for writing. `access` is the access mode: write-only or read-write.
    pub(super) fn open_for_writing(
        &self,
        header: &Header,
        key: &ObjectKey,
        access: u32,
    ) -> Result<Outcome, i32> {
        let refused =
            |errno, why: &str| Err(self.record_failure(header.uid, errno, why.to_owned()));
        match &key.part {
            DirectoryObject::Stream(_) if access != O_WRONLY => refused(
                errno::EINVAL,
                "a stream is opened for reading or for writing, not both: what is written is not \
                 what is read",
            ),
            DirectoryObject::Stream(stream) => self.open_writer(key, stream, header.uid),
            DirectoryObject::Text(FileText::Argument(name)) => {
                let (path, node) = self
                    .writable_argument(key, name)
                    .map_err(|(errno, why)| self.record_failure(header.uid, errno, why))?;
                let handle = Handle::Argument { path, node, name: name.clone() };
                Ok(Outcome::Opened(self.add_handle(handle), FOPEN_DIRECT_IO))
            }
            DirectoryObject::Text(FileText::Freeze) => {
                self.only_member(&self.snapshots.latest().tree, &key.place, header.uid)?;
                let handle = self.add_handle(Handle::Freeze(key.place.clone()));
                Ok(Outcome::Opened(handle, FOPEN_DIRECT_IO))
            }
            DirectoryObject::Text(_) | DirectoryObject::Events => refused(
                errno::EACCES,
                "this file is read-only; all, all.pcap, freeze and config can be written",
            ),
            _ => Err(errno::EISDIR),
        }
    }

    /// Attaches a writer to the node of a stream. Blocks until the path has replied.
    fn open_writer(&self, key: &ObjectKey, stream: &Stream, uid: u32) -> Result<Outcome, i32> {
        let refused = |errno, why: String| Err(self.record_failure(uid, errno, why));
        let snapshot = self.snapshots.latest();
        let tree = &snapshot.tree;
        if stream.from.is_some() {
            return refused(errno::EINVAL, "the past cannot be written".to_owned());
        }
        let form = match stream.form {
            StreamForm::Bytes => "bytes",
            StreamForm::Capture => "capture",
            StreamForm::Json => {
                let why = "objects cannot be written: all takes bytes, and all.pcap a capture";
                return refused(errno::EOPNOTSUPP, why.to_owned());
            }
        };
        let (node, class) = match &key.place {
            DirectoryId::Class(path, node, class) => {
                (DirectoryId::Node(*path, node.clone()), class.clone())
            }
            place => (place.clone(), String::new()),
        };
        let member = self.only_member(tree, &node, uid)?;
        let attached = self.attach_writer(tree, member, (class, form));
        let socket = attached.map_err(|error| {
            let (errno, why) = errno_and_reason(&error);
            self.record_failure(uid, errno, why)
        })?;
        let handle = self.next_handle();
        self.writers.add(handle, socket, (uid, self.totals.directory_totals(&key.place, tree)));
        Ok(Outcome::Opened(handle, FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES))
    }

    /// Returns the only node that a directory represents. Fails with EBUSY if the directory
    /// represents nodes of several paths.
    fn only_member(&self, tree: &Tree, place: &DirectoryId, uid: u32) -> Result<NodeIndex, i32> {
        let directory = tree.directory(place).ok_or(errno::ENOENT)?;
        if let [member] = directory.members.as_slice() {
            return Ok(*member);
        }
        let views = directory.members.iter().filter_map(|member| tree.paths.get(member.path));
        let names = views
            .map(|view| view.path.name.clone().unwrap_or_else(|| view.path.number.to_string()));
        let names = names.collect::<Vec<_>>().join(", ");
        let why = format!("several paths begin alike here ({names}): give them different names");
        Err(self.record_failure(uid, errno::EBUSY, why))
    }

    fn attach_writer(
        &self,
        tree: &Tree,
        member: NodeIndex,
        (class, form): (String, &str),
    ) -> Result<WriterSocket, ClientError> {
        let (Some(view), Some(node)) = (tree.paths.get(member.path), tree.node(member)) else {
            return Err(ClientError::Disconnected);
        };
        let daemon = self.snapshots.connect()?;
        let to = paths::connect(&daemon, &view.path.number.to_string())?;
        let wanted = WriteParameters {
            node: node.id.is_none().then(|| node.name.clone()),
            id: node.id,
            class: (!class.is_empty()).then_some(class),
            form: Some(form.to_owned()),
        };
        Ok(WriterSocket::new(to.attach_writer(&wanted)?))
    }

    /// Returns the path number and the node name for the file of an argument. Fails if the argument
    /// cannot be changed while the filter is running, or if the directory represents several paths.
    fn writable_argument(
        &self,
        key: &ObjectKey,
        name: &str,
    ) -> Result<(u32, String), (i32, String)> {
        let snapshot = self.snapshots.latest();
        let tree = &snapshot.tree;
        let gone = || (errno::ENOENT, "the filter no longer exists".to_owned());
        let directory = tree.directory(&key.place).ok_or_else(gone)?;
        let [member] = directory.members.as_slice() else {
            let why = "several paths begin alike here: change each with `streamline set`";
            return Err((errno::EBUSY, why.to_owned()));
        };
        let view = tree.paths.get(member.path).ok_or_else(gone)?;
        let node = tree.node(*member).ok_or_else(gone)?;
        let mut arguments = node.arguments.iter().filter(|argument| argument.name == *name);
        match arguments.next() {
            Some(argument) if argument.writable => Ok((view.path.number, node.name.clone())),
            Some(_) => Err((
                errno::EACCES,
                format!(
                    "`{name}` of `{}` is fixed while the filter runs: `streamline set {} replace` \
                     exchanges the filter",
                    node.name,
                    view.path.name.clone().unwrap_or_else(|| view.path.number.to_string())
                ),
            )),
            None => Err(gone()),
        }
    }

    /// Returns true if a request writes to an argument or to `freeze`, and thereby changes a path.
    pub(super) fn is_argument_write(&self, request: &Request) -> bool {
        let Operation::Write(write) = &request.operation else { return false };
        matches!(
            lock(&self.handles).get(&write.handle),
            Some(Handle::Argument { .. } | Handle::Freeze(_))
        )
    }

    /// Executes a write to an argument or to `freeze`.
    pub(super) fn write_text(&self, header: &Header, write: &WriteRequest) -> Result<Outcome, i32> {
        let place = match lock(&self.handles).get(&write.handle) {
            Some(Handle::Freeze(place)) => Some(place.clone()),
            _ => None,
        };
        match place {
            Some(place) => self.freeze(header, &place, &write.bytes),
            None => self.write_argument(header, write),
        }
    }

    /// Makes a source keep its past output for a time such as `30s`; `0` ends the freeze. Blocks
    /// until the path has replied.
    fn freeze(&self, header: &Header, place: &DirectoryId, time: &[u8]) -> Result<Outcome, i32> {
        let refused = |errno, why: String| self.record_failure(header.uid, errno, why);
        let text = String::from_utf8_lossy(time);
        let ns = match text.trim() {
            "0" => 0,
            text => paths::parse_time(text).map_err(|why| refused(errno::EINVAL, why))?,
        };
        let snapshot = self.snapshots.latest();
        let member = self.only_member(&snapshot.tree, place, header.uid)?;
        let frozen = self.freeze_node(&snapshot.tree, member, ns / 1_000_000);
        frozen.map_err(|error| {
            let (errno, why) = errno_and_reason(&error);
            refused(errno, why)
        })?;
        let until = Instant::now().checked_add(Duration::from_nanos(ns));
        let mut known = lock(&self.frozen_until);
        known.retain(|_, until| *until > Instant::now());
        known.extend(until.map(|until| (place.clone(), until)));
        Ok(Outcome::Written(time.len()))
    }

    fn freeze_node(&self, tree: &Tree, member: NodeIndex, ms: u64) -> Result<(), ClientError> {
        let (Some(view), Some(node)) = (tree.paths.get(member.path), tree.node(member)) else {
            return Err(ClientError::Disconnected);
        };
        let daemon = self.snapshots.connect()?;
        let to = paths::connect(&daemon, &view.path.number.to_string())?;
        let name = node.id.is_none().then(|| node.name.clone());
        to.freeze_history(&FreezeHistoryParameters { node: name, id: node.id, ms })
    }

    /// Returns the remaining time for which a source keeps its past output, in seconds, rounded up.
    pub(super) fn freeze_seconds_left(&self, place: &DirectoryId) -> u64 {
        let known = lock(&self.frozen_until);
        let left = known.get(place).map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(0, |left| left.as_secs() + u64::from(left.subsec_nanos() > 0))
    }

    /// Changes an argument of a running filter. Uses an idle connection to the path if there is
    /// one.
    fn change_argument(&self, path: u32, words: Vec<String>) -> Result<(), ClientError> {
        let change = ChangeParameters { words, ..ChangeParameters::default() };
        let make = |to: PathClient| {
            let changed = to.change_within(&change, self.edit_limit).map(drop);
            if matches!(changed, Ok(()) | Err(ClientError::Refused(_))) {
                self.snapshots.store_idle_connection(to);
            }
            changed
        };
        match self.snapshots.take_idle_connection(path).map(make) {
            // There is no idle connection, or the path has closed it.
            None | Some(Err(ClientError::PathEnded(_) | ClientError::Disconnected)) => {
                make(paths::connect(&self.snapshots.connect()?, &path.to_string())?)
            }
            Some(changed) => changed,
        }
    }

    /// Sets an argument to the value in a write. Blocks until the path has applied the value.
    fn write_argument(&self, header: &Header, write: &WriteRequest) -> Result<Outcome, i32> {
        let (path, node, name) = match lock(&self.handles).get(&write.handle) {
            Some(Handle::Argument { path, node, name }) => (*path, node.clone(), name.clone()),
            _ => return Err(errno::EINVAL),
        };
        let refused = |errno, why: String| Err(self.record_failure(header.uid, errno, why));
        let value = std::str::from_utf8(&write.bytes).ok().map(str::trim_end);
        let Some(value) = value.filter(|value| !value.contains(['\n', '\0'])) else {
            return refused(errno::EINVAL, format!("`{name}` takes one value in one line"));
        };
        let words = ["arg".to_owned(), node, format!("{name}={value}")];
        match self.change_argument(path, words.to_vec()) {
            Ok(()) => {
                self.snapshots.record_path_change(path);
                Ok(Outcome::Written(write.bytes.len()))
            }
            Err(error) => {
                let (number, why) = errno_and_reason(&error);
                let number = if number == errno::EOPNOTSUPP { errno::EINVAL } else { number };
                refused(number, why)
            }
        }
    }
}
