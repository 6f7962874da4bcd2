//! The daemon as the one that runs lines in the kernel: for a process that may not, or that shares
//! what runs there with others. [SL §8; CONTRACT 21, 25; RELIABILITY T2, T10]
//!
//! In: a part of a line ([`engine::kernel::Asked`]). Out: its rings, which this process maps and
//! cannot write. Each part has a connection of its own. When this process ends, however, the daemon
//! sees that connection end and takes the part out of the program. When the daemon ends and nobody
//! keeps anything for the next one, the program goes with it: then no frame comes any more, what
//! was handed over before is read, and the path ends with a message that says so
//! ([`Standing::lost`]). A line that changes gets another connection: what is to be in its place
//! waits there until it is switched. Where somebody keeps the connections, the next daemon answers
//! what the one before was asked (docs/book/decisions/0038).

use crate::client::{Caller, Client, ClientError, LONG, plain};
use crate::faults::{AGAIN, NOT_IN_KERNEL};
use crate::protocol::{Allowed, Attach, Attached, Instead, Stay};
use crate::rights::{FILE, Missing, is_named};
use crate::varlink::{Call, Malformed};
use engine::build::BuildError;
use engine::kernel::handout::{Ended, Failure, Handout, Layout, Part, Standing};
use engine::kernel::{Asked, Held, Host, Lent, NotSwitched, Succeeds, Successor};
use pipeline::graph::NodeId;
use pipeline::plan::{Kernel, Plan, Refused};
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use sys::steps::Resource;

/// A daemon that runs parts of requests in the kernel.
#[derive(Clone, Debug)]
pub struct Through {
    directory: PathBuf,
    release: String,
    /// The limits of this user; `None` for no limits.
    bounds: Option<Arc<Bounds>>,
}

/// The rights that root has opened to a user.
#[derive(Debug)]
struct Bounds {
    filters: Vec<String>,
    interfaces: Vec<String>,
    /// The policy file.
    file: String,
}

/// Descriptors of a part: frames, pointers, doorbell.
const HANDED: usize = 3;

impl Through {
    /// The daemon that is there, if it runs programs in the kernel.
    pub fn find() -> Result<Option<Self>, ClientError> {
        let client = Client::find(None)?;
        let allowed = client.allowed()?;
        let Some(release) = allowed.kernel else { return Ok(None) };
        let directory = client.directory().to_owned();
        let about = client.about()?;
        let free = allowed.everything || about.uid == sys::process::identity().0;
        let file = about.policy.unwrap_or_else(|| FILE.to_owned());
        let Allowed { filters, interfaces, .. } = allowed;
        let bounds = (!free).then(|| Arc::new(Bounds { filters, interfaces, file }));
        Ok(Some(Self { directory, release, bounds }))
    }

    /// Returns the nodes of a plan that policy keeps out of the kernel, as far as that is known in
    /// advance: what the user already uses is not counted.
    #[must_use]
    pub fn foreseen(&self, plan: &Plan) -> Vec<Refused> {
        let Some(bounds) = &self.bounds else { return Vec::new() };
        let file = plain(&bounds.file);
        let missing = Missing { uid: sys::process::identity().0, file: &file };
        let why = |node: NodeId| {
            let used = plan.graph.node(node).filter()?;
            let name = used.description.name;
            if !bounds.filters.iter().any(|known| known == name) {
                return Some(missing.not_safe(name));
            }
            let attach = used.attach()?.ok()?;
            let netns = attach.netns.as_deref();
            let open = attach.own || is_named(&bounds.interfaces, &attach.interface, netns);
            (!open).then(|| missing.closed(&attach.interface, netns))
        };
        let steps = plan.programs.iter().flat_map(|program| {
            let steps = program.steps.iter().flat_map(|step| &step.nodes);
            program.sources.iter().chain(steps)
        });
        steps.filter_map(|node| Some(Refused { node: *node, why: why(*node)? })).collect()
    }

    /// The kernel as one plans for it: what loads for others loads without CAP_PERFMON.
    #[must_use]
    pub fn kernel(&self) -> Kernel {
        Kernel::Open { release: self.release.clone(), hardened: true }
    }

