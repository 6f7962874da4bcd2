//! A line that one process runs in the kernel for another one, which may not. [CONTRACT 21, 25;
//! RELIABILITY T2, T19]
//!
//! In: which nodes of a request somebody wants to run there ([`Part`]), and whose request it is.
//! Out: a [`Handout`], the memory in which what the line hands over lies, as descriptors and a
//! [`Layout`]; when it leaves, what it has counted and kept ([`Ended`]). Layout and what was
//! counted are text, so that any protocol carries them.
//!
//! What is asked is checked as if the request had been read here. What is handed out gives no right
//! but to read: the two maps of frames and pointers are frozen, nobody can write to them but the
//! program; the bell is the line's own. Who receives it looks first whether it is what it says.

use super::host::{Asked, Held, Lent, NotSwitched, Refusal, Refuses, Succeeds, Successor};
use super::point::New;
use super::point::Points;
use crate::error::BuildError;
use ebpf::emit::tap::EXITS_MAX;
use pipeline::Share;
use pipeline::graph::{Graph, NodeId};
use pipeline::plan::{Kernel, KernelRing, Machine, programs_of};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::Arc;
use sys::bpf::{RingBuffer, Rings, RingsLayout};

pub use super::ended::Ended;
pub use endpoint::Failure;
pub use endpoint::source::kernel::Standing;
pub use filter::{Amount, Attach, Side};

/// The owner of a request, and a note about it that outlives this process.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'o> {
    /// The user.
    pub uid: u32,
    /// The note that [`Points::adopt`] reports.
    pub about: &'o str,
}

impl From<u32> for Owner<'_> {
    fn from(uid: u32) -> Self {
        Self { uid, about: "" }
    }
}

/// The part of a request that is to run in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The nodes, in the graph of the request with its ends complete.
    pub nodes: Vec<NodeId>,
    /// The memory in which frames leave.
    pub ring: KernelRing,
}

/// The descriptors and layout that another process needs to read a request's frames.
#[derive(Debug)]
pub struct Handout {
    /// Layout of the shared memory.
    pub layout: Layout,
    /// The frames of the owner.
    pub records: OwnedFd,
    /// The pointers of the line.
    pub pointers: OwnedFd,
    /// Its bell.
    pub bell: OwnedFd,
}

/// Layout of the memory in which a request delivers frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// The rings.
    pub shape: RingsLayout,
    /// True for each exit whose frames begin behind a VLAN tag that may lie beside the frame.
    pub behind_tag: Vec<bool>,
    /// Fingerprint of the tree that runs; the requesting process must compute the same one.
    pub tree: u64,
}

/// Resources that a part would take, before any is allocated.
#[derive(Clone, Debug)]
pub struct Needs<'n> {
    /// The attach point.
    pub attach: &'n Attach,
    /// Its first source.
    pub source: NodeId,
    /// Bytes of its pointers, and of the frames that it would share with other lines.
    pub bytes: (u64, u64),
    /// With whom it shares those frames.
    pub share: Share,
    /// On how many ways a frame would leave at most.
    pub ways: u32,
}

