//! The client of the daemon and of the processes that run paths.
//!
//! A call blocks for at most [`CALL_TIMEOUT`], and an expensive call for at most
//! [`EXPENSIVE_CALL_TIMEOUT`]. A query of many paths ([`Client::query_all`]) has one time limit for
//! all paths together, usually [`QUERY_TIMEOUT`]. A caller can poll the socket of a [`PathClient`]
//! together with other descriptors, and call [`PathClient::next_update`] when it is readable. Peers
//! are untrusted: replies are bounded and checked, and [`mask_hidden_characters`] makes received
//! text safe to display.

mod caller;
mod ended_paths;
mod error;
mod path;
mod reports;

pub(crate) use caller::Caller;
pub use caller::{CALL_TIMEOUT, EXPENSIVE_CALL_TIMEOUT};
pub use error::{ClientError, mask_hidden_characters};
pub use path::{COUNT_METHOD, DESCRIBE_METHOD, NODES_METHOD, PathClient, STOP_METHOD};

use crate::daemon_directories::{self, PACKET_SOCKET};
use crate::gather::gather_answers;
use crate::protocol::{
    ConnectParameters, ConnectReply, CountReply, Counters, DaemonDescription, KernelPrograms,
    NoParameters, PathCountParameters, PathDescription, PathList, PathListEvent, PathNumber,
    Permissions, RegisterParameters, RegisteredPath,
};
use crate::varlink::{Call, MessageError, Reply};
use std::cell::Cell;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path as FilePath, PathBuf};
use std::time::{Duration, Instant};
use sys::local_socket::{self, Framing};

/// Time limit for a query of many paths, for all paths together.
pub const QUERY_TIMEOUT: Duration = Duration::from_secs(2);

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    caller: Caller,
    directory: PathBuf,
}

impl Client {
    /// Connects to the daemon in `directory` or, if that is `None`, in the first standard directory
    /// in which a daemon listens. Fails with [`ClientError::NoDaemon`] if there is no daemon.
    pub fn find(directory: Option<&FilePath>) -> Result<Self, ClientError> {
        let places = match directory {
            Some(directory) => vec![directory.to_owned()],
            None => daemon_directories::search_directories(),
        };
        for place in &places {
            match Self::connect_at(place) {
                Err(ClientError::NoDaemon(_)) => {}
                found => return found,
            }
        }
        Err(ClientError::NoDaemon(places))
    }

    /// Connects to the daemon in this directory. Fails with [`ClientError::UntrustedDaemon`] unless
    /// the daemon runs as root, as this user or as the owner of the machine-wide directory.
    pub fn connect_at(directory: &FilePath) -> Result<Self, ClientError> {
        let socket = local_socket::connect_to(
            &directory.join(PACKET_SOCKET),
            Framing::Packets,
            CALL_TIMEOUT,
        );
        let socket = socket.map_err(|error| match error.errno {
            ENOENT | ECONNREFUSED | ENOTDIR => ClientError::NoDaemon(vec![directory.to_owned()]),
            _ => error.into(),
        })?;
        let (uid, _) = sys::descriptor::peer_uid_and_gid(&socket)?;
        if uid != ROOT_UID
            && uid != sys::process::effective_ids().0
            && !daemon_directories::is_machine_owner(directory, uid)
        {
            return Err(ClientError::UntrustedDaemon { directory: directory.to_owned(), uid });
        }
        Ok(Self { caller: Caller::new(socket), directory: directory.to_owned() })
    }

    /// Connects to a daemon that runs in this process: sends one end of a new socket pair to it.
    /// `acceptor` is the socket over which the daemon receives such connections.
    pub fn connect_in_process(
        acceptor: BorrowedFd<'_>,
        directory: &FilePath,
    ) -> Result<Self, ClientError> {
        let (own_end, peer_end) = sys::descriptor::socket_pair()?;
        sys::descriptor::send(acceptor, b"client", &[peer_end.as_fd()])?;
        local_socket::set_timeouts(&own_end, CALL_TIMEOUT)?;
        Ok(Self { caller: Caller::new(own_end), directory: directory.to_owned() })
    }