    /// Has a part run there.
    fn part(
        &self,
        asked: &Asked<'_>,
        answer: Result<Answer, ClientError>,
    ) -> Result<Made, BuildError> {
        let refused = |node, why: String| BuildError::Refused(Refused { node, why });
        let answer = answer.map_err(|error| match error {
            ClientError::Refused(fault) if fault.name == NOT_IN_KERNEL => {
                let node = usize::try_from(fault.number("node")).map_or(asked.source, NodeId);
                // Of a node that is not ours nothing is believed.
                let known = asked.nodes.contains(&node);
                refused(if known { node } else { asked.source }, plain(fault.text("why")))
            }
            other => refused(asked.source, format!("the daemon runs it not: {other}")),
        })?;
        let (handout, line, caller) = answer;
        if !handout.is_for(asked) {
            let why = "the daemon reads this line in another way than this program: both must be \
                       of one version";
            return Err(refused(asked.source, why.to_owned()));
        }
        let attach = &asked.planned.attach;
        let own = || "your own sockets".to_owned();
        let there = Arc::new(There {
            through: self.clone(),
            line,
            caller,
            interface: if attach.own { own() } else { attach.interface.clone() },
            ended: OnceLock::new(),
            lost: Mutex::new(None),
        });
        let held: Arc<dyn Held> = Arc::clone(&there) as _;
        let lent = handout.lend(held).map_err(|error| refused(asked.source, error.to_string()))?;
        Ok((lent, there))
    }

    /// Asks for it; in the place of another line, when it is switched.
    fn ask(&self, asked: &Asked<'_>, instead: Option<Instead>) -> Result<Answer, ClientError> {
        asked.steps.take(Resource::Descriptor, "a connection to the daemon for a line")?;
        let caller = Client::at(&self.directory)?.into_caller(LONG)?;
        let attach = Attach {
            line: asked.graph.text.as_ref().to_owned(),
            part: Part::of(asked).text(),
            network: network(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            instead,
        };
        let call = Call::new("io.streamline.Attach", &attach);
        caller.send(&Call { more: true, ..call }, &[])?;
        let (reply, descriptors) = caller.reply()?;
        let Attached { layout, line, .. } = reply.take()?;
        let layout = layout.as_deref().and_then(Layout::from_text);
        let strange = |what: &str| ClientError::Strange(Malformed::NotOne(what.to_owned()));
        let (Some(layout), Some(line)) = (layout, line) else {
            return Err(strange("no layout came"));
        };
        let descriptors = <[_; HANDED]>::try_from(descriptors);
        let [records, pointers, bell] =
            descriptors.map_err(|_| strange("other descriptors came than were to"))?;
        Ok((Handout { layout, records, pointers, bell }, line, caller))
    }
}

impl Host for Through {
    fn add(&self, asked: &Asked<'_>) -> Result<Lent, BuildError> {
        self.part(asked, self.ask(asked, None)).map(|(lent, _)| lent)
    }
}

/// The daemon's answer: rings, number of the line, and the connection on which the line depends.
type Answer = (Handout, u64, Caller);

/// The rings from the daemon, and the line.
type Made = (Lent, Arc<There>);

/// A line that the daemon runs.
#[derive(Debug)]
struct There {
    through: Through,
    /// The line's number at the daemon.
    line: u64,
    /// The line goes with it.
    caller: Caller,
    interface: String,
    ended: OnceLock<Ended>,
    lost: Mutex<Option<Failure>>,
}

/// The state of waiting for a line's final counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Hears {
    /// It is to leave.
    Leaves,
    /// Another one runs in its place.
    Replaced,
    /// No daemon knows the line.
    Ended,
}

impl There {
    /// Hears the last word about the line.
    fn hear(&self, why: Hears) -> Ended {
        let nothing = serde_json::json!({});
        let call = Call::new("io.streamline.Detach", &nothing);
        if why == Hears::Leaves
            && let Err(error) = self.caller.send(&Call { oneway: true, ..call }, &[])
        {
            return self.lose(&error.to_string());
        }
        let told = loop {
            match self.word() {
                // A daemon that was started again says once more what was changed before.
                Ok(Attached { switched: Some(_), .. }) => {}
                told => break told,
            }
        };
        self.heard(why, told)
    }

    /// Returns the daemon's next message.
    fn word(&self) -> Result<Attached, ClientError> {
        Ok(self.caller.reply()?.0.take()?)
    }

    /// Returns true if the line still exists although nothing was heard of it for a while.
    fn is_kept(&self) -> bool {
        sys::poll::readable_within(&[self.caller.as_fd()], Some(SEEK));
        Standing::lost(self).is_none() && self.ended.get().is_none()
    }

