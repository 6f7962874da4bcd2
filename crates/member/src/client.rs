//! The client of the daemon, or of the process of a path.
//!
//! Calls wait no longer than [`PATIENCE`], those that need more than [`LONG`]; many paths are asked
//! at once and wait no longer than [`TOGETHER`] ([`Client::ask_all`]);
//! [`ToPath::followed`] is called when its socket can be read, which can be waited for beside
//! others. What comes back was written by somebody else: it is bounded, checked for its form, and a
//! text in it is not shown before hidden characters were replaced ([`plain`]).

use crate::faults::sentence;
use crate::gather::gather;
use crate::place::{self, PACKETS};
use crate::protocol::{
    About, Allowed, Change, Changed, Connect, Connected, Count, Counters, Described, Follow,
    Followed, NewLine, Number, Path, Paths, Register, Sharing, Tap, Tapped, Tapping,
};
use crate::varlink::{Call, Fault, Malformed, REPLY_MAX, Reply};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::fmt;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;
use sys::local_socket::{self, Framing};

/// The timeout of a call.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// The timeout of a call that needs more than a look: spaces answer between two blocks, the kernel
/// verifies a program, and other calls may be queued before it.
pub const LONG: Duration = Duration::from_secs(120);

/// The timeout of calls to many paths, all together.
pub const TOGETHER: Duration = Duration::from_secs(2);

/// The failure of a call.
#[derive(Clone, PartialEq, Debug)]
pub enum ClientError {
    /// No daemon listens at these addresses.
    Nobody(Vec<PathBuf>),
    /// The listening process belongs to neither root nor this user.
    Stranger {
        /// The directory.
        directory: PathBuf,
        /// The user of the listening process.
        uid: u32,
    },
    /// No answer came in time.
    Silent,
    /// The other side is gone.
    Gone,
    /// This path has ended while it was asked.
    Ended(String),
    /// The answer is malformed.
    Strange(Malformed),
    /// An answer, and not the one that was wanted.
    Refused(Fault),
    /// The kernel refuses.
    System(sys::Error),
}

