//! The exam of a twin, in which several judges rule on the same packets and must agree.
//!
//! Input: judges (a filter's user implementation, the interpreter, the real kernel) and packets.
//! Output: the [`ExamTotals`], or the first packet on which the judges disagree. The first judge is
//! the reference. The others must return the same class and counters as the reference, and agree
//! among themselves. They may also be unsure, because a twin leaves a block to the user
//! implementation rather than guess.
//!
//! [`truncations`] and `mutants` make the exam thorough: bounds checks are tested only by packets
//! truncated to every length, and judges that accept a broken program prove nothing.

mod liveness;
mod mutants;

pub use mutants::{Mutant, mutants};

use std::fmt;

use crate::emit::Outcome;
use crate::interpret::{Fault, Machine, Packet, Tag};
use crate::program::{Hook, Program};

/// The ruling of a judge, an implementation of a twin's decisions, on one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TwinVerdict {
    /// The implementation returned an answer for the packet.
    Answered {
        /// Class of the answer, or [`Outcome::Unsure`].
        outcome: Outcome,
        /// Amount by which this packet increased each of the program's counters.
        counter_increases: Vec<u64>,
        /// Frame after the program's edits, with inline tags; `None` if the program edits no
        /// frames.
        frame: Option<Vec<u8>>,
    },
    /// The implementation cannot run on this packet, for the reason given. For example, the
    /// kernel's test run accepts no frame below 14 bytes.
    Refused(String),
    /// The program faulted or could not run, for the reason given.
    Broken(String),
}

/// A judge in an exam: an implementation of a twin's decisions, which rules on packets.
pub trait TwinJudge {
    /// Returns the name of the judge for messages.
    fn name(&self) -> &str;
    /// Runs this judge's implementation on a packet, and returns the ruling.
    fn judge(&mut self, packet: &Packet<'_>) -> TwinVerdict;
    /// Returns the states of the filters after the packets so far, in the order of the program's
    /// maps. Returns `None` if this judge cannot read them.
    fn filter_states(&mut self) -> Option<Vec<Vec<u8>>> {
        None
    }
    /// Replaces the filter states of this judge with those of a twin that was unsure about the last
    /// packet. The user implementation likewise continues with the twin's state when it receives
    /// the block.
    fn adopt_filter_states(&mut self, _: Vec<Vec<u8>>) {}
}

/// A judge in an exam that decides about packets by running a program in the interpreter.
#[derive(Debug)]
pub struct InterpreterJudge<'p> {
    program: &'p Program,
    machine: Machine,
}

impl<'p> InterpreterJudge<'p> {
    /// Creates a judge that runs this program. The program must be finished with
    /// [`ReturnConversion::Answer`](crate::emit::ReturnConversion::Answer).
    pub fn new(program: &'p Program) -> Self {
        Self { program, machine: Machine::for_program(program) }
    }

    /// Makes `skb_pull_data` fail whenever this judge runs the program, as if memory had run out.
    #[must_use]
    pub fn with_failing_pull_data(mut self) -> Self {
        self.machine.lacks_memory = true;
        self
    }

    /// Returns the number of instructions that the last run executed.
    pub fn executed_instruction_count(&self) -> u32 {
        self.machine.steps
    }

    /// Runs the program once, with its counters reset to zero. The states of filters persist
    /// between runs.
    pub fn run(&mut self, packet: &Packet<'_>) -> Result<u64, Fault> {
        if let (Some(counters), false) =
            (self.machine.maps.first_mut(), self.program.counters.is_empty())
        {
            counters.fill(0);
        }
        self.machine.run(&self.program.code, self.program.hook, packet)
    }
}

impl TwinJudge for InterpreterJudge<'_> {
    fn name(&self) -> &str {
        "interpreter"
    }

    fn judge(&mut self, packet: &Packet<'_>) -> TwinVerdict {
        match self.run(packet) {
            Ok(value) => {
                // The kernel's test run returns 32 bits as well.
                let outcome = Outcome::decode(value as u32);
                let counters = self.machine.maps.first().map_or(&[][..], Vec::as_slice);
                let mut counted = decode_counters(counters);
                counted.truncate(self.program.counters.len());
                let machine = &self.machine;
                let frame = machine.frame.as_deref().unwrap_or(packet.bytes);
                let frame = insert_tag_inline(frame, machine.tag, self.program.hook);
                let frame = self.program.edits_frames.then_some(frame);
                TwinVerdict::Answered { outcome, counter_increases: counted, frame }
            }
            Err(fault) => TwinVerdict::Broken(fault.to_string()),
        }
    }

    fn filter_states(&mut self) -> Option<Vec<Vec<u8>>> {
        let maps = self.program.maps.iter().zip(&self.machine.maps);
        Some(maps.filter(|(spec, _)| spec.state_of.is_some()).map(|(_, map)| map.clone()).collect())
    }
}

/// Returns the frame as the host's network stack receives it, with the tag `tag` inserted again
/// (CONTRACT 3). At XDP the tag is still inline.
pub fn insert_tag_inline(frame: &[u8], tag: Option<Tag>, hook: Hook) -> Vec<u8> {
    match (tag, frame.split_at_checked(12)) {
        (Some(tag), Some((addresses, rest))) if hook != Hook::Xdp => {
            [addresses, &tag.protocol.to_be_bytes(), &tag.tci.to_be_bytes(), rest].concat()
        }
        _ => frame.to_vec(),
    }
}

