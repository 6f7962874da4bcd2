//! Opening and reading of files. A text file keeps its content from open to close.

use super::{Handle, Outcome, Server, lock};
use crate::content::{self, CountersByPath};
use crate::edits::Refusal;
use crate::entries::{DirectoryObject, FileText, ObjectKey, Stream};
use crate::protocol::{Header, O_ACCMODE, Operation, Request, errno};
use crate::snapshot::{COUNTERS_LIFETIME, REPLY_TIMEOUT, SAMPLE_INTERVAL, SNAPSHOT_LIFETIME};
use crate::streams::{StreamFacts, StreamOrigin, TapConnection};
use crate::transfer::StreamInput;
use crate::tree::{DirectoryId, NodeIndex, Tree};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;
use streamline::paths::{self, ClientError, Memfd, PathClient, TapParameters, TapRingReader};

/// Reply flag: the kernel forwards every read instead of caching (`FOPEN_DIRECT_IO`). lseek(2)
/// succeeds but has no effect on a stream; tools such as head(1) fail if they cannot seek in a
/// regular file.
pub(super) const FOPEN_DIRECT_IO: u32 = 1;
/// Time without a read after which the path ends a tap, in ms.
const IDLE_TAP_LIMIT_MS: u64 = 24 * 3600 * 1000;

impl Server {
    /// Returns true if a request must see a change that this process has made to a path and has not
    /// queried yet.
    pub(super) fn needs_update(&self, request: &Request) -> bool {
        let depends = matches!(
            request.operation,
            Operation::GetAttributes
                | Operation::SetAttributes(_)
                | Operation::ReadLink
                | Operation::ReadDirectory { .. }
        );
        depends && self.snapshots.has_unqueried_changes()
    }

    /// Returns true if paths must be queried to answer a request, even if the snapshot is current.
    /// This is the case for streams, events and texts that no snapshot contains, and for counters
    /// that are missing or too old.
    pub(super) fn needs_query(&self, request: &Request) -> bool {
        let key = || lock(&self.inodes).key(request.header.inode);
        let are_known = |key: &ObjectKey, age| {
            let paths = content::counted_paths(&self.snapshots.latest().tree, &key.place);
            self.snapshots.has_counters(&paths, age)
        };
        let counts = |key: ObjectKey| match &key.part {
            DirectoryObject::Stream(_) | DirectoryObject::Events => true,
            DirectoryObject::Text(
                FileText::Neighbors | FileText::NsPerBlock | FileText::Missed | FileText::State(_),
            ) => true,
            DirectoryObject::Dropped => !are_known(&key, SNAPSHOT_LIFETIME),
            DirectoryObject::Text(text) => {
                text.is_from_counters() && !are_known(&key, COUNTERS_LIFETIME)
            }
            _ => false,
        };
        match request.operation {
            Operation::Lookup(_) | Operation::OpenDirectory | Operation::Open(_) => {
                key().is_some_and(counts)
            }
            _ => false,
        }
    }

    pub(super) fn open(&self, header: &Header, flags: u32) -> Result<Outcome, i32> {
        let key = self.key(header.inode)?;
        if flags & O_ACCMODE != 0 {
            return self.open_for_writing(header, &key, flags & O_ACCMODE);
        }
        match &key.part {
            DirectoryObject::Text(text) => {
                let text = self.text(&key, text, header.uid)?;
                let handle = self.add_handle(Handle::Text(Arc::new(text.into_bytes())));
                Ok(Outcome::Opened(handle, FOPEN_DIRECT_IO))
            }
            DirectoryObject::Events => {
                let refuse = |error: ClientError| Refusal::new(errno::EIO, error.to_string());
                // The connection is made as the caller, because the daemon reports to each user
                // only the paths that this user may see.
                let caller = self.caller(header);
                let client = caller.run_as_caller(|| self.snapshots.connect().map_err(refuse));
                let followed =
                    client.and_then(|to| crate::events::follow_events(to).map_err(refuse));
                let (pipe, events) = followed.map_err(|Refusal { errno, why }| {
                    self.record_failure(header.uid, errno, why)
                })?;
                let facts = StreamFacts { uid: header.uid, place: None, totals: None };
                let input = StreamInput::new(pipe, None).map_err(|error| error.errno)?;
                self.add_stream(input, (StreamOrigin::Events(events), facts))
            }
            DirectoryObject::Stream(stream) => self.open_stream(&key, stream, header.uid),
            _ => Err(errno::EOPNOTSUPP),
        }
    }

