//! A line at an attach point: what it has for itself, and the frames of its owner.

use super::super::ended::Ended;
use super::super::joint::{Counted, Member};
use super::super::tree::Tree;
use ebpf::emit::tap::WakePolicy;
use pipeline::Share;
use pipeline::graph::{Graph, NodeId};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use sys::bpf::ring::region_offset;
use sys::bpf::{Map, Program, RingBuffer, Rings, RingsLayout};
use sys::steps::{Resource, Steps};

/// A line to be added.
#[derive(Clone, Debug)]
pub(crate) struct New {
    /// The owner's user id.
    pub(crate) owner: u32,
    /// Among whose frames its own may lie.
    pub(crate) share: Share,
    pub(crate) graph: Arc<Graph>,
    pub(crate) tree: Tree,
    pub(crate) source: NodeId,
    pub(crate) shape: RingsLayout,
    pub(crate) bell: WakePolicy,
    /// The steps that send frames out, and the numbers of the interfaces.
    pub(crate) leads: Vec<(usize, u32)>,
    /// Filter state inherited from the replaced request, by step.
    pub(crate) states: Vec<(usize, Arc<Map>)>,
    /// A note by the requester that outlives this process.
    pub(crate) about: String,
    /// Is told each step of adding it.
    pub(crate) steps: Steps,
}

/// A line that is here.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: u32,
    /// The owner's user id.
    pub(super) uid: u32,
    pub(super) graph: Arc<Graph>,
    pub(super) tree: Tree,
    pub(super) owner: Arc<Owned>,
    pub(super) pointers: Arc<Rings>,
    pub(super) bell: WakePolicy,
    pub(super) bell_map: OwnedFd,
    /// See [`New::leads`].
    pub(super) leads: Vec<(usize, u32)>,
    /// State of its filters, by step.
    pub(super) states: Vec<(usize, Arc<Map>)>,
    /// Counters of programs that no longer run.
    pub(super) counted: Counted,
    /// The runs of those that the kernel measured, and their time in ns.
    pub(super) measured: (u64, u64),
    /// Number of packets of its user's sockets that found too many in flight before it was added.
    pub(super) busy_before: u64,
    /// True if it is to be removed, and removal failed.
    pub(super) leaving: bool,
    /// See [`New::about`].
    pub(super) about: String,
}

/// The sharing domain of a ring of frames. Requests with equal domains share one ring (CONTRACT
/// 21).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    /// The requests of one user.
    User(u32),
    /// The requests of group members that opt in.
    Group(Arc<str>),
    /// All requests that opt in.
    World,
}

impl Whose {
    /// Returns the sharing domain of a request.
    pub(super) fn of(new: &New) -> Self {
        match &new.share {
            Share::User => Self::User(new.owner),
            Share::Group(name) => Self::Group(Arc::clone(name)),
            Share::World => Self::World,
        }
    }
}

/// The frames of an owner, or of all who share theirs.
#[derive(Debug)]
pub(super) struct Owned {
    pub(super) whose: Whose,
    pub(super) records: Arc<Rings>,
}

/// The private resources of a request, and the frames that its pointers refer to.
pub(super) struct Has {
    pub(super) owner: Arc<Owned>,
    pub(super) pointers: Rings,
    pub(super) bell_map: OwnedFd,
}

/// Bytes of the ring of bells: 4,096 bells.
const BELLS: u32 = 1 << 16;

impl Line {
    /// Resource what a line has for itself, and the ring of its owner if there is none.
    pub(super) fn make(number: u32, here: &[Self], new: New) -> Result<(Self, RingBuffer), String> {
        let told = |error: sys::Error| error.to_string();
        let steps = new.steps.clone();
        let step = |what| steps.take(Resource::Memory, what).map_err(told);
        let (of_owner, of_line) = (new.shape.of_owner(), new.shape.of_line());
        let owners = here.iter().map(|line| &line.owner);
        let whose = Whose::of(&new);
        let mut same =
            owners.filter(|owner| owner.whose == whose && owner.records.own_shape() == of_owner);
        let owner = match same.next() {
            Some(owner) => Arc::clone(owner),
            None => {
                step("frames of an owner")?;
                let records = Arc::new(Rings::create("records", of_owner).map_err(told)?);
                Arc::new(Owned { whose, records })
            }
        };
        step("pointers of a line")?;
        let pointers = Rings::create("pointers", of_line).map_err(told)?;
        let pointers = pointers.beside(Arc::clone(&owner.records)).map_err(told)?;
        step("a bell")?;
        let bell = RingBuffer::create("bell", BELLS).map_err(told)?;
        let bell_map = bell.map().as_fd().try_clone_to_owned();
        let bell_map = bell_map.map_err(|error| error.to_string())?;
        Ok((Self::of(number, new, Has { owner, pointers, bell_map }, Ended::default()), bell))
    }

    /// A line with its memory, and what was counted of it before.
    pub(super) fn of(number: u32, new: New, has: Has, before: Ended) -> Self {
        let New { graph, tree, states, leads, owner: uid, about, bell, .. } = new;
        let Has { owner, pointers, bell_map } = has;
        let Ended { counted, measured, busy: busy_before, .. } = before;
        Self {
            number,
            uid,
            graph,
            tree,
            owner,
            pointers: Arc::new(pointers),
            bell,
            bell_map,
            leads,
            states,
            counted,
            measured,
            busy_before,
            leaving: false,
            about,
        }
    }

    pub(super) fn member(&self) -> Member<'_> {
        Member { tree: &self.tree, graph: &self.graph, request: self.number }
    }

    /// Returns its final record once no program runs it any more.
    pub(super) fn ended(&self) -> Ended {
        let states = self.states.iter();
        let states = states.filter_map(|(step, map)| Some((*step, map.get(0).ok()?))).collect();
        Ended {
            counted: self.counted.clone(),
            states,
            bells: self.word(region_offset::NOTIFIED),
            busy: 0,
            measured: self.measured,
            lost: false,
        }
    }

    /// Frames that could not be copied for it.
    pub(super) fn failed(&self) -> u64 {
        self.word(region_offset::FAILED)
    }

    /// Adds what a program ran, as the kernel has measured that.
    pub(super) fn measure(&mut self, program: &Program) {
        if let Ok(info) = program.info() {
            self.measured.0 += info.runs;
            self.measured.1 += info.run_time_ns;
        }
    }

    /// A word of its memory, over all processors.
    fn word(&self, at: u32) -> u64 {
        let cpus = 0..self.pointers.shape().cpus;
        cpus.filter_map(|cpu| self.pointers.region(cpu)?.scratch(at)).sum()
    }
}
