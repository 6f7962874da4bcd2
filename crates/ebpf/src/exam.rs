//! The exam: several judges answer the same packets and must agree.
//!
//! In: judges (a filter's user implementation, the interpreter, the real kernel) and packets. Out:
//! a `Tally`, or the first packet on which they differ. The first judge is the reference. The
//! others must say the same in class and counters, and the same among themselves; only they may be
//! unsure instead, because a twin that cannot tell passes the block on, and never guesses.
//!
//! `cuts` and `mutants` examine the exam: bounds are only tested by packets cut at every length,
//! and judges that do not notice a broken program prove nothing.

mod idle;
mod mutants;

pub use mutants::{Mutant, mutants};

use std::fmt;

use crate::emit::Outcome;
use crate::interpret::{Fault, Machine, Packet, Tag};
use crate::program::{Place, Program};

/// What a judge says about one packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// An answer.
    Answered {
        /// The class, or that it cannot tell.
        outcome: Outcome,
        /// What each counter of the program has gained.
        counted: Vec<u64>,
        /// The frame afterwards, with all its tags in their places, if the program changes frames.
        frame: Option<Vec<u8>>,
    },
    /// It cannot be asked about this packet, for a reason that lies in the judge (the kernel's test
    /// run takes no frame of less than 14 bytes).
    Refused(String),
    /// The program is broken.
    Broken(String),
}

/// Whoever can answer a packet.
pub trait Judge {
    /// For messages.
    fn name(&self) -> &str;
    /// Answers this packet.
    fn judge(&mut self, packet: &Packet<'_>) -> Ruling;
    /// What the filters keep now, in the order of the program's maps; `None`: it cannot be asked.
    fn states(&mut self) -> Option<Vec<Vec<u8>>> {
        None
    }
    /// Keeps what a twin keeps that was unsure: from there on the block goes elsewhere.
    fn adopt(&mut self, _: Vec<Vec<u8>>) {}
}

/// The interpreter as a judge.
#[derive(Debug)]
pub struct Interpreter<'p> {
    program: &'p Program,
    machine: Machine,
}

impl<'p> Interpreter<'p> {
    /// A judge that runs this program, finished with `Finish::Answer`.
    pub fn new(program: &'p Program) -> Self {
        Self { program, machine: Machine::of(program) }
    }

    /// The same judge where the kernel finds no memory in which to make a frame linear.
    #[must_use]
    pub fn starving(mut self) -> Self {
        self.machine.starves = true;
        self
    }

    /// How many instructions the last run took: which way it went.
    pub fn steps(&self) -> u32 {
        self.machine.steps
    }

    /// Runs the program once, its counters at zero before. What filters keep is kept.
    pub fn run(&mut self, packet: &Packet<'_>) -> Result<u64, Fault> {
        if let (Some(counters), false) =
            (self.machine.maps.first_mut(), self.program.counters.is_empty())
        {
            counters.fill(0);
        }
        self.machine.run(&self.program.code, self.program.place, packet)
    }
}

impl Judge for Interpreter<'_> {
    fn name(&self) -> &str {
        "interpreter"
    }

    fn judge(&mut self, packet: &Packet<'_>) -> Ruling {
        match self.run(packet) {
            Ok(value) => {
                // The kernel's test run answers 32 bits, too.
                let outcome = Outcome::of(value as u32);
                let counters = self.machine.maps.first().map_or(&[][..], Vec::as_slice);
                let mut counted = words(counters);
                counted.truncate(self.program.counters.len());
                let machine = &self.machine;
                let frame = machine.frame.as_deref().unwrap_or(packet.bytes);
                let frame = as_seen(frame, machine.tag, self.program.place);
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

/// The frame as the host's stack sees it: a tag that lay beside it is put back in its place
/// (CONTRACT 3). XDP runs before a tag is taken out.
pub fn as_seen(frame: &[u8], tag: Option<Tag>, place: Place) -> Vec<u8> {
    match (tag, frame.split_at_checked(12)) {
        (Some(tag), Some((addresses, rest))) if place != Place::Xdp => {
            [addresses, &tag.protocol.to_be_bytes(), &tag.tci.to_be_bytes(), rest].concat()
        }
        _ => frame.to_vec(),
    }
}

/// The same packet where programs see it without its link header: what follows that of Ethernet, if
/// it announces IP; a socket is given nothing else. Elsewhere as it is.
pub fn seen_at<'p>(packet: &Packet<'p>, place: Place) -> Option<Packet<'p>> {
    /// Bytes of the header of Ethernet.
    const LINK: usize = 14;
    if place.has_link() {
        return Some(*packet);
    }
    let is_ip = matches!(packet.bytes.get(12..LINK), Some([8, 0] | [0x86, 0xdd]));
    let bytes = packet.bytes.get(LINK..).filter(|bytes| is_ip && !bytes.is_empty())?;
    let linear = bytes.len();
    packet.tag.is_none().then_some(Packet { bytes, linear, ..*packet })
}

/// The counters in the value of map 0.
pub fn words(value: &[u8]) -> Vec<u64> {
    value.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect()
}

/// What an exam came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Packets on which the judges agree.
    pub packets: u64,
    /// Of these, answered with a class other than 0.
    pub answered: u64,
    /// Of these, answered by the reference while the twins were unsure. An exam should bound it: a
    /// twin that is always unsure agrees with everybody.
    pub unsure: u64,
    /// Packets that some judge could not be asked about; the others agreed.
    pub refused: u64,
}

/// The first packet on which judges differ, and what each said.
#[derive(Clone, Debug)]
pub struct Disagreement {
    /// All bytes of the packet.
    pub packet: Vec<u8>,
    /// How many of them were linear.
    pub linear: usize,
    /// Who said what.
    pub rulings: Vec<(String, Ruling)>,
    /// What those keep who agree on every packet and keep different things.
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

/// Asks every judge about every packet.
pub fn sit<'a>(
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
        let says = |wanted: fn(&Ruling) -> bool| u64::from(rulings.iter().any(wanted));
        tally.refused += says(|ruling| matches!(ruling, Ruling::Refused(_)));
        let known = rulings.first().and_then(outcome) != Some(Outcome::Unsure);
        let unsure = says(|ruling| outcome(ruling) == Some(Outcome::Unsure));
        if known
            && unsure > 0
            && let Some((reference, twins)) = judges.split_first_mut()
            && let Some(states) = twins.iter_mut().find_map(|twin| twin.states())
        {
            reference.adopt(states);
        }
        tally.unsure += if known { unsure } else { 0 };
        tally.answered +=
            says(|ruling| matches!(outcome(ruling), Some(Outcome::Class(class)) if class != 0));
    }
    // Who refused a packet has seen less.
    if tally.refused == 0 {
        same_states(judges)?;
    }
    Ok(tally)
}

/// Who keeps something must keep the same.
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

/// The frame, cut at every length from nothing to all of it.
pub fn cuts(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    (0..=frame.len()).filter_map(|length| frame.get(..length))
}