    /// Opens a tap for a stream at its node. Blocks until the path has replied.
    fn open_stream(&self, key: &ObjectKey, stream: &Stream, uid: u32) -> Result<Outcome, i32> {
        let snapshot = self.snapshots.latest();
        let tree = &snapshot.tree;
        let directory = tree.directory(&key.place.without_class()).ok_or(errno::ENOENT)?;
        // Any of the nodes will do: paths with equal beginnings carry the same blocks here.
        let mut refused = None;
        for member in &directory.members {
            match self.tap(tree, *member, key.place.class(), stream) {
                Ok((to, input, _)) => {
                    let totals = Some(self.totals.directory_totals(&key.place, tree));
                    let place = Some((key.place.clone(), stream.form));
                    let facts = StreamFacts { uid, place, totals };
                    return self
                        .add_stream(input, (StreamOrigin::Path(TapConnection::new(to)), facts));
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        let Some((errno, why)) = refused else { return Err(errno::ENOENT) };
        Err(self.record_failure(uid, errno, why))
    }

    fn add_stream(
        &self,
        input: StreamInput,
        of: (StreamOrigin, StreamFacts),
    ) -> Result<Outcome, i32> {
        let handle = self.next_handle();
        self.streams.add(handle, input, of);
        Ok(Outcome::Opened(handle, FOPEN_DIRECT_IO))
    }

    /// Opens a tap at a node. The tap lasts until the connection to the path is closed. Returns the
    /// connection, the output of the tap, and the number of blocks that had left the node before
    /// the tap began. Fails with an error number and a reason.
    pub(super) fn tap(
        &self,
        tree: &Tree,
        member: NodeIndex,
        classes: &str,
        stream: &Stream,
    ) -> Result<(PathClient, StreamInput, u64), (i32, String)> {
        let (Some(view), Some(node)) = (tree.paths.get(member.path), tree.node(member)) else {
            return Err(errno_and_reason(&ClientError::Disconnected));
        };
        let daemon = self.snapshots.connect().map_err(|error| errno_and_reason(&error))?;
        let number = view.path.number.to_string();
        let to = paths::connect(&daemon, &number).map_err(|error| errno_and_reason(&error))?;
        let wanted = TapParameters {
            node: node.id.is_none().then(|| node.name.clone()),
            id: node.id,
            from: stream.from.clone(),
            all: None,
            patience_ms: Some(IDLE_TAP_LIMIT_MS),
            classes: Some(classes.to_owned()),
            form: Some(stream.form.name().to_owned()),
            ..TapParameters::default()
        };
        let (began, pipe, file) =
            to.tap_with_shared_ring(&wanted).map_err(|error| errno_and_reason(&error))?;
        if stream.from.is_some() && !began.remembers {
            let why = "the path keeps no past of this filter: sources keep it in paths started \
                       with --history=64M";
            return Err((errno::EOPNOTSUPP, why.to_owned()));
        }
        let input = stream_input(pipe, file).map_err(|why| (errno::EIO, why))?;
        Ok((to, input, began.block))
    }

    /// Returns the current text of a file.
    fn text(&self, key: &ObjectKey, text: &FileText, uid: u32) -> Result<String, i32> {
        let snapshot = self.snapshots.latest();
        let tree = &snapshot.tree;
        match text {
            FileText::Error => Ok(self.failures.latest_failure_line(uid)),
            FileText::Read => Ok(format!("{}\n", self.totals.read_and_written(&key.place).0)),
            FileText::Written => Ok(format!("{}\n", self.totals.read_and_written(&key.place).1)),
            FileText::Missed => self.missed_blocks_text((tree, key), uid),
            FileText::Freeze => Ok(format!("{}s\n", self.freeze_seconds_left(&key.place))),
            FileText::Neighbors => {
                let DirectoryId::Interface(name) = &key.place else { return Err(errno::ENOENT) };
                Ok(paths::format_neighbors_at(name))
            }
            FileText::State(name) => {
                let owner = tree.directory(&key.place).ok_or(errno::ENOENT)?.uid;
                paths::read_published_state(owner, name, REPLY_TIMEOUT).map_err(|why| {
                    let directory = tree.path_from_root(key);
                    self.record_failure(uid, errno::EIO, format!("{directory}/state/{name}: {why}"))
                })
            }
            FileText::Readme if snapshot.failure.is_some() => {
                let why = snapshot.failure.as_deref().unwrap_or_default();
                let text =
                    content::file_text(tree, key, &CountersByPath::new()).unwrap_or_default();
                Ok(format!("No paths are shown now: {why}\n\n{text}"))
            }
            FileText::NsPerBlock => self.time_per_block((tree, key), uid),
            text if text.is_from_counters() => {
                let counters = self.counters((tree, key), COUNTERS_LIFETIME, uid)?;
                content::file_text(tree, key, &counters).ok_or(errno::ENOENT)
            }
            _ => content::file_text(tree, key, &CountersByPath::new()).ok_or(errno::ENOENT),
        }
    }

    /// Returns the counters of all paths of a directory, which are at most about `age` old. Fails
    /// if a path does not return its counters, because sums without them would be wrong.
    pub(super) fn counters(
        &self,
        (tree, key): (&Tree, &ObjectKey),
        age: Duration,
        uid: u32,
    ) -> Result<CountersByPath, i32> {
        let wanted = content::counted_paths(tree, &key.place);
        let counters = self.snapshots.counters(&wanted, age);
        match wanted.iter().find(|(_, number)| !counters.contains_key(number)) {
            None => Ok(counters),
            Some((_, number)) => Err(self.record_unresponsive_path((tree, key), *number, uid)),
        }
    }

    /// Records, as the reason for the user's failure, that a path does not reply. Returns the error
    /// number.
    pub(super) fn record_unresponsive_path(
        &self,
        (tree, key): (&Tree, &ObjectKey),
        number: u32,
        uid: u32,
    ) -> i32 {
        let directory = tree.path_from_root(key);
        let why = format!(
            "{directory}: path {number} does not return its counters: its process is stopped, or \
             overloaded"
        );
        self.record_failure(uid, errno::EIO, why)
    }

    /// Returns, as text, the number of blocks that were skipped for the readers of a directory's
    /// streams.
    fn missed_blocks_text(
        &self,
        (tree, key): (&Tree, &ObjectKey),
        uid: u32,
    ) -> Result<String, i32> {
        let ended = self.totals.missed(&key.place);
        match self.streams.skipped_blocks(&key.place) {
            Some(skipped) => Ok(format!("{}\n", ended + skipped)),
            None => {
                let number = content::counted_paths(tree, &key.place).first().map(|(_, n)| *n);
                Err(self.record_unresponsive_path((tree, key), number.unwrap_or_default(), uid))
            }
        }
    }

    /// Returns, as text, the time that the nodes of a directory spend on a block, measured over
    /// [`SAMPLE_INTERVAL`]. Stays connected to the paths during
    /// the interval, because a path measures time only while a client that has requested counters
    /// is connected.
    fn time_per_block(&self, (tree, key): (&Tree, &ObjectKey), uid: u32) -> Result<String, i32> {
        let wanted = content::counted_paths(tree, &key.place);
        let samples = self.snapshots.two_counter_samples(&wanted);
        if let Some((_, number)) = wanted.iter().find(|(_, number)| !samples.1.contains_key(number))
        {
            return Err(self.record_unresponsive_path((tree, key), *number, uid));
        }
        let busy = |counters| content::busy_time_and_blocks(tree, key, counters);
        let ((ns, blocks), (ns_later, blocks_later)) = (busy(&samples.0), busy(&samples.1));
        let blocks = blocks_later.saturating_sub(blocks);
        Ok(match ns_later.saturating_sub(ns).checked_div(blocks) {
            Some(0) if blocks > 0 && ns_later == ns => {
                "unknown: the time of this filter is not measured\n".to_owned()
            }
            Some(ns) => format!("{ns}\n"),
            None => {
                format!("unknown: no block arrived within {} ms\n", SAMPLE_INTERVAL.as_millis())
            }
        })
    }

    pub(super) fn read_text(&self, handle: u64, offset: u64, size: u32) -> Result<Outcome, i32> {
        let text = match lock(&self.handles).get(&handle) {
            Some(Handle::Text(text)) => Arc::clone(text),
            Some(Handle::Directory(_)) => return Err(errno::EISDIR),
            Some(Handle::Argument { .. } | Handle::Freeze(_)) => return Err(errno::EINVAL),
            None => return Err(errno::ESTALE),
        };
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(text.len());
        let end = start.saturating_add(size as usize).min(text.len());
        Ok(Outcome::Data(text.get(start..end).unwrap_or_default().to_vec()))
    }
}

/// Returns the input of a stream: the pipe of a tap, or its socket with the ring in `file`. Fails
/// with a reason if `file` is not a ring.
fn stream_input(pipe: OwnedFd, file: Option<Memfd>) -> Result<StreamInput, String> {
    let text = |error: sys::Error| error.to_string();
    let ring = file.as_ref().map(TapRingReader::open).transpose().map_err(text)?;
    if matches!(ring, Some(None)) {
        return Err("the path shares memory that is not a ring".to_owned());
    }
    StreamInput::new(pipe, ring.flatten()).map_err(text)
}

/// Converts a failed call to an error number and a text.
pub(super) fn errno_and_reason(error: &ClientError) -> (i32, String) {
    let number = match error {
        // A stopped process may refuse the connection instead of delaying it; the user gets the
        // same error in both cases.
        error if error.is_unresponsive() => {
            return (errno::ETIMEDOUT, ClientError::Timeout.to_string());
        }
        ClientError::PathEnded(_) | ClientError::Disconnected => errno::ENOENT,
        _ => errno::EOPNOTSUPP,
    };
    (number, error.to_string())
}