/// The policy that decides if a part may have the resources it needs.
pub type Allows<'a> = &'a dyn Fn(&Needs<'_>) -> Result<(), Refusal>;

/// A line that runs for another process, until this is dropped.
#[derive(Debug)]
pub struct Running {
    pub(super) held: Arc<dyn Held>,
    /// The attach point.
    pub attach: Attach,
    /// Bytes of its pointers, and of the frames that it shares with other lines.
    pub bytes: (u64, u64),
    /// With whom it shares those frames.
    pub share: Share,
}

/// A line that was made and waits to be put in the place of another one of its owner.
#[derive(Debug)]
pub struct Waiting {
    running: Running,
    switch: Box<dyn Succeeds>,
}

impl Part {
    /// The part that is asked for.
    #[must_use]
    pub fn of(asked: &Asked<'_>) -> Self {
        Self { nodes: asked.nodes.to_vec(), ring: asked.planned.ring.clone() }
    }

    /// As text.
    #[must_use]
    pub fn text(&self) -> String {
        let KernelRing { pointers, bytes, record_max, signal_blocks, apart_ns, signal_ns } =
            &self.ring;
        let ring =
            format!("{pointers} {bytes} {record_max} {signal_blocks} {apart_ns} {signal_ns}");
        self.nodes.iter().fold(ring, |text, node| format!("{text} {}", node.0))
    }

    /// Out of text; none if it is not one of these.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let words: Option<Vec<u64>> = text.split(' ').map(|word| word.parse().ok()).collect();
        let words = words?;
        let [pointers, bytes, record_max, signal_blocks, apart_ns, signal_ns, nodes @ ..] =
            words.as_slice()
        else {
            return None;
        };
        let small = |word: &u64| u32::try_from(*word).ok();
        let ring = KernelRing {
            pointers: small(pointers)?,
            bytes: small(bytes)?,
            record_max: small(record_max)?,
            signal_blocks: small(signal_blocks)?,
            apart_ns: *apart_ns,
            signal_ns: *signal_ns,
        };
        let node = |word: &u64| usize::try_from(*word).ok().map(NodeId);
        let nodes = nodes.iter().map(node).collect::<Option<Vec<NodeId>>>()?;
        Some(Self { nodes, ring })
    }
}

impl Points {
    /// Runs a part of somebody's request for them, in a program that loads without CAP_PERFMON
    /// (CONTRACT 25): who plans for it plans for a kernel that is [`Kernel::Open`] and hardened.
    /// `graph` is that of the request, read here, with
    /// its ends complete; nothing in `part` is believed.
    pub fn attach(
        &self,
        request: (&Graph, &Part),
        machine: &Machine,
        owner: u32,
    ) -> Result<(Handout, Running), BuildError> {
        self.attach_if(request, machine, owner.into(), &|_| Ok(()))
    }

    /// The same, if somebody allows what it needs.
    pub fn attach_if(
        &self,
        request: (&Graph, &Part),
        machine: &Machine,
        owner: Owner<'_>,
        allows: Allows<'_>,
    ) -> Result<(Handout, Running), BuildError> {
        self.hand_out(request, machine, (owner, allows), |asked, new| {
            self.put((&asked.planned.attach, asked.hardened), &new)
        })
    }

    /// Makes what is to run in the place of a line that runs, by the same rules, for whoever owns
    /// it. `stays` names steps of both that are the same filter, which goes on with what it has
    /// kept.
    pub fn succeed_if(
        &self,
        running: &Running,
        request: (&Graph, &Part),
        machine: &Machine,
        stays: &[(usize, usize)],
        (owner, allows): (Owner<'_>, Allows<'_>),
    ) -> Result<(Handout, Waiting), BuildError> {
        let mut switch = None;
        let (handout, running) =
            self.hand_out(request, machine, (owner, allows), |asked, new| {
                if asked.planned.attach != running.attach {
                    let why =
                        "it is to run at another place than the line in whose place it is to be";
                    let node = asked.source;
                    return Err(BuildError::Refused(Refusal { node, why: why.to_owned() }));
                }
                let successor =
                    Arc::clone(&running.held).successor_about(asked, stays, &new.about)?;
                let Successor { lent, switch: how } = successor;
                switch = Some(how);
                Ok(lent)
            })?;
        let none = || BuildError::Unexpected("a line in no other one's place".to_owned());
        Ok((handout, Waiting { running, switch: switch.ok_or_else(none)? }))
    }

