//! A pipe between processes that carries aggregates by reference. [IOL §3: IPC], FEATURES Q14, Q18
//!
//! ```text
//! owner                                            reader
//! send(aggregate)                                  receive
//!   grants: lent to this reader (leases, counted)    a pool is mapped when first needed
//!   ring: its rich pointers ────────────────────►    copy of selected bytes to a given address
//!   grants: leases dropped    ◄── released ───────    release, or hang-up for any reason
//! ```
//!
//! Input: aggregates with pools shared through the [`GrantServer`]. Output: the same aggregates on
//! the other side, as lists of pointers; no byte is copied. Each aggregate is a message: a block of
//! pointers in a [stream], which provides waiting, its end, and all validation.
//!
//! The grant server limits the number of segments that a reader may hold. A sender that reaches the
//! limit waits for releases, or fails ([`Sender::try_send`]). A killed reader releases everything,
//! because its socket hangs up (T10). Sent aggregates stay readable after the sender has exited,
//! since the reader has mapped them. To the reader all input is an allegation: invalid pointers are
//! faults, and bytes of a pool are foreign until copied.

use super::holders::PeerId;
use super::refusal::GrantRefusal;
use super::server::{Client, GrantServer, ResolveError};
use super::{Aggregate, AllocationPool, Error, SLICES_MAX};
use abi::access::Credentials;
use abi::{DbufId, RichPointer};
use buffer::stream::{self, BlockReadResult, Input, Output};
use buffer::{Fault, share};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

/// Creates a pipe that sends aggregates to a reader with these credentials. Returns the sending
/// end, and the descriptors with which the reader opens the receiving end. `id` is the unique id of
/// the pipe's ring of pointers.
pub fn pipe(
    server: &GrantServer,
    id: DbufId,
    reader: Credentials,
) -> sys::Result<(Sender, PipeOffer)> {
    let (output, mut offers) = stream::stream(&stream::Config::new(id))?;
    let (peer, grant_socket) = server.add_client(reader)?;
    let none = || sys::Error::new("pipe", "a stream without a reader", 0);
    Ok((
        Sender { output, peer },
        PipeOffer { stream: offers.pop().ok_or_else(none)?, grant_socket },
    ))
}

/// An offer of a pipe of aggregates: the five descriptors with which a reader opens the receiving
/// end.
#[derive(Debug)]
pub struct PipeOffer {
    stream: stream::Offer,
    grant_socket: OwnedFd,
}

impl PipeOffer {
    /// Number of descriptors that a reader needs to open the receiving end of a pipe.
    pub const DESCRIPTOR_COUNT: usize = stream::Offer::DESCRIPTOR_COUNT + 1;

    /// Returns the descriptors of the offer, in the order in which they are sent to the reader.
    #[must_use]
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut all = self.stream.descriptors().to_vec();
        all.push(self.grant_socket.as_fd());
        all
    }

    /// Creates an offer of a pipe from the received descriptors, in the order in which they were
    /// sent. Fails if the number of descriptors is wrong.
    pub fn from_descriptors(mut descriptors: Vec<OwnedFd>) -> Result<Self, share::OfferRefusal> {
        let count = descriptors.len();
        match descriptors.pop() {
            Some(grant_socket) if count == Self::DESCRIPTOR_COUNT => {
                Ok(Self { stream: stream::Offer::from_descriptors(descriptors)?, grant_socket })
            }
            _ => Err(share::OfferRefusal::Descriptors(count)),
        }
    }

    /// Validates the offer and opens the receiving end of the pipe of aggregates. Fails if the
    /// offer is invalid.
    pub fn open(self) -> Result<Receiver, share::OfferRefusal> {
        let input = self.stream.open()?;
        Ok(Receiver {
            input,
            client: Client::new(self.grant_socket),
            buffer: vec![0; POINTER_SIZE * 64],
        })
    }
}

/// Size of a rich pointer in bytes.
const POINTER_SIZE: usize = size_of::<RichPointer>();

/// The sending end of a pipe of aggregates. Dropping it ends the pipe. Aggregates that have already
/// been sent stay held until the reader releases them.
#[derive(Debug)]
pub struct Sender {
    output: Output,
    peer: PeerId,
}

impl Sender {
    /// Returns the id of the reader among the grant server's peers.
    #[must_use]
    pub const fn peer(&self) -> PeerId {
        self.peer
    }