/// Returns the packet as programs at `hook` receive it. At hooks without a link header, the packet
/// is the payload of an untagged Ethernet frame with an IP EtherType; returns `None` for any other
/// frame.
pub fn packet_at_hook<'p>(packet: &Packet<'p>, hook: Hook) -> Option<Packet<'p>> {
    /// Length in bytes of an Ethernet header.
    const LINK_HEADER_LENGTH: usize = 14;
    if hook.has_link_header() {
        return Some(*packet);
    }
    let is_ip = matches!(packet.bytes.get(12..LINK_HEADER_LENGTH), Some([8, 0] | [0x86, 0xdd]));
    let bytes =
        packet.bytes.get(LINK_HEADER_LENGTH..).filter(|bytes| is_ip && !bytes.is_empty())?;
    let linear = bytes.len();
    packet.tag.is_none().then_some(Packet { bytes, linear, ..*packet })
}

/// Decodes a program's counters from the value of its map 0.
pub fn decode_counters(value: &[u8]) -> Vec<u64> {
    value.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// The totals of an exam, in which several judges (implementations of a twin's decisions) rule on
/// the same packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExamTotals {
    /// Number of packets on which all judges agree.
    pub packets: u64,
    /// Number of packets to which a judge gave a class other than 0.
    pub answered: u64,
    /// Number of packets that the reference answered while the twins were unsure. An exam should
    /// limit this number, because a twin that is always unsure agrees with every judge.
    pub unsure: u64,
    /// Number of packets on which at least one judge could not run while the others agreed.
    pub refused: u64,
}

/// The first packet on which the judges of an exam disagree, or filter states that differ after the
/// last packet.
#[derive(Clone, Debug)]
pub struct Disagreement {
    /// All bytes of the packet; empty if only the states differ.
    pub packet: Vec<u8>,
    /// Length in bytes of the linear part of the packet; 0 if only the states differ.
    pub linear: usize,
    /// Name and ruling of each judge; empty if only the filter states differ.
    pub rulings: Vec<(String, TwinVerdict)>,
    /// For each judge, the states of the filters after the last packet, if they differ although the
    /// judges agreed on every packet; otherwise empty.
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

/// Runs every packet through every judge, and stops at the first disagreement. At the end, compares
/// the states of the filters, unless a judge has refused a packet.
pub fn compare_judges<'a>(
    judges: &mut [&mut dyn TwinJudge],
    packets: impl IntoIterator<Item = Packet<'a>>,
) -> Result<ExamTotals, Box<Disagreement>> {
    let mut tally = ExamTotals::default();
    for packet in packets {
        let rulings: Vec<TwinVerdict> =
            judges.iter_mut().map(|judge| judge.judge(&packet)).collect();
        if !verdicts_agree(&rulings) {
            let names = judges.iter().map(|judge| judge.name().to_owned());
            return Err(Box::new(Disagreement {
                packet: packet.bytes.to_vec(),
                linear: packet.linear,
                rulings: names.zip(rulings).collect(),
                states: Vec::new(),
            }));
        }
        tally.packets += 1;
        let any_rules = |wanted: fn(&TwinVerdict) -> bool| u64::from(rulings.iter().any(wanted));
        tally.refused += any_rules(|ruling| matches!(ruling, TwinVerdict::Refused(_)));
        let known = rulings.first().and_then(verdict_outcome) != Some(Outcome::Unsure);
        let unsure = any_rules(|ruling| verdict_outcome(ruling) == Some(Outcome::Unsure));
        if known
            && unsure > 0
            && let Some((reference, twins)) = judges.split_first_mut()
            && let Some(states) = twins.iter_mut().find_map(|twin| twin.filter_states())
        {
            reference.adopt_filter_states(states);
        }
        tally.unsure += if known { unsure } else { 0 };
        tally.answered += any_rules(
            |ruling| matches!(verdict_outcome(ruling), Some(Outcome::Class(class)) if class != 0),
        );
    }
    // A judge that refused packets has a different state.
    if tally.refused == 0 {
        compare_states(judges)?;
    }
    Ok(tally)
}

/// Compares the filter states of all judges that can report states. Fails if they differ.
fn compare_states(judges: &mut [&mut dyn TwinJudge]) -> Result<(), Box<Disagreement>> {
    let states: Vec<_> = judges.iter_mut().filter_map(|judge| judge.filter_states()).collect();
    if states.windows(2).all(|two| two.first() == two.last()) {
        return Ok(());
    }
    Err(Box::new(Disagreement { packet: Vec::new(), linear: 0, rulings: Vec::new(), states }))
}

fn verdict_outcome(ruling: &TwinVerdict) -> Option<Outcome> {
    match ruling {
        TwinVerdict::Answered { outcome, .. } => Some(*outcome),
        TwinVerdict::Refused(_) | TwinVerdict::Broken(_) => None,
    }
}

fn verdicts_agree(rulings: &[TwinVerdict]) -> bool {
    let Some((reference, twins)) = rulings.split_first() else { return true };
    let mut given = twins.iter().filter(|ruling| !matches!(ruling, TwinVerdict::Refused(_)));
    let Some(first) = given.next() else { return true };
    let acceptable = verdict_outcome(first) == Some(Outcome::Unsure) || first == reference;
    acceptable && !matches!(first, TwinVerdict::Broken(_)) && given.all(|ruling| ruling == first)
}

/// Yields the frame truncated to every length, from 0 to its full length.
pub fn truncations(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..=frame.len()).filter_map(|length| frame.get(..length))
}