impl fmt::Display for ClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nobody(places) => {
                let places: Vec<_> = places.iter().map(|p| p.display().to_string()).collect();
                write!(
                    f,
                    "no daemon is in {}: start one by `streamline daemon --user &`, or as root by \
                     `systemctl start streamline` or `streamline daemon &`",
                    places.join(" or ")
                )
            }
            Self::Stranger { directory, uid } => write!(
                f,
                "a process of user {uid} listens in {}, and not root or you: nothing was asked",
                directory.display()
            ),
            Self::Silent => {
                f.write_str("no answer came in time: the other side is stopped, or overrun")
            }
            Self::Gone => f.write_str("the other side has ended"),
            Self::Ended(path) => write!(
                f,
                "path `{}` has just ended: `streamline ps` lists those that run",
                plain(path)
            ),
            Self::Strange(why) => why.fmt(f),
            // Mistakes in a line have lines of their own, which show where they are.
            Self::Refused(fault) => {
                let sentence = sentence(fault);
                let lines: Vec<String> = sentence.trim_end().lines().map(plain).collect();
                f.write_str(&lines.join("\n"))
            }
            Self::System(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ClientError {}

impl From<sys::Error> for ClientError {
    fn from(error: sys::Error) -> Self {
        match error.errno {
            AGAIN | IN_PROGRESS => Self::Silent,
            RESET | BROKEN => Self::Gone,
            _ => Self::System(error),
        }
    }
}

impl From<Malformed> for ClientError {
    fn from(why: Malformed) -> Self {
        Self::Strange(why)
    }
}

/// Calls over one connection.
#[derive(Debug)]
pub(crate) struct Caller(OwnedFd);

impl Caller {
    pub(crate) fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.send(&Call::new(method, parameters), &[])?;
        Ok(self.reply()?.0.take()?)
    }

    /// A call whose answer may take longer.
    fn call_long<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        local_socket::set_timeouts(&self.0, LONG)?;
        let answer = self.call(method, parameters);
        local_socket::set_timeouts(&self.0, PATIENCE)?;
        answer
    }

    pub(crate) fn send(
        &self,
        call: &Call,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<(), ClientError> {
        match sys::descriptor::send(&self.0, &call.text(), descriptors) {
            // Who hung up on us may have said why: that lies here.
            Err(error) if error.errno == BROKEN => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// The next reply.
    pub(crate) fn reply(&self) -> Result<(Reply, Vec<OwnedFd>), ClientError> {
        let mut bytes = vec![0; REPLY_MAX];
        let received = match sys::descriptor::receive(&self.0, &mut bytes) {
            // Said once, before what lies here, by an end that was closed without having heard us
            // (unix(7)).
            Err(error) if error.errno == RESET => sys::descriptor::receive(&self.0, &mut bytes),
            received => received,
        };
        let (length, descriptors) = received?;
        if length == 0 {
            return Err(ClientError::Gone);
        }
        let reply = Reply::read(bytes.get(..length).unwrap_or_default())?;
        match Fault::told(&reply) {
            Some(fault) => Err(ClientError::Refused(fault)),
            None => Ok((reply, descriptors)),
        }
    }
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection to the daemon.
#[derive(Debug)]
pub struct Client {
    caller: Caller,
    directory: PathBuf,
}

#[derive(Serialize)]
struct Nothing {}

impl Client {
    /// Goes to the daemon that is there: in this directory, or in the first of those where one is
    /// looked for.
    pub fn find(directory: Option<&FilePath>) -> Result<Self, ClientError> {
        let places = match directory {
            Some(directory) => vec![directory.to_owned()],
            None => place::searched(),
        };
        for place in &places {
            match Self::at(place) {
                Err(ClientError::Nobody(_)) => {}
                found => return found,
            }
        }
        Err(ClientError::Nobody(places))
    }

    /// Goes to the daemon in this directory.
    pub fn at(directory: &FilePath) -> Result<Self, ClientError> {
        let socket = local_socket::connect_to(&directory.join(PACKETS), Framing::Packets, PATIENCE);
        let socket = socket.map_err(|error| match error.errno {
            MISSING | REFUSED | NO_DIRECTORY => ClientError::Nobody(vec![directory.to_owned()]),
            _ => error.into(),
        })?;
        let (uid, _) = sys::descriptor::peer_identity(&socket)?;
        if uid != ROOT && uid != sys::process::identity().0 && !place::is_of(directory, uid) {
            return Err(ClientError::Stranger { directory: directory.to_owned(), uid });
        }
        Ok(Self { caller: Caller(socket), directory: directory.to_owned() })
    }

    /// Returns the directory of the daemon.
    #[must_use]
    pub fn directory(&self) -> &FilePath {
        &self.directory
    }

    /// Returns the identity of the daemon.
    pub fn about(&self) -> Result<About, ClientError> {
        self.caller.call("io.streamline.About", &Nothing {})
    }

    /// Returns the rights and quota of this user.
    pub fn allowed(&self) -> Result<Allowed, ClientError> {
        self.caller.call("io.streamline.Allowed", &Nothing {})
    }

    /// The programs that run in the kernel for lines of all users, as far as one may know of them.
    pub fn sharing(&self) -> Result<Sharing, ClientError> {
        // Who makes programs tells it, one after the other.
        self.caller.call_long("io.streamline.Sharing", &Nothing {})
    }

    /// The connection alone, on which an answer is waited for so long.
    pub(crate) fn into_caller(self, limit: Duration) -> Result<Caller, ClientError> {
        local_socket::set_timeouts(&self.caller.0, limit)?;
        Ok(self.caller)
    }

    /// All paths that this user may see.
    pub fn list(&self) -> Result<Vec<Path>, ClientError> {
        self.caller
            .send(&Call { more: true, ..Call::new("io.streamline.List", &Nothing {}) }, &[])?;
        let mut all = Vec::new();
        loop {
            let (reply, _) = self.caller.reply()?;
            let continues = reply.continues;
            let Paths { paths } = reply.take()?;
            all.extend(paths);
            if !continues {
                return Ok(all);
            }
        }
    }

    /// Goes to the process of a path.
    pub fn connect(&self, path: &str) -> Result<ToPath, ClientError> {
        let wanted = Connect { path: path.to_owned() };
        self.caller.send(&Call::new("io.streamline.Connect", &wanted), &[])?;
        let (reply, descriptors) = self.caller.reply()?;
        let Connected { number, uid } = reply.take()?;
        let mut descriptors = descriptors.into_iter();
        match (descriptors.next(), descriptors.next()) {
            (Some(socket), Some(process)) => {
                local_socket::set_timeouts(&socket, PATIENCE)?;
                let path = path.to_owned();
                Ok(ToPath { caller: Caller(socket), path, process, number, uid })
            }
            _ => Err(ClientError::Strange(Malformed::NotOne("no descriptors came".to_owned()))),
        }
    }

    /// Asks many paths at once, each these methods, which take nothing, and hands the connection
    /// with the replies to `take`. All that is waited for is `limit`, whoever is mute: then the
    /// answer is [`ClientError::Silent`]. The answers come in the order of the paths.
    pub fn ask_all<R>(
        &self,
        paths: &[(u32, String)],
        methods: &[&str],
        limit: Duration,
        take: impl Fn(ToPath, Vec<Reply>) -> Result<R, ClientError>,
    ) -> Vec<Result<R, ClientError>> {
        let begin = |path: &String| {
            let to = self.connect(path).map_err(Err)?;
            for method in methods {
                to.caller.send(&Call::new(method, &Nothing {}), &[]).map_err(Err)?;
            }
            Ok(Asked { to, replies: Vec::new() })
        };
        let next = |_: &String, mut asked: Asked| {
            match asked.to.caller.reply() {
                Err(error) => return ControlFlow::Break(Err(asked.to.ended(error))),
                Ok((reply, _)) => asked.replies.push(reply),
            }
            match asked.replies.len() < methods.len() {
                true => ControlFlow::Continue(asked),
                false => ControlFlow::Break(take(asked.to, asked.replies)),
            }
        };
        let answers = gather(paths, limit, begin, next);
        answers.into_iter().map(|answer| answer.unwrap_or(Err(ClientError::Silent))).collect()
    }

    /// Goes to the process of a path that answers: one that is stopped is found out within
    /// [`TOGETHER`], before anything is asked of it that may take long.
    pub fn reach(&self, path: &str) -> Result<(ToPath, Described), ClientError> {
        let paths = [(0, path.to_owned())];
        let described = |to: ToPath, replies: Vec<Reply>| {
            let about = replies.into_iter().next().unwrap_or_default().take()?;
            Ok((to, about))
        };
        let mut reached = self.ask_all(&paths, &[DESCRIBE], TOGETHER, described);
        reached.pop().unwrap_or(Err(ClientError::Silent))
    }

    /// Says that the line of the path that was registered here is another now.
    pub(crate) fn changed(&self, line: &str) -> Result<(), ClientError> {
        let call = Call::new("io.streamline.Changed", &NewLine { line: line.to_owned() });
        self.caller.send(&Call { oneway: true, ..call }, &[])
    }

    /// Registers a path, as long as this connection lasts.
    pub(crate) fn register(
        &self,
        path: &Register,
        way: BorrowedFd<'_>,
    ) -> Result<u32, ClientError> {
        self.caller.send(&Call::new("io.streamline.Register", path), &[way])?;
        let (reply, _) = self.caller.reply()?;
        let Number { number } = reply.take()?;
        Ok(number)
    }
}

/// A path whose replies are waited for.
struct Asked {
    to: ToPath,
    replies: Vec<Reply>,
}

impl AsFd for Asked {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.to.as_fd()
    }
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.caller.0.as_fd()
    }
}

/// A connection to the process of a path.
#[derive(Debug)]
pub struct ToPath {
    caller: Caller,
    /// The name by which the caller asked for it.
    path: String,
    process: OwnedFd,
    number: u32,
    uid: u32,
}

impl ToPath {
    /// The number of the path.
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.number
    }

    /// Returns the owner.
    #[must_use]
    pub const fn uid(&self) -> u32 {
        self.uid
    }

    /// Waits no longer than this for an answer from now on.
    pub fn be_patient(&self, limit: Duration) -> Result<(), ClientError> {
        Ok(local_socket::set_timeouts(&self.caller.0, limit)?)
    }

    /// Its process: can be read when it has ended.
    #[must_use]
    pub fn process(&self) -> BorrowedFd<'_> {
        self.process.as_fd()
    }

    /// Returns the description of the path.
    pub fn describe(&self) -> Result<Described, ClientError> {
        self.call(DESCRIBE, &Nothing {})
    }

    /// Returns the counters of the path.
    pub fn count(&self) -> Result<Counters, ClientError> {
        let Count { counters } = self.call(COUNT, &Nothing {})?;
        Ok(counters)
    }

    /// Lets its sources end.
    pub fn stop(&self) -> Result<(), ClientError> {
        let _: serde_json::Value = self.call(STOP, &Nothing {})?;
        Ok(())
    }

    /// Edits its line while it runs.
    pub fn change(&self, words: &[String]) -> Result<Changed, ClientError> {
        let change = Change { words: words.to_vec() };
        let changed = self.caller.call_long("io.streamline.path.Change", &change);
        changed.map_err(|error| self.ended(error))
    }

    /// Looks at what leaves a node; the frames come in the pipe, as a capture.
    pub fn tap(&self, wanted: &Tap) -> Result<(Tapping, OwnedFd), ClientError> {
        local_socket::set_timeouts(&self.caller.0, LONG)?;
        self.caller.send(&Call::new("io.streamline.path.Tap", wanted), &[])?;
        let answer = self.caller.reply().map_err(|error| self.ended(error));
        local_socket::set_timeouts(&self.caller.0, PATIENCE)?;
        let (reply, descriptors) = answer?;
        let began = reply.take()?;
        let pipe = descriptors.into_iter().next();
        let none = || ClientError::Strange(Malformed::NotOne("no pipe came".to_owned()));
        Ok((began, pipe.ok_or_else(none)?))
    }

    /// Returns the state of this connection's tap.
    pub fn tapped(&self) -> Result<Tapped, ClientError> {
        self.call("io.streamline.path.Tapped", &Nothing {})
    }

    /// Ends its process at once; that it has ended is as good.
    pub fn kill(&self) -> Result<(), ClientError> {
        match local_socket::kill(&self.process) {
            Err(error) if error.errno == NO_PROCESS => Ok(()),
            killed => Ok(killed?),
        }
    }

    /// Asks to be told again and again what it has counted, and at last how it ended.
    pub fn follow(&self, every: Duration) -> Result<(), ClientError> {
        let every_ms = u64::try_from(every.as_millis()).ok();
        let call = Call::new("io.streamline.path.Follow", &Follow { every_ms });
        self.caller.send(&Call { more: true, ..call }, &[])
    }

    /// Returns the next update; the caller has waited for it.
    pub fn followed(&self) -> Result<Followed, ClientError> {
        Ok(self.caller.reply()?.0.take()?)
    }

    /// Calls any method of the path.
    pub fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &impl Serialize,
    ) -> Result<T, ClientError> {
        self.caller.call(method, parameters).map_err(|error| self.ended(error))
    }

    /// Turns a hangup into the end of the path: it was there when we connected.
    fn ended(&self, error: ClientError) -> ClientError {
        match error {
            ClientError::Gone => ClientError::Ended(self.path.clone()),
            other => other,
        }
    }
}

impl AsFd for ToPath {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.caller.0.as_fd()
    }
}

/// A text of somebody else as it may be shown on a terminal.
#[must_use]
pub fn plain(text: &str) -> String {
    abi::text::Visible(text).to_string()
}

/// Asks a path what it is.
pub const DESCRIBE: &str = "io.streamline.path.Describe";
/// Asks a path what it has counted.
pub const COUNT: &str = "io.streamline.path.Count";
/// Asks a path to let its sources end.
pub const STOP: &str = "io.streamline.path.Stop";

const ROOT: u32 = 0;
/// ENOENT.
const MISSING: i32 = 2;
/// ESRCH.
const NO_PROCESS: i32 = 3;
/// EAGAIN.
const AGAIN: i32 = 11;
/// ENOTDIR.
const NO_DIRECTORY: i32 = 20;
/// EPIPE.
const BROKEN: i32 = 32;
/// ECONNRESET.
const RESET: i32 = 104;
/// ECONNREFUSED.
const REFUSED: i32 = 111;
/// EINPROGRESS: a limit in time has passed while coming in.
const IN_PROGRESS: i32 = 115;