    /// Returns the directory that contains the daemon's sockets.
    #[must_use]
    pub fn directory(&self) -> &FilePath {
        &self.directory
    }

    /// Returns the version, process, user, start time and policy file of the daemon.
    pub fn describe_daemon(&self) -> Result<DaemonDescription, ClientError> {
        self.caller.call("io.streamline.About", &NoParameters {})
    }

    /// Returns the privileges and the quota of this user.
    pub fn permissions(&self) -> Result<Permissions, ClientError> {
        self.caller.call("io.streamline.Allowed", &NoParameters {})
    }

    /// Returns the kernel programs of the daemon that are visible to this user. Blocks for at most
    /// [`EXPENSIVE_CALL_TIMEOUT`].
    pub fn kernel_programs(&self) -> Result<KernelPrograms, ClientError> {
        // The thread that replies also loads programs, one after another.
        self.caller.call_with_long_timeout("io.streamline.Sharing", &NoParameters {})
    }

    /// Converts this client to a bare connection whose calls have the timeout `limit`.
    pub(crate) fn into_caller(self, limit: Duration) -> Result<Caller, ClientError> {
        self.caller.set_timeout(limit);
        Ok(self.caller)
    }

    /// Returns all paths that are visible to this user.
    pub fn list_paths(&self) -> Result<Vec<RegisteredPath>, ClientError> {
        self.caller
            .send(&Call { more: true, ..Call::new("io.streamline.List", &NoParameters {}) }, &[])?;
        let mut all = Vec::new();
        loop {
            let (PathList { paths }, continues) = self.caller.receive_next_result()?;
            all.extend(paths);
            if !continues {
                return Ok(all);
            }
        }
    }

    /// Subscribes to the events that [`next_event`](Self::next_event) returns: first all visible
    /// paths, then each path that starts, changes or ends. Does not wait for a reply.
    pub fn watch_paths(&self) -> Result<(), ClientError> {
        let call = Call::new("io.streamline.Watch", &NoParameters {});
        self.caller.send(&Call { more: true, ..call }, &[])
    }

    /// Returns the next event. Blocks for up to [`CALL_TIMEOUT`] unless the socket is readable.
    pub fn next_event(&self) -> Result<PathListEvent, ClientError> {
        Ok(self.caller.receive_subscription_update()?.0.deserialize_result()?)
    }

    /// Connects to the process of the path with this name, number or `UID/NAME`. Fails with
    /// [`ClientError::Refused`] if the daemon does not find the path or does not permit access.
    pub fn connect(&self, path: &str) -> Result<PathClient, ClientError> {
        let wanted = ConnectParameters { path: path.to_owned() };
        self.caller.send(&Call::new("io.streamline.Connect", &wanted), &[])?;
        let (reply, descriptors) = self.caller.receive_reply()?;
        let ConnectReply { number, uid } = reply.deserialize_result()?;
        let mut descriptors = descriptors.into_iter();
        match (descriptors.next(), descriptors.next()) {
            (Some(socket), Some(process)) => {
                local_socket::set_timeouts(&socket, CALL_TIMEOUT)?;
                let path = path.to_owned();
                let (caller, followed) = (Caller::new(socket), Cell::new(None));
                Ok(PathClient { caller, path, process, number, uid, subscription_ms: followed })
            }
            _ => Err(ClientError::Malformed(MessageError::Invalid(
                "the reply contains no descriptors".to_owned(),
            ))),
        }
    }

    /// Connects as [`connect`](Self::connect) does, but waits for the daemon for at most `limit`.
    /// The limit remains in force for later calls of this client.
    pub fn connect_within(&self, path: &str, limit: Duration) -> Result<PathClient, ClientError> {
        self.caller.set_timeout(limit);
        self.connect(path)
    }

