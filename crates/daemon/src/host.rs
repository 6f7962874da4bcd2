//! The daemon as the one that runs lines in the kernel: for a process that may not, or that shares
//! what runs there with others. [SL §8; CONTRACT 21, 25; RELIABILITY T2, T10]
//!
//! In: a part of a line ([`engine::kernel::Asked`]). Out: its rings, which this process maps and
//! cannot write. Each part has a connection of its own. When this process ends, however, the daemon
//! sees that connection end and takes the part out of the program. When the daemon ends, the
//! program goes with it: then no frame comes any more, what was handed over before is read, and the
//! path ends with a message that says so ([`Standing::lost`]).

use crate::client::{Caller, Client, ClientError, plain};
use crate::faults::NOT_IN_KERNEL;
use crate::protocol::{Attach, Attached};
use crate::server::network;
use crate::varlink::Call;
use engine::build::BuildError;
use engine::kernel::handout::{Ended, Failure, Handout, Layout, Part, Standing};
use engine::kernel::{Asked, Held, Host, Lent};
use pipeline::graph::NodeId;
use pipeline::plan::{Kernel, Refused};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// A daemon that runs parts of one request in the kernel.
#[derive(Clone, Debug)]
pub struct Through {
    directory: PathBuf,
    line: String,
    release: String,
}

/// How long a program is waited for: others may be in front.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many descriptors come with a part: frames, pointers, bell.
const HANDED: usize = 3;

impl Through {
    /// The daemon that is there, if it runs programs in the kernel; for this line.
    pub fn find(line: &str) -> Result<Option<Self>, ClientError> {
        let client = Client::find(None)?;
        let release = client.allowed()?.kernel;
        let directory = client.directory().to_owned();
        Ok(release.map(|release| Self { directory, line: line.to_owned(), release }))
    }

    /// The kernel as one plans for it: what loads for others loads without CAP_PERFMON.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        Kernel::Open { release: self.release.clone(), hardened: true }
    }

    fn ask(&self, asked: &Asked<'_>) -> Result<(Handout, Caller), ClientError> {
        let caller = Client::at(&self.directory)?.into_caller(PATIENCE)?;
        let attach = Attach {
            line: self.line.clone(),
            part: Part::of(asked).text(),
            network: network(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let call = Call::new("io.streamline.Attach", &attach);
        caller.send(&Call { more: true, ..call }, &[])?;
        let (reply, descriptors) = caller.reply()?;
        let Attached { layout, .. } = reply.take()?;
        let layout = layout.as_deref().and_then(Layout::from_text);
        let strange =
            |what: &str| ClientError::Strange(crate::varlink::Malformed::NotOne(what.to_owned()));
        let layout = layout.ok_or_else(|| strange("no layout came"))?;
        let descriptors = <[_; HANDED]>::try_from(descriptors);
        let [records, pointers, bell] =
            descriptors.map_err(|_| strange("other descriptors came than were to"))?;
        Ok((Handout { layout, records, pointers, bell }, caller))
    }
}

impl Host for Through {
    fn add(&self, asked: &Asked<'_>) -> Result<Lent, BuildError> {
        let refused = |node, why: String| BuildError::Refused(Refused { node, why });
        let (handout, caller) = self.ask(asked).map_err(|error| match error {
            ClientError::Refused(fault) if fault.name == NOT_IN_KERNEL => {
                let node = usize::try_from(fault.number("node")).map_or(asked.source, NodeId);
                // Of a node that is not ours nothing is believed.
                let known = asked.nodes.contains(&node);
                refused(if known { node } else { asked.source }, plain(fault.text("why")))
            }
            other => refused(asked.source, format!("the daemon runs it not: {other}")),
        })?;
        if !handout.is_for(asked) {
            let why = "the daemon reads this line in another way than this program: both must be \
                       of one version";
            return Err(refused(asked.source, why.to_owned()));
        }
        let attach = &asked.planned.attach;
        let own = || "your own sockets".to_owned();
        let interface = if attach.own { own() } else { attach.interface.clone() };
        let there = There { caller, interface, ended: OnceLock::new(), lost: Mutex::new(None) };
        handout.lend(Arc::new(there)).map_err(|error| refused(asked.source, error.to_string()))
    }
}

/// A line that the daemon runs.
#[derive(Debug)]
struct There {
    /// The line goes with it.
    caller: Caller,
    interface: String,
    ended: OnceLock<Ended>,
    lost: Mutex<Option<Failure>>,
}

impl There {
    /// Hears the last word about the line; `asked`: it is to leave.
    fn hear(&self, asked: bool) -> Ended {
        let nothing = serde_json::json!({});
        let call = Call::new("io.streamline.Detach", &nothing);
        if asked && let Err(error) = self.caller.send(&Call { oneway: true, ..call }, &[]) {
            return self.lose(&error.to_string());
        }
        let told = self.caller.reply().and_then(|(reply, _)| Ok(reply.take()?));
        let Attached { ended, why, .. } = match told {
            Ok(told) => told,
            Err(ClientError::Gone) => return self.lose("the daemon has ended"),
            Err(other) => return self.lose(&other.to_string()),
        };
        if let Some(why) = why {
            let failure = Failure::new("watch", &self.interface, plain(&why));
            let hint = "what came before was handed on; `--embedded` runs it without the daemon, \
                        with the rights of whoever starts it";
            self.set(failure.hint(hint));
        }
        let ended = ended.as_deref().and_then(Ended::from_text);
        ended.unwrap_or_else(|| self.lose("the daemon says not what was counted"))
    }

    /// Nobody says any more what the line has counted.
    fn lose(&self, why: &str) -> Ended {
        let why = format!("{why}, and with it the program that handed frames over");
        let hint = "all that had come before was handed on; what the kernel counted is lost, so \
                    its counts are of what has arrived; start again when the daemon is back";
        self.set(Failure::new("watch", &self.interface, why).hint(hint));
        Ended::lost()
    }

    fn set(&self, failure: Failure) {
        *self.lost.lock().unwrap_or_else(PoisonError::into_inner) = Some(failure);
    }
}

impl Standing for There {
    fn leave(&self) {
        let _ = self.ended();
    }

    fn lost(&self) -> Option<Failure> {
        let told = || sys::poll::readable(&[self.caller.as_fd()], Some(Duration::ZERO)) == [true];
        if self.ended.get().is_none() && told() {
            self.ended.get_or_init(|| self.hear(false));
        }
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Held for There {
    fn ended(&self) -> &Ended {
        self.ended.get_or_init(|| self.hear(true))
    }

    fn standing(self: Arc<Self>) -> Arc<dyn Standing> {
        self
    }
}