    /// Sends an aggregate, which is held for the reader from then on, even if the caller drops it.
    /// Fails, without sending anything, if the aggregate has too many slices for one block, or if
    /// the reader has no access to one of its pools, holds the maximum number of segments
    /// ([`GrantRefusal::Limit`]) or has departed. Blocks while the ring of pointers is full.
    pub fn try_send(
        &mut self,
        server: &GrantServer,
        aggregate: &Aggregate,
    ) -> Result<(), SendError> {
        let slices = aggregate.slices().count();
        if slices * POINTER_SIZE > self.output.block_length_max() {
            return Err(SendError::TooMany { slices });
        }
        server
            .with_owner(|creator| creator.lend(aggregate, self.peer))
            .map_err(SendError::Refused)?;
        let words = aggregate.slices().flat_map(|slice| slice.pointer().words());
        let block: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let sent = self.output.write(&block);
        if !matches!(sent, Ok(true)) {
            server.with_owner(|creator| {
                for slice in aggregate.slices() {
                    creator.holders_mut().release(self.peer, slice.pointer());
                }
            });
        }
        match sent {
            Ok(true) => {
                // Flushed at once, because senders of single messages expect a prompt reply.
                self.output.flush();
                Ok(())
            }
            Ok(false) => Err(SendError::Fault(Fault::Abandoned)),
            Err(fault) => Err(SendError::Fault(fault)),
        }
    }

    /// Sends like [`Sender::try_send`], but blocks while the reader holds the maximum number of
    /// segments.
    pub fn send(&mut self, server: &GrantServer, aggregate: &Aggregate) -> Result<(), SendError> {
        loop {
            let returns = server.release_and_departure_count();
            match self.try_send(server, aggregate) {
                Err(SendError::Refused(GrantRefusal::Limit { .. })) => {
                    server.wait_for_release_or_departure(returns)
                }
                done => return done,
            }
        }
    }
}

/// The receiving end of a pipe of aggregates.
#[derive(Debug)]
pub struct Receiver {
    input: Input,
    client: Client,
    /// Buffer for a received message. A message consists of the pointers of one aggregate.
    buffer: Vec<u8>,
}

impl Receiver {
    /// Returns the next aggregate. Blocks until there is one. Returns `None` at the end of the
    /// pipe.
    pub fn receive(&mut self) -> Result<Option<ReceivedAggregate>, Fault> {
        loop {
            match self.input.read_block(&mut self.buffer) {
                Ok(BlockReadResult::Block(length)) => {
                    return self.decode_pointers(length).map(Some);
                }
                Ok(BlockReadResult::End) => return Ok(None),
                Ok(BlockReadResult::Nothing) => {
                    self.input.wait(None)?;
                }
                // The length was checked against the ring's maximum.
                Err(Fault::TooLong { length, .. }) => self.buffer.resize(length, 0),
                Err(fault) => return Err(fault),
            }
        }
    }

    /// Waits until there is something to receive, for at most `limit` (`None` means no limit).
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<stream::WaitResult, Fault> {
        self.input.wait(limit)
    }

    /// Copies `out.len()` bytes of an aggregate, beginning at offset `at`, into `out`. Maps pools
    /// as needed. Fails if the bytes are not all in the aggregate, if a pool cannot be mapped, or
    /// if a pointer is invalid.
    pub fn copy(
        &mut self,
        of: &ReceivedAggregate,
        mut at: usize,
        mut out: &mut [u8],
    ) -> Result<(), ResolveError> {
        let end = at.saturating_add(out.len());
        if end > of.length {
            let range = Error::OutOfRange { from: at, to: end, length: of.length };
            return Err(ResolveError::Aggregate(range));
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
            self.client.copy(pointer.subrange(small(at), small(count)), to)?;
            (at, out) = (0, rest);
            if out.is_empty() {
                break;
            }
        }
        Ok(())
    }

    /// Returns the reader's client of the grant server. The client resolves pointers that the
    /// reader has received by other means than this pipe.
    pub const fn client_mut(&mut self) -> &mut Client {
        &mut self.client
    }

    /// Copies an aggregate into a pool of this process, where the copy is immutable, and releases
    /// the original. If the copy fails, the original is not released.
    pub fn copy_and_release(
        &mut self,
        received: ReceivedAggregate,
        pool: &mut AllocationPool,
    ) -> Result<Aggregate, ResolveError> {
        let kept = self.client.receive(&received.pointers, pool)?;
        self.release(received)?;
        Ok(kept)
    }

    /// Releases an aggregate, after which its owner may reuse the memory.
    #[expect(clippy::needless_pass_by_value, reason = "its pointers are no longer valid")]
    pub fn release(&self, received: ReceivedAggregate) -> Result<(), GrantRefusal> {
        received.pointers.iter().try_for_each(|pointer| self.client.release(*pointer))
    }