    /// Calls each of `methods`, which must have no parameters, on many paths in parallel. A path is
    /// given by the user id of its owner and its name. Passes each connection with its replies to
    /// `take`, and returns the result of `take` for each path.
    ///
    /// Blocks for at most `limit` in total, including the wait for the daemon. Returns the results
    /// in the order of `paths`; the result for a path that has not replied in time is
    /// [`ClientError::Timeout`].
    pub fn query_all<R>(
        &self,
        paths: &[(u32, String)],
        methods: &[&str],
        limit: Duration,
        take: impl Fn(PathClient, Vec<Reply>) -> Result<R, ClientError>,
    ) -> Vec<Result<R, ClientError>> {
        let calls: Vec<Call> =
            methods.iter().map(|method| Call::new(method, &NoParameters {})).collect();
        let each = |(uid, path): &(u32, String)| (*uid, (path.clone(), calls.clone()));
        self.call_all(&Vec::from_iter(paths.iter().map(each)), limit, take)
    }

    /// Queries many paths as [`query_all`](Self::query_all) does, but with a list of calls for each
    /// path. A path is given by the user id of its owner, its name, and the calls.
    pub fn call_all<R>(
        &self,
        paths: &[(u32, (String, Vec<Call>))],
        limit: Duration,
        take: impl Fn(PathClient, Vec<Reply>) -> Result<R, ClientError>,
    ) -> Vec<Result<R, ClientError>> {
        self.call_all_reusing_idle(paths, |_| None, limit, take)
    }

    /// Queries many paths as [`call_all`](Self::call_all) does, but reuses idle connections. `idle`
    /// returns an idle connection to the path with this name, on which no reply is outstanding. If
    /// `idle` returns `None`, opens a connection through the daemon.
    pub fn call_all_reusing_idle<R>(
        &self,
        paths: &[(u32, (String, Vec<Call>))],
        idle: impl Fn(&str) -> Option<PathClient>,
        limit: Duration,
        take: impl Fn(PathClient, Vec<Reply>) -> Result<R, ClientError>,
    ) -> Vec<Result<R, ClientError>> {
        let deadline = Instant::now() + limit;
        let send = |to: PathClient, calls: &[Call], was_idle| {
            calls.iter().try_for_each(|call| to.caller.send(call, &[]))?;
            Ok(PendingReplies { to, was_idle, replies: Vec::new() })
        };
        let connect = |path: &str, calls: &[Call]| {
            let left = deadline.saturating_duration_since(Instant::now());
            self.caller.set_timeout(left);
            send(self.connect(path)?, calls, false)
        };
        let begin = |(path, calls): &(String, Vec<Call>)| match idle(path) {
            Some(to) => send(to, calls, true).or_else(|_| connect(path, calls)).map_err(Err),
            None => connect(path, calls).map_err(Err),
        };
        let next = |(path, calls): &(String, Vec<Call>), mut asked: PendingReplies| {
            match asked.to.caller.receive_reply() {
                // The path has closed the idle connection.
                Err(ClientError::Disconnected) if asked.was_idle => {
                    return match connect(path, calls) {
                        Ok(asked) => ControlFlow::Continue(asked),
                        Err(error) => ControlFlow::Break(Err(error)),
                    };
                }
                Err(error) => return ControlFlow::Break(Err(asked.to.convert_hangup(error))),
                Ok((reply, _)) => asked.replies.push(reply),
            }
            match asked.replies.len() < calls.len() {
                true => ControlFlow::Continue(asked),
                false => ControlFlow::Break(take(asked.to, asked.replies)),
            }
        };
        let answers = gather_answers(paths, limit, begin, next);
        // If the connection to the daemon has failed, the next call reports the error.
        self.caller.set_timeout(CALL_TIMEOUT);
        let answers = answers.into_iter().map(|answer| answer.unwrap_or(Err(ClientError::Timeout)));
        let mut answers: Vec<_> = answers.collect();
        self.correct_ended_path_errors(paths, &mut answers);
        answers
    }

