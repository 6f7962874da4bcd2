//! The exam of a twin: several judges rule on the same packets and must agree.
//!
//! Input: judges (a filter's user implementation, the interpreter, the real kernel) and packets.
//! Out: a [`Tally`], or the first packet on which the judges disagree. The first judge is the
//! reference. The others must give its class and counters, and agree among themselves; they alone
//! may answer unsure instead, since a twin passes a block on rather than guess.
//!
//! `cuts` and `mutants` test the exam itself: only packets cut at every length test bounds checks,
//! and judges that miss a broken program prove nothing.

mod liveness;
mod mutants;

pub use mutants::{Mutant, mutants};

use std::fmt;

use crate::emit::Outcome;
use crate::interpret::{Fault, Machine, Packet, Tag};
use crate::program::{Hook, Program};

/// A judge's answer for one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// The program ran.
    Answered {
        /// The class, or unsure.
        outcome: Outcome,
        /// The increase of each counter.
        counted: Vec<u64>,
        /// The resulting frame, tags inline, if the program edits frames.
        frame: Option<Vec<u8>>,
    },
    /// The judge cannot take this packet, for a reason of its own. For example, the kernel's test
    /// run takes no frame below 14 bytes.
    Refused(String),
    /// The program faulted or could not run.
    Broken(String),
}

/// A way to run a twin's decision over a packet.
pub trait Judge {
    /// Name for messages.
    fn name(&self) -> &str;
    /// Rules on this packet.
    fn judge(&mut self, packet: &Packet<'_>) -> Ruling;
    /// Returns the filters' states, in the order of the program's maps; `None` if they cannot be
    /// read.
    fn states(&mut self) -> Option<Vec<Vec<u8>>> {
        None
    }
    /// Adopts the states of a twin that was unsure, as the user implementation does when it gets
    /// the block.
    fn adopt(&mut self, _: Vec<Vec<u8>>) {}
}

/// The interpreter as a judge.
#[derive(Debug)]
pub struct Interpreter<'p> {
    program: &'p Program,
    machine: Machine,
}

impl<'p> Interpreter<'p> {
    /// Creates a judge that runs this program, which must be finished with `Finish::Answer`.
    pub fn new(program: &'p Program) -> Self {
        Self { program, machine: Machine::of(program) }
    }

    /// Returns the same judge, for which pulling and linearizing fail for lack of memory.
    #[must_use]
    pub fn starving(mut self) -> Self {
        self.machine.starves = true;
        self
    }

    /// Returns the instructions executed by the last run.
    pub fn steps(&self) -> u32 {
        self.machine.steps
    }

    /// Runs the program once with counters reset to zero; filter states persist.
    pub fn run(&mut self, packet: &Packet<'_>) -> Result<u64, Fault> {
        if let (Some(counters), false) =
            (self.machine.maps.first_mut(), self.program.counters.is_empty())
        {
            counters.fill(0);
        }
        self.machine.run(&self.program.code, self.program.hook, packet)
    }
}

impl Judge for Interpreter<'_> {
    fn name(&self) -> &str {
        "interpreter"
    }

    fn judge(&mut self, packet: &Packet<'_>) -> Ruling {
        match self.run(packet) {
            Ok(value) => {
                // The kernel's test run returns 32 bits as well.
                let outcome = Outcome::of(value as u32);
                let counters = self.machine.maps.first().map_or(&[][..], Vec::as_slice);
                let mut counted = words(counters);
                counted.truncate(self.program.counters.len());
                let machine = &self.machine;
                let frame = machine.frame.as_deref().unwrap_or(packet.bytes);
                let frame = with_tag_inline(frame, machine.tag, self.program.hook);
                let frame = self.program.edits.then_some(frame);
                Ruling::Answered { outcome, counted, frame }
            }
            Err(fault) => Ruling::Broken(fault.to_string()),
        }
    }

    fn states(&mut self) -> Option<Vec<Vec<u8>>> {
        let maps = self.program.maps.iter().zip(&self.machine.maps);
        Some(maps.filter(|(spec, _)| spec.state_of.is_some()).map(|(_, map)| map.clone()).collect())
    }
}

/// Returns the frame as the host's stack sees it, with the tag beside it put back inline (CONTRACT
/// 3). At XDP the tag is still inline.
pub fn with_tag_inline(frame: &[u8], tag: Option<Tag>, hook: Hook) -> Vec<u8> {
    match (tag, frame.split_at_checked(12)) {
        (Some(tag), Some((addresses, rest))) if hook != Hook::Xdp => {
            [addresses, &tag.protocol.to_be_bytes(), &tag.tci.to_be_bytes(), rest].concat()
        }
        _ => frame.to_vec(),
    }
}

