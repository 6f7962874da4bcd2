//! A pipe between processes that carries aggregates by reference. [IOL §3: IPC], FEATURES Q14, Q18
//!
//! ```text
//! owner                                            reader
//! send(aggregate)                                  receive
//!   grants: lent to this reader (leases, counted)    a pool is mapped when first needed
//!   ring: its rich pointers ────────────────────►    copy of what is wanted, where it is wanted
//!   grants: leases dropped    ◄──── given back ──    give_back, or: hung up, however it ended
//! ```
//!
//! In: aggregates whose pools are shared at the [`GrantServer`]. Out: the same ones on the other
//! side, as lists of pointers; no byte of them is copied on the way. A message is one aggregate:
//! the pointers are a block of a [stream](buffer::stream), which brings waiting, the end, and all
//! checks.
//!
//! How many a reader may keep is the grant server's limit; a sender that reaches it waits until
//! something comes back, or is told so ([`Sender::try_send`]). A reader that is killed gives
//! everything back, because its socket hangs up (T10). A sender that is gone leaves what was sent
//! readable: the reader has mapped it. To the reader all of it is an allegation: pointers that lead
//! nowhere are faults, and bytes of a pool are foreign until they are copied.

use super::holders::PeerId;
use super::refusal::GrantRefusal;
use super::server::{Client, GrantServer, Unreadable};
use super::{Aggregate, AllocationPool, Error, SLICES_MAX};
use abi::access::Credentials;
use abi::{DbufId, RichPointer};
use buffer::stream::{self, Input, Output, Piece};
use buffer::{Fault, share};
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Makes a pipe for a reader with these credentials: the end that sends, and what the reader gets.
/// `id` is that of the ring of pointers.
pub fn pipe(
    server: &GrantServer,
    id: DbufId,
    reader: Credentials,
) -> sys::Result<(Sender, PipeOffer)> {
    let (output, mut offers) = stream::stream(&stream::Config::new(id))?;
    let (peer, asks) = server.introduce(reader)?;
    let none = || sys::Error::new("pipe", "a stream without a reader", 0);
    Ok((Sender { output, peer }, PipeOffer { stream: offers.pop().ok_or_else(none)?, asks }))
}

/// The five descriptors that the reader gets.
#[derive(Debug)]
pub struct PipeOffer {
    stream: stream::Offer,
    asks: OwnedFd,
}

impl PipeOffer {
    /// Descriptors of an offer.
    pub const DESCRIPTORS: usize = stream::Offer::DESCRIPTORS + 1;

    /// The descriptors, in the order in which they are sent.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = self.stream.descriptors().to_vec();
        all.push(self.asks.as_fd());
        all
    }

    /// Reads an offer from received descriptors; refuses another number of them.
    pub fn from_descriptors(mut descriptors: Vec<OwnedFd>) -> Result<Self, share::Refusal> {
        let count = descriptors.len();
        match descriptors.pop() {
            Some(asks) if count == Self::DESCRIPTORS => {
                Ok(Self { stream: stream::Offer::from_descriptors(descriptors)?, asks })
            }
            _ => Err(share::Refusal::Descriptors(count)),
        }
    }

    /// Opens the reading end, after everything was checked.
    pub fn open(self) -> Result<Receiver, share::Refusal> {
        let input = self.stream.open()?;
        Ok(Receiver { input, client: Client::new(self.asks), room: vec![0; POINTER * 64] })
    }
}

/// Bytes of a pointer.
const POINTER: usize = size_of::<RichPointer>();

/// The end that sends. Dropping it ends the pipe; what was sent stays kept until it is given back.
#[derive(Debug)]
pub struct Sender {
    output: Output,
    peer: PeerId,
}

impl Sender {
    /// Returns the peer that reads.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// Sends an aggregate: it is kept for the reader from here on, whatever becomes of it here.
    /// Refused if the reader may not read one of its pools, or keeps as much as it may
    /// ([`GrantRefusal::Limit`]): then nothing was sent.
    pub fn try_send(&mut self, server: &GrantServer, aggregate: &Aggregate) -> Result<(), Unsent> {
        let slices = aggregate.slices().count();
        if slices * POINTER > self.output.block_max() {
            return Err(Unsent::TooMany { slices });
        }
        server.owner(|creator| creator.lend(aggregate, self.peer)).map_err(Unsent::Refused)?;
        let words = aggregate.slices().flat_map(|slice| slice.pointer().words());
        let block: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let sent = self.output.write(&block);
        if !matches!(sent, Ok(true)) {
            server.owner(|creator| {
                for slice in aggregate.slices() {
                    creator.holders_mut().give_back(self.peer, slice.pointer());
                }
            });
        }
        match sent {
            Ok(true) => {
                // Whoever sends one message at a time wants it read.
                self.output.flush();
                Ok(())
            }
            Ok(false) => Err(Unsent::Fault(Fault::Abandoned)),
            Err(fault) => Err(Unsent::Fault(fault)),
        }
    }