    /// Takes the last word.
    fn heard(&self, why: Hears, told: Result<Attached, ClientError>) -> Ended {
        let Attached { ended, why: told_why, .. } = match told {
            Ok(told) => told,
            Err(ClientError::Gone) => return self.lose("the daemon has ended"),
            Err(other) => return self.lose(&other.to_string()),
        };
        // Nobody has asked for it: of a line that nothing runs for any more no frame comes.
        let unasked = (why == Hears::Ended).then(|| "the daemon has taken it away".to_owned());
        if let Some(why) = told_why.or(unasked) {
            let failure = Failure::new("watch", &self.interface, plain(&why));
            let hint = "what came before was handed on; `--embedded` runs it without the daemon, \
                        with the rights of whoever starts it";
            self.set(failure.hint(hint));
        }
        let ended = ended.as_deref().and_then(Ended::from_text);
        ended.unwrap_or_else(|| self.lose("the daemon says not what was counted"))
    }

    /// Gives up on the line's counts.
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
        while self.ended.get().is_none() && told() {
            match self.word() {
                Ok(Attached { switched: Some(_), .. }) => {}
                word => drop(self.ended.get_or_init(|| self.heard(Hears::Ended, word))),
            }
        }
        self.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Held for There {
    fn ended(&self) -> &Ended {
        self.ended.get_or_init(|| self.hear(Hears::Leaves))
    }

    fn successor(
        self: Arc<Self>,
        asked: &Asked<'_>,
        stays: &[(usize, usize)],
    ) -> Result<Successor, BuildError> {
        let step = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
        let stays = stays.iter().map(|(was, is)| Stay { was: step(*was), is: step(*is) });
        let instead = Instead { line: self.line, stays: stays.collect() };
        let mut answer = self.through.ask(asked, Some(instead.clone()));
        let until = sys::clock::monotonic().saturating_add(LONG_NS);
        // A daemon that dies before it has answered leaves the line that runs to the next one.
        while let Err(ClientError::Gone | ClientError::Nobody(_)) = answer
            && sys::clock::monotonic() < until
            && self.is_kept()
        {
            answer = self.through.ask(asked, Some(instead.clone()));
        }
        let (lent, new) = self.through.part(asked, answer)?;
        Ok(Successor { lent, switch: Box::new(Switch { old: self, new }) })
    }
}

/// A line of the daemon's in the place of another one.
#[derive(Debug)]
struct Switch {
    old: Arc<There>,
    new: Arc<There>,
}

impl Succeeds for Switch {
    fn switch(&mut self) -> Result<(), NotSwitched> {
        let nothing = serde_json::json!({});
        let call = Call::new("io.streamline.Switch", &nothing);
        let sent = self.new.caller.send(&Call { oneway: true, ..call }, &[]);
        let told = sent.and_then(|()| self.new.caller.reply());
        match told.and_then(|(reply, _)| Ok(reply.take()?)) {
            Ok(Attached { switched: Some(true), .. }) => {
                // What it has counted was said before.
                self.old.ended.get_or_init(|| self.old.hear(Hears::Replaced));
                Ok(())
            }
            Ok(Attached { why, .. }) => {
                Err(NotSwitched::Refused(plain(&why.unwrap_or_else(|| NOT_SAID.to_owned()))))
            }
            Err(ClientError::Refused(fault)) if fault.name == NOT_IN_KERNEL => {
                let why = plain(fault.text("why"));
                Err(match fault.text("by") == AGAIN {
                    true => NotSwitched::Again(why),
                    false => NotSwitched::Refused(why),
                })
            }
            Err(other) => {
                let why = format!("the daemon does not change it: {other}");
                // What its connection was not kept for was not switched by anybody.
                Err(match other {
                    ClientError::Gone => NotSwitched::Again(why),
                    _ => NotSwitched::Refused(why),
                })
            }
        }
    }
}

/// The network name space in which this thread is, by which it is told from others.
#[must_use]
pub fn network() -> String {
    let about = std::fs::metadata("/proc/thread-self/ns/net");
    about.map_or_else(|_| String::new(), |about| format!("{}:{}", about.dev(), about.ino()))
}

/// The longest search for the next daemon, in ns, and its interval.
const LONG_NS: u64 = 120_000_000_000;
const SEEK: Duration = Duration::from_millis(100);
/// The message for a daemon that gives no usable answer.
const NOT_SAID: &str = "the daemon does not say why it changes it not";