    /// Decodes the pointers in the first `length` bytes of the buffer, which contain a received
    /// message.
    fn decode_pointers(&self, length: usize) -> Result<ReceivedAggregate, Fault> {
        let (words, rest) = self.buffer.get(..length).unwrap_or_default().as_chunks::<8>();
        let (pairs, odd) = words.as_chunks::<2>();
        if !rest.is_empty() || !odd.is_empty() || pairs.len() > SLICES_MAX {
            return Err(Fault::Damaged { position: self.input.counts().bytes });
        }
        let pointer = |pair: &[[u8; 8]; 2]| RichPointer::from_words(pair.map(u64::from_le_bytes));
        let pointers: Vec<_> = pairs.iter().map(pointer).collect();
        let length = pointers.iter().map(|pointer| pointer.length() as usize).sum();
        Ok(ReceivedAggregate { pointers, length })
    }
}

#[cfg(test)]
impl Sender {
    /// Simulates that the process of this end is killed, for tests.
    pub(crate) fn simulate_kill(self) {
        self.output.simulate_kill();
    }
}

#[cfg(test)]
impl Receiver {
    pub(crate) const fn late_event(&mut self) -> &mut buffer::late_event::LateEvent {
        &mut self.input.late_event
    }
}

/// A received aggregate of another process: the pointers to its slices, which the sender holds for
/// this reader.
#[derive(Debug)]
#[must_use = "its memory is held until it is released"]
pub struct ReceivedAggregate {
    pointers: Vec<RichPointer>,
    length: usize,
}

impl ReceivedAggregate {
    /// Returns the number of bytes in the aggregate, as its sender claims.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.length
    }

    /// Returns true if there are no bytes.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the pointers to the slices, in order.
    #[must_use]
    pub fn pointers(&self) -> &[RichPointer] {
        &self.pointers
    }
}

/// Reason why an aggregate was not sent. The aggregate is then not held for the reader.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// The reader has no access, holds the maximum number of segments, or has departed.
    #[error("{0}")]
    Refused(#[source] GrantRefusal),
    /// The stream failed, for example because the reader has departed.
    #[error("{0}")]
    Fault(#[source] Fault),
    /// The ring of pointers has no room for so many pointers in one message. [`Aggregate::gather`]
    /// reduces the number of slices.
    #[error("an aggregate of {slices} slices is too long for one message: gather it")]
    TooMany {
        /// Number of slices in the aggregate.
        slices: usize,
    },
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::super::owner::PoolOwner;
    use super::*;
    use abi::access::AccessList;
    use buffer::pool::PoolConfig;
    use sys::process::effective_ids;
    use testkit::Random;

    fn dbuf_id(number: u32) -> DbufId {
        DbufId::new(number).unwrap()
    }

    fn pool_and_server() -> (AllocationPool, GrantServer) {
        let config = PoolConfig { segment: 4096, segments: 8 };
        let pool =
            AllocationPool::new(dbuf_id(1), config, AccessList::private(effective_ids())).unwrap();
        let mut creator = PoolOwner::new(4);
        creator.share(&pool).unwrap();
        (pool, GrantServer::start(creator).unwrap())
    }

    #[test]
    fn q14_aggregate_is_received_by_reference_and_in_parts() {
        let (mut pool, server) = pool_and_server();
        let (mut sender, offer) =
            pipe(&server, dbuf_id(2), Credentials::from(effective_ids())).unwrap();
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
        receiver.release(received).unwrap();
        let nothing = receiver.receive().unwrap().unwrap();
        assert!(nothing.is_empty() && receiver.receive().unwrap().is_none());
        receiver.release(nothing).unwrap();
        loop {
            let returns = server.release_and_departure_count();
            if pool.usage().leased == 0 {
                break;
            }
            server.wait_for_release_or_departure(returns);
        }
    }

    /// Pointers from the ring are untrusted: each yields bytes of a readable pool, or a fault.
    #[test]
    fn random_pointers_in_the_ring_cause_faults() {
        let (mut pool, server) = pool_and_server();
        let kept = pool.copy(&[7; 4096]).unwrap();
        let (mut sender, offer) =
            pipe(&server, dbuf_id(2), Credentials::from(effective_ids())).unwrap();
        let mut receiver = offer.open().unwrap();
        let mut random = Random::with_replayable_seed();
        let good = kept.slices().next().unwrap().pointer().words();
        let (mut damaged, mut copied, mut refused) = (0, 0, 0);
        for _ in 0..3000 {
            let mut words = good;
            match random.below(4) {
                0 => words[0] ^= 1 << random.below(64),
                1 => words[1] ^= 1 << random.below(64),
                2 => words = [random.next_u64(), random.next_u64()],
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
            receiver.release(received).unwrap();
        }
        println!("{damaged} damaged, {copied} copied, {refused} refused");
        assert!(damaged > 100 && copied > 100 && refused > 100);
        drop(server);
        assert_eq!(kept.to_vec(), [7; 4096]);
    }
}