    /// As [`Sender::try_send`], and waits while the reader keeps as much as it may.
    pub fn send(&mut self, server: &GrantServer, aggregate: &Aggregate) -> Result<(), Unsent> {
        loop {
            let seen = server.returns();
            match self.try_send(server, aggregate) {
                Err(Unsent::Refused(GrantRefusal::Limit { .. })) => server.wait_for_returns(seen),
                done => return done,
            }
        }
    }
}

/// The end that receives.
#[derive(Debug)]
pub struct Receiver {
    input: Input,
    client: Client,
    /// Buffer to which messages are copied.
    room: Vec<u8>,
}

impl Receiver {
    /// The next aggregate; waits for it. `None`: the pipe has ended.
    pub fn receive(&mut self) -> Result<Option<Received>, Fault> {
        loop {
            match self.input.read_block(&mut self.room) {
                Ok(Piece::Block(length)) => return self.pointers(length).map(Some),
                Ok(Piece::End) => return Ok(None),
                Ok(Piece::Nothing) => {
                    self.input.wait(None)?;
                }
                // No more than the ring allows, which was checked.
                Err(Fault::TooLong { length, .. }) => self.room.resize(length, 0),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Waits for something to receive, for at most `limit`.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<stream::Ready, Fault> {
        self.input.wait(limit)
    }

    /// Copies `out.len()` bytes of an aggregate from byte `at` on; maps what is not mapped yet.
    pub fn copy(
        &mut self,
        of: &Received,
        mut at: usize,
        mut out: &mut [u8],
    ) -> Result<(), Unreadable> {
        let end = at.saturating_add(out.len());
        if end > of.length {
            let range = Error::OutOfRange { from: at, to: end, length: of.length };
            return Err(Unreadable::Aggregate(range));
        }
        for pointer in &of.pointers {
            let length = pointer.length() as usize;
            if at >= length {
                at -= length;
                continue;
            }
            let count = (length - at).min(out.len());
            let (to, rest) = out.split_at_mut(count);
            let small = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
            self.client.copy(pointer.within(small(at), small(count)), to)?;
            (at, out) = (0, rest);
            if out.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the reader's mappings and its connection to the grant server, for pointers that came
    /// by another way.
    pub const fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Copies an aggregate into a pool of our own, where it is immutable, and gives it back.
    pub fn keep(
        &mut self,
        received: Received,
        pool: &mut AllocationPool,
    ) -> Result<Aggregate, Unreadable> {
        let kept = self.client.receive(&received.pointers, pool)?;
        self.give_back(received)?;
        Ok(kept)
    }

    /// Says that an aggregate is needed no longer: its owner may use the memory again.
    #[expect(clippy::needless_pass_by_value, reason = "its pointers are of no use any more")]
    pub fn give_back(&self, received: Received) -> Result<(), GrantRefusal> {
        received.pointers.iter().try_for_each(|pointer| self.client.give_back(*pointer))
    }

    /// The pointers of a message, which came from another process.
    fn pointers(&self, length: usize) -> Result<Received, Fault> {
        let (words, rest) = self.room.get(..length).unwrap_or_default().as_chunks::<8>();
        let (pairs, odd) = words.as_chunks::<2>();
        if !rest.is_empty() || !odd.is_empty() || pairs.len() > SLICES_MAX {
            return Err(Fault::Damaged { position: self.input.count().bytes });
        }
        let pointer = |pair: &[[u8; 8]; 2]| RichPointer::from_words(pair.map(u64::from_le_bytes));
        let pointers: Vec<_> = pairs.iter().map(pointer).collect();
        let length = pointers.iter().map(|pointer| pointer.length() as usize).sum();
        Ok(Received { pointers, length })
    }
}

#[cfg(test)]
impl Sender {
    /// Ends as a process does that is killed.
    pub(crate) fn die(self) {
        self.output.die();
    }
}

#[cfg(test)]
impl Receiver {
    pub(crate) const fn late(&mut self) -> &mut buffer::late::LateEvent {
        &mut self.input.late
    }
}

/// An aggregate of another process: pointers into its pools, which it keeps for us.
#[derive(Debug)]
#[must_use = "its memory is kept until it is given back"]
pub struct Received {
    pointers: Vec<RichPointer>,
    length: usize,
}

impl Received {
    /// The number of bytes, as the sender alleges it.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the pointers to its slices, in order.
    #[must_use]
    pub fn pointers(&self) -> &[RichPointer] {
        &self.pointers
    }
}

/// The reason for which an aggregate was not sent. Nothing is held for the reader because of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unsent {
    /// The reader may not read it, keeps too much, or is gone.
    Refused(GrantRefusal),
    /// The reader is gone.
    Fault(Fault),
    /// The ring has no room for so many pointers at once: gather the aggregate.
    TooMany {
        /// Slices of the aggregate.
        slices: usize,
    },
}

impl fmt::Display for Unsent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Fault(fault) => fault.fmt(f),
            Self::TooMany { slices } => {
                write!(f, "an aggregate of {slices} slices is too long for one message: gather it")
            }
        }
    }
}

impl std::error::Error for Unsent {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Refused(refusal) => Some(refusal),
            Self::Fault(fault) => Some(fault),
            Self::TooMany { .. } => None,
        }
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::super::owner::Creator;
    use super::*;
    use abi::access::AccessList;
    use buffer::pool::Config;
    use sys::process::identity;
    use testkit::Random;