    /// Checks what is asked, has it made, and hands it out.
    fn hand_out(
        &self,
        (graph, part): (&Graph, &Part),
        machine: &Machine,
        (owner, allows): (Owner<'_>, Allows<'_>),
        make: impl FnOnce(&Asked<'_>, New) -> Result<Lent, BuildError>,
    ) -> Result<(Handout, Running), BuildError> {
        // Whatever this process may: so the program loads where CAP_PERFMON was given away.
        let hardened = true;
        let mut machine = machine.clone();
        if let Kernel::Open { hardened, .. } = &mut machine.kernel {
            *hardened = true;
        }
        let programs = programs_of(graph, &part.nodes, &machine, &bounded(&part.ring));
        let programs = programs.map_err(BuildError::Refused)?;
        let first = part.nodes.first().copied().unwrap_or(NodeId(0));
        let refused = |node, why: String| BuildError::Refused(Refusal { node, why });
        let [planned] = programs.as_slice() else {
            let why = format!("{} programs are asked for at once, not one", programs.len());
            return Err(refused(first, why));
        };
        let source = planned.sources.first().copied().unwrap_or(first);
        if planned.attach.takes {
            let why = "what takes frames from the host is a program of its own, which nobody runs \
                       for others";
            return Err(refused(source, why.to_owned()));
        }
        let leads = |id: &NodeId| {
            graph.node(*id).filter().is_some_and(|used| used.endpoint.outlet.is_some())
        };
        if let Some(node) = part.nodes.iter().copied().find(leads) {
            // Whoever runs it here may, and whoever asks may not (CONTRACT 25).
            let why = "nobody has frames sent by the right of another".to_owned();
            return Err(refused(node, why));
        }
        let refuses = Refuses::Nothing;
        let (nodes, steps) = (&part.nodes, &self.steps);
        let asked = Asked { graph, planned, nodes, source, hardened, refuses, steps };
        let tree = asked.print();
        let new = New { about: owner.about.to_owned(), ..asked.new_line(owner.uid)? };
        let bytes = |shape: RingsLayout| shape.size().map_or(0, u64::from);
        let bytes = (bytes(new.shape.of_line()), bytes(new.shape.of_owner()));
        let (attach, ways, share) = (&planned.attach, new.shape.sinks, new.share.clone());
        let needs = Needs { attach, source, bytes, share: share.clone(), ways };
        allows(&needs).map_err(BuildError::Refused)?;
        let Lent { rings, bell, behind_tag, held } = make(&asked, new)?;
        let layout = Layout { shape: rings.shape(), behind_tag, tree };
        let copy = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
        let handout = || -> io::Result<Handout> {
            let (records, pointers) = (copy(rings.records().as_fd())?, copy(rings.as_fd())?);
            Ok(Handout { layout: layout.clone(), records, pointers, bell: copy(bell.as_fd())? })
        };
        let handout = handout().map_err(|error| refused(source, error.to_string()))?;
        Ok((handout, Running { held, attach: planned.attach.clone(), bytes, share }))
    }
}

/// Clamps the ring sizes an untrusted peer may request to those that the planner would make.
pub(super) fn bounded(ring: &KernelRing) -> KernelRing {
    KernelRing {
        pointers: ring.pointers.clamp(64, 1 << 16).next_power_of_two(),
        bytes: ring.bytes.clamp(1 << 12, 1 << 27).next_power_of_two(),
        record_max: ring.record_max.clamp(64, (64 << 10) + 64),
        ..ring.clone()
    }
}

impl Handout {
    /// Opens it: the rings and the bell, if they are what they say.
    pub fn open(self) -> sys::Result<(Arc<Rings>, RingBuffer)> {
        let Self { layout: Layout { shape, .. }, records, pointers, bell } = self;
        let records = Rings::received(records, shape.of_owner())?;
        let pointers = Rings::received(pointers, shape.of_line())?.beside(Arc::new(records))?;
        Ok((Arc::new(pointers), RingBuffer::received(bell)?))
    }

    /// Opens it for a path, where `held` tells whoever handed it out that the line ends.
    ///
    /// Whether it is the line that was asked for, [`Self::is_for`] says first.
    pub fn lend(self, held: Arc<dyn Held>) -> sys::Result<Lent> {
        let behind_tag = self.layout.behind_tag.clone();
        let (rings, bell) = self.open()?;
        Ok(Lent { rings, bell, behind_tag, held })
    }
}

impl Handout {
    /// Returns true if the serving process understood the request as this one does.
    #[must_use]
    pub fn is_for(&self, asked: &Asked<'_>) -> bool {
        let Layout { behind_tag, tree, shape } = &self.layout;
        let ours = asked.tree();
        let same = *tree == asked.print() && behind_tag.len() == ours.hands.len();
        same && shape.sinks as usize >= ours.sinks()
    }
}

impl Running {
    /// The number that the line has at its point, as [`Points::shown`] tells it.
    #[must_use]
    pub fn number(&self) -> Option<u32> {
        self.held.number()
    }