/// Returns the packet as programs at `hook` see it. At hooks without a link header, that is the
/// payload of an untagged Ethernet frame that announces IP; `None` for other frames.
pub fn at_hook<'p>(packet: &Packet<'p>, hook: Hook) -> Option<Packet<'p>> {
    /// Length of an Ethernet header.
    const LINK: usize = 14;
    if hook.has_link_header() {
        return Some(*packet);
    }
    let is_ip = matches!(packet.bytes.get(12..LINK), Some([8, 0] | [0x86, 0xdd]));
    let bytes = packet.bytes.get(LINK..).filter(|bytes| is_ip && !bytes.is_empty())?;
    let linear = bytes.len();
    packet.tag.is_none().then_some(Packet { bytes, linear, ..*packet })
}

/// Decodes the counters in the value of map 0.
pub fn words(value: &[u8]) -> Vec<u64> {
    value.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// The result of an exam.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets on which the judges agree.
    pub packets: u64,
    /// Number of these packets that were answered with a class other than 0.
    pub answered: u64,
    /// Number of these packets that the reference answered while the twins were unsure. An exam
    /// should bound this number: a twin that is always unsure agrees with everything.
    pub unsure: u64,
    /// Packets that some judge refused; the others agreed.
    pub refused: u64,
}

/// The first packet on which judges disagree.
#[derive(Clone, Debug)]
pub struct Disagreement {
    /// All bytes of the packet.
    pub packet: Vec<u8>,
    /// Length of the linear part.
    pub linear: usize,
    /// Each judge's name and ruling.
    pub rulings: Vec<(String, Ruling)>,
    /// States that differ although the judges agreed on every packet.
    pub states: Vec<Vec<Vec<u8>>>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the judges differ on {} bytes ({} linear): ", self.packet.len(), self.linear)?;
        for byte in &self.packet {
            write!(f, "{byte:02x}")?;
        }
        self.rulings.iter().try_for_each(|(name, ruling)| write!(f, "; {name}: {ruling:?}"))?;
        self.states.iter().try_for_each(|states| write!(f, "; keeps {states:02x?}"))
    }
}

impl std::error::Error for Disagreement {}

/// Presents every packet to every judge. Stops at the first disagreement.
pub fn compare<'a>(
    judges: &mut [&mut dyn Judge],
    packets: impl IntoIterator<Item = Packet<'a>>,
) -> Result<Tally, Box<Disagreement>> {
    let mut tally = Tally::default();
    for packet in packets {
        let rulings: Vec<Ruling> = judges.iter_mut().map(|judge| judge.judge(&packet)).collect();
        if !agree(&rulings) {
            let names = judges.iter().map(|judge| judge.name().to_owned());
            return Err(Box::new(Disagreement {
                packet: packet.bytes.to_vec(),
                linear: packet.linear,
                rulings: names.zip(rulings).collect(),
                states: Vec::new(),
            }));
        }
        tally.packets += 1;
        let any_rules = |wanted: fn(&Ruling) -> bool| u64::from(rulings.iter().any(wanted));
        tally.refused += any_rules(|ruling| matches!(ruling, Ruling::Refused(_)));
        let known = rulings.first().and_then(outcome) != Some(Outcome::Unsure);
        let unsure = any_rules(|ruling| outcome(ruling) == Some(Outcome::Unsure));
        if known
            && unsure > 0
            && let Some((reference, twins)) = judges.split_first_mut()
            && let Some(states) = twins.iter_mut().find_map(|twin| twin.states())
        {
            reference.adopt(states);
        }
        tally.unsure += if known { unsure } else { 0 };
        tally.answered += any_rules(
            |ruling| matches!(outcome(ruling), Some(Outcome::Class(class)) if class != 0),
        );
    }
    // A judge that refused packets has a different state.
    if tally.refused == 0 {
        same_states(judges)?;
    }
    Ok(tally)
}

/// Compares the states of all judges that have any.
fn same_states(judges: &mut [&mut dyn Judge]) -> Result<(), Box<Disagreement>> {
    let states: Vec<_> = judges.iter_mut().filter_map(|judge| judge.states()).collect();
    if states.windows(2).all(|two| two.first() == two.last()) {
        return Ok(());
    }
    Err(Box::new(Disagreement { packet: Vec::new(), linear: 0, rulings: Vec::new(), states }))
}

fn outcome(ruling: &Ruling) -> Option<Outcome> {
    match ruling {
        Ruling::Answered { outcome, .. } => Some(*outcome),
        Ruling::Refused(_) | Ruling::Broken(_) => None,
    }
}

fn agree(rulings: &[Ruling]) -> bool {
    let Some((reference, twins)) = rulings.split_first() else { return true };
    let mut asked = twins.iter().filter(|ruling| !matches!(ruling, Ruling::Refused(_)));
    let Some(first) = asked.next() else { return true };
    let honest = outcome(first) == Some(Outcome::Unsure) || first == reference;
    honest && !matches!(first, Ruling::Broken(_)) && asked.all(|ruling| ruling == first)
}

/// Yields the frame cut at every length, from empty to whole.
pub fn cuts(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..=frame.len()).filter_map(|length| frame.get(..length))
}