    /// Queries the counters of many paths as [`query_all`](Self::query_all) does, and also calls
    /// the methods `also` on each path. Passes the connection, the counters and the replies to
    /// `take`. Blocks for at most `limit`, plus [`CALL_TIMEOUT`] for each further page of counters.
    /// Queries a path of an older version twice, which takes at most `limit` more.
    pub fn query_all_counters<R>(
        &self,
        paths: &[(u32, String)],
        also: &[&str],
        limit: Duration,
        take: impl Fn(PathClient, Counters, Vec<Reply>) -> Result<R, ClientError>,
    ) -> Vec<Result<R, ClientError>> {
        let query = |paths: &[(u32, String)], first: Option<usize>| {
            let count = std::iter::once(Call::new(
                COUNT_METHOD,
                &PathCountParameters { first, timed: None },
            ));
            let also = also.iter().map(|method| Call::new(method, &NoParameters {}));
            let calls: Vec<Call> = count.chain(also).collect();
            let each = |(uid, path): &(u32, String)| (*uid, (path.clone(), calls.clone()));
            let paths: Vec<_> = paths.iter().map(each).collect();
            self.call_all(&paths, limit, |to, replies| {
                let mut replies = replies.into_iter();
                let first: CountReply = replies.next().unwrap_or_default().deserialize_result()?;
                let counters = to.request_remaining_counters(first)?;
                take(to, counters, replies.collect())
            })
        };
        let mut counted = query(paths, Some(0));
        for (result, path) in counted.iter_mut().zip(paths) {
            if matches!(result, Err(ClientError::Refused(_))) {
                // A path of an older version returns all counters at once.
                let again = query(std::slice::from_ref(path), None).pop();
                *result = again.unwrap_or(Err(ClientError::Timeout));
            }
        }
        counted
    }

    /// Connects to a path and fetches its description within [`QUERY_TIMEOUT`]. This detects a
    /// stopped process before an expensive call.
    pub fn connect_and_describe(
        &self,
        path: &str,
    ) -> Result<(PathClient, PathDescription), ClientError> {
        let paths = [(0, path.to_owned())];
        let described = |to: PathClient, replies: Vec<Reply>| {
            let about = replies.into_iter().next().unwrap_or_default().deserialize_result()?;
            Ok((to, about))
        };
        let mut reached = self.query_all(&paths, &[DESCRIBE_METHOD], QUERY_TIMEOUT, described);
        reached.pop().unwrap_or(Err(ClientError::Timeout))
    }

    /// Registers a path for as long as this connection exists. Returns the path's number. The
    /// daemon passes client connections to the path through `admissions`.
    pub(crate) fn register(
        &self,
        path: &RegisterParameters,
        admissions: BorrowedFd<'_>,
    ) -> Result<u32, ClientError> {
        self.caller.send(&Call::new("io.streamline.Register", path), &[admissions])?;
        let (reply, _) = self.caller.receive_reply()?;
        let PathNumber { number } = reply.deserialize_result()?;
        Ok(number)
    }
}

/// The replies of a queried path that has not sent all of its replies yet.
struct PendingReplies {
    to: PathClient,
    /// True if the query uses a connection that was open and idle; false if it opened one.
    was_idle: bool,
    replies: Vec<Reply>,
}

impl AsFd for PendingReplies {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.to.as_fd()
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.caller.as_fd()
    }
}

const ROOT_UID: u32 = 0;
const ENOENT: i32 = 2;
const ENOTDIR: i32 = 20;
const ECONNREFUSED: i32 = 111;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_daemon_delays_a_query_only_by_its_time_limit() {
        let (own_end, _peer_end) = sys::descriptor::socket_pair().unwrap();
        let client = Client { caller: Caller::new(own_end), directory: PathBuf::new() };
        // With its own timeout, the call to the daemon would block for so long that the test never
        // ends.
        client.caller.set_timeout(Duration::from_secs(1_000_000));
        let paths = [(0, "1".to_owned()), (0, "2".to_owned())];
        let limit = Duration::from_millis(50);
        let answers = client.query_all(&paths, &[COUNT_METHOD], limit, |_, _| Ok(()));
        assert_eq!(answers, [Err(ClientError::Timeout), Err(ClientError::Timeout)]);
    }
}