    /// Takes the line away, and answers what it leaves behind.
    #[must_use]
    pub fn detach(self) -> Ended {
        self.held.ended().clone()
    }
}

impl Waiting {
    /// Puts it there. If that fails nothing has changed, and it goes.
    pub fn switch(mut self) -> Result<Running, NotSwitched> {
        self.switch.switch().map(|()| self.running)
    }

    /// Returns the request as it will run, with its attach point and resources.
    #[must_use]
    pub const fn running(&self) -> &Running {
        &self.running
    }
}

impl Layout {
    /// As text.
    #[must_use]
    pub fn text(&self) -> String {
        let RingsLayout { cpus, sinks, pointers, bytes, record_max } = self.shape;
        let behind: String = self.behind_tag.iter().map(|b| if *b { '1' } else { '0' }).collect();
        let tree = self.tree;
        format!("{cpus} {sinks} {pointers} {bytes} {record_max} .{behind} {tree}")
    }

    /// Out of text; none if it is not one of these.
    #[must_use]
    pub fn from_text(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(' ').collect();
        let [cpus, sinks, pointers, bytes, record_max, behind, tree] = words.as_slice() else {
            return None;
        };
        let number = |word: &str| word.parse::<u32>().ok();
        let shape = RingsLayout {
            cpus: number(cpus)?,
            sinks: number(sinks)?,
            pointers: number(pointers)?,
            bytes: number(bytes)?,
            record_max: number(record_max)?,
        };
        let bit = |c: char| matches!(c, '0' | '1').then_some(c == '1');
        let behind_tag: Option<Vec<bool>> = behind.strip_prefix('.')?.chars().map(bit).collect();
        let whole = shape.of_owner().size().is_some() && shape.of_line().size().is_some();
        let behind_tag = behind_tag?;
        let tree = tree.parse().ok()?;
        (whole && behind_tag.len() <= EXITS_MAX as usize).then_some(Self {
            shape,
            behind_tag,
            tree,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_the_same_out_of_its_text_and_a_wrong_one_is_none() {
        let ring = KernelRing {
            pointers: 64,
            bytes: 1 << 20,
            record_max: 65_600,
            signal_blocks: 32,
            apart_ns: u64::MAX,
            signal_ns: 0,
        };
        let part = Part { nodes: vec![NodeId(0), NodeId(7)], ring };
        assert_eq!(Part::from_text(&part.text()), Some(part));
        for wrong in ["", "1 2 3 4 5", "1 2 3 4 5 x", "4294967296 2 3 4 5 6", "1 2 3 4 5 6 -1"] {
            assert_eq!(Part::from_text(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_layout_is_the_same_out_of_its_text_and_a_wrong_one_is_none() {
        let shape =
            RingsLayout { cpus: 2, sinks: 3, pointers: 64, bytes: 1 << 16, record_max: 2048 };
        for behind_tag in [vec![], vec![true, false, true]] {
            let layout = Layout { shape, behind_tag, tree: u64::MAX };
            assert_eq!(Layout::from_text(&layout.text()), Some(layout));
        }
        for wrong in [
            "",
            "2 3 64 65536 2048 7",
            "2 3 64 65536 2048 .000",
            "2 3 65 65536 2048 .000 7",
            "2 3 64 65536 2048 .x 7",
            &format!("2 3 64 65536 2048 .{} 7", "0".repeat(EXITS_MAX as usize + 1)),
            "4294967295 3 64 65536 2048 . 7",
            "0 3 64 65536 2048 . 7",
        ] {
            assert_eq!(Layout::from_text(wrong), None, "{wrong}");
        }
    }
}