    fn id(number: u32) -> DbufId {
        DbufId::new(number).unwrap()
    }

    fn fixture() -> (AllocationPool, GrantServer) {
        let config = Config { segment: 4096, segments: 8 };
        let pool = AllocationPool::new(id(1), config, AccessList::private(identity())).unwrap();
        let mut creator = Creator::new(4);
        creator.share(&pool).unwrap();
        (pool, GrantServer::open(creator).unwrap())
    }

    #[test]
    fn q14_an_aggregate_comes_by_reference_and_in_parts() {
        let (mut pool, server) = fixture();
        let (mut sender, offer) = pipe(&server, id(2), Credentials::from(identity())).unwrap();
        let mut receiver = offer.open().unwrap();
        let mut sent = pool.copy(b"behind").unwrap();
        sent.prepend(pool.copy(b"before and ").unwrap()).unwrap();
        sender.send(&server, &sent).unwrap();
        sender.send(&server, &Aggregate::new()).unwrap();
        drop((sent, sender));
        let received = receiver.receive().unwrap().unwrap();
        assert_eq!((received.len(), received.pointers().len()), (17, 2));
        let mut middle = [0; 8];
        receiver.copy(&received, 7, &mut middle).unwrap();
        assert_eq!(&middle, b"and behi");
        assert_eq!(pool.usage().leased, 1, "kept for the reader");
        receiver.give_back(received).unwrap();
        let nothing = receiver.receive().unwrap().unwrap();
        assert!(nothing.is_empty() && receiver.receive().unwrap().is_none());
        receiver.give_back(nothing).unwrap();
        loop {
            let seen = server.returns();
            if pool.usage().leased == 0 {
                break;
            }
            server.wait_for_returns(seen);
        }
    }

    /// Pointers out of the ring are unchecked: each becomes bytes of a readable pool, or a fault.
    #[test]
    fn a_sender_that_writes_anything_gets_faults_out_of_its_reader() {
        let (mut pool, server) = fixture();
        let kept = pool.copy(&[7; 4096]).unwrap();
        let (mut sender, offer) = pipe(&server, id(2), Credentials::from(identity())).unwrap();
        let mut receiver = offer.open().unwrap();
        let mut random = Random::replayable();
        let good = kept.slices().next().unwrap().pointer().words();
        let (mut damaged, mut copied, mut refused) = (0, 0, 0);
        for _ in 0..3000 {
            let mut words = good;
            match random.below(4) {
                0 => words[0] ^= 1 << random.below(64),
                1 => words[1] ^= 1 << random.below(64),
                2 => words = [random.next(), random.next()],
                _ => {}
            }
            let mut block: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            block.truncate(block.len() - random.within(0..5) * usize::from(random.below(3) == 0));
            assert!(sender.output.write(&block).unwrap());
            sender.output.flush();
            let Ok(received) = receiver.receive() else {
                damaged += 1;
                continue;
            };
            let received = received.unwrap();
            let mut out = vec![0; received.len().min(1 << 20)];
            match receiver.copy(&received, 0, &mut out) {
                Ok(()) => copied += 1,
                Err(_) => refused += 1,
            }
            receiver.give_back(received).unwrap();
        }
        println!("{damaged} damaged, {copied} copied, {refused} refused");
        assert!(damaged > 100 && copied > 100 && refused > 100);
        drop(server);
        assert_eq!(kept.to_vec(), [7; 4096]);
    }
}
