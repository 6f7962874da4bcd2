//! Taps that see what sockets of one user exchange. [CONTRACT 22, 25]
//!
//! In: whose packets are meant ([`Own`]). Out: the beginning of a program at a control group, which
//! lets by untouched whatever is not theirs, and a seat for what is. Programs there run wherever a
//! socket sends or receives: in a process, which an interrupt that brings packets interrupts on the
//! same processor, and another process may be scheduled there in the middle. So a processor has
//! several seats, each with a region of its own in every ring; who runs takes a free one, and is
//! alone in it. A reader takes seats for processors.
//!
//! Whose a socket is the kernel says, by three things that must all hold: the user who made it (or
//! to whom it was given); the name space of the network, since in others numbers of users may mean
//! other users; and that it is no raw socket, which is handed what is meant for everybody.

use super::build::{Builder, skb};
use super::ending::Kept;
use super::tap::{GIVEN, record};
use super::{Unfit, Verdict};
use crate::insn::{Alu, Cond, Helper, Insn, R0, R1, R2, R3, R6, R10, Size, atomic};
use crate::program::Place;

/// How many may be under way on one processor at once. More than two takes a kernel that lets a
/// process be interrupted by others in the middle of sending.
pub const SEATS: u32 = 4;
/// Bytes of the seats of one processor: for each a word that says whether it is taken, and one
/// beside.
pub const STRIDE: u32 = SEATS * SEAT_BYTES.cast_unsigned();
/// Where in these it is counted how often none was free.
pub const TURNED_AWAY: i16 = 8;

const SEAT_BYTES: i32 = 16;
const SEAT_WORDS: [i16; SEATS as usize] = [0, 16, 32, 48];

/// Whose packets a program hands over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Own {
    /// The user.
    pub uid: u32,
    /// The name space of the network, as the kernel numbers those of sockets.
    pub netns: u64,
    /// The number of the map of seats among those that the program is given: [`STRIDE`] bytes for
    /// each processor, shared by all programs that write the same rings.
    pub seats: u32,
}

/// Refuses a tap that stands neither at traffic control nor before the sockets of a user.
pub(super) fn stands(place: Place, own: Option<&Own>) -> Result<(), Unfit> {
    let fits = match place {
        Place::Tc => own.is_none(),
        Place::Cgroup => own.is_some(),
        Place::Xdp | Place::Socket => false,
    };
    let why = "a tap stands at traffic control, or before sockets of one user";
    fits.then_some(()).ok_or_else(|| Unfit::new(why))
}

/// Offset in `bpf_sock`.
const KIND: i16 = 8;
/// SOCK_RAW
const RAW: i32 = 3;

impl Builder {
    /// Lets by what is not exchanged by a socket of this user.
    pub(super) fn only_own(&mut self, own: &Own) {
        let (other, ours) = (self.asm.label(), self.asm.label());
        let asm = &mut self.asm;
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::call(Helper::SocketUid));
        asm.push(Insn::alu32(Alu::Mov, R1, own.uid.cast_signed()));
        asm.jump_if(Cond::Ne, R0, R1, other);
        asm.push(Insn::mov(R1, R6));
        asm.push(Insn::call(Helper::NetnsCookie));
        asm.push_wide(Insn::load64(R1, own.netns));
        asm.jump_if(Cond::Ne, R0, R1, other);
        asm.push(Insn::load(Size::DW, R1, R6, skb::SOCKET));
        asm.jump_if(Cond::Eq, R1, 0, other);
        asm.push(Insn::call(Helper::FullSocket));
        asm.jump_if(Cond::Eq, R0, 0, other);
        asm.push(Insn::load(Size::W, R1, R0, KIND));
        asm.jump_if(Cond::Ne, R1, RAW, ours);
        asm.bind(other);
        asm.push(Insn::mov(R0, Verdict::Pass.value(self.target.place)));
        asm.push(Insn::exit());
        asm.bind(ours);
    }

    /// Takes a seat of the processor in r0, of so many in all; r0 says which. Lets by a packet for
    /// which there is none, and counts it.
    pub(super) fn take_seat(&mut self, own: &Own, all: u32) {
        let (seated, known) = (self.asm.label(), self.asm.label());
        let pass = Verdict::Pass.value(self.target.place);
        let asm = &mut self.asm;
        asm.push(Insn::store(Size::DW, R10, Kept::CPU, R0));
        asm.push(Insn::alu(Alu::Mul, R0, STRIDE.cast_signed()));
        asm.push_wide(Insn::load_map_value(R3, GIVEN + own.seats, 0));
        asm.push(Insn::alu(Alu::Add, R3, R0));
        for (seat, word) in (0..).zip(SEAT_WORDS) {
            let next = asm.label();
            asm.push(Insn::mov(R0, 0));
            asm.push(Insn::mov(R1, 1));
            asm.push(Insn::atomic(Size::DW, atomic::CMPXCHG, R3, word, R1));
            asm.jump_if(Cond::Ne, R0, 0, next);
            asm.push(Insn::mov(R2, seat));
            asm.jump(seated);
            asm.bind(next);
        }
        asm.push(Insn::mov(R1, 1));
        asm.push(Insn::atomic(Size::DW, atomic::ADD, R3, TURNED_AWAY, R1));
        asm.push(Insn::mov(R0, pass));
        asm.push(Insn::exit());
        asm.bind(seated);
        asm.push(Insn::load(Size::DW, R0, R10, Kept::CPU));
        asm.push(Insn::alu(Alu::Mul, R0, SEATS.cast_signed()));
        asm.push(Insn::alu(Alu::Add, R0, R2));
        // So that the verifier goes on in one way, whichever seat it is: it knows nothing of what
        // the context says.
        asm.push(Insn::load(Size::W, R1, R6, skb::LEN));
        asm.push(Insn::alu(Alu::Xor, R0, R1));
        asm.push(Insn::alu(Alu::Xor, R0, R1));
        asm.jump_if(Cond::Lt, R0, all.cast_signed(), known);
        asm.push(Insn::mov(R0, pass));
        asm.push(Insn::exit());
        asm.bind(known);
    }

    /// Gives the seat back, behind all that was written from it.
    pub(super) fn leave_seat(&mut self, own: &Own) {
        self.asm.push(Insn::load(Size::DW, R1, R10, Kept::CPU));
        self.asm.push(Insn::alu(Alu::Mul, R1, SEAT_BYTES));
        self.asm.push_wide(Insn::load_map_value(R2, GIVEN + own.seats, 0));
        self.asm.push(Insn::alu(Alu::Add, R2, R1));
        self.asm.push(Insn::store(Size::DW, R2, 0, 0));
    }

    /// Has the marks of the record in r1: a packet that came by no interface is one that is sent.
    pub(super) fn marks_of_socket(&mut self) {
        let received = self.asm.label();
        let asm = &mut self.asm;
        asm.push(Insn::load(Size::W, R2, R6, skb::CAME_BY));
        asm.push(Insn::mov(R1, 0));
        asm.jump_if(Cond::Ne, R2, 0, received);
        asm.push(Insn::mov(R1, i32::from(record::SENT)));
        asm.bind(received);
    }
}
