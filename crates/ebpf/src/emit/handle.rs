//! Handles, which represent numbers, positions and proofs in the emitted program while a twin runs.
//! A handle does not name a register.
//!
//! Each handle is branded with the scope in which it is valid. The brand is a lifetime unique to
//! that scope (closures and twins are generic over it), so the compiler rejects a handle outside
//! its arm. Handles are covariant, so a handle is also valid in the arms inside its scope.

use std::marker::PhantomData;

use crate::asm::Label;
use crate::insn::Size;

/// The brand of a handle, the lifetime `'s` of the scope in which the handle is valid; covariant.
pub(super) type Brand<'s> = PhantomData<&'s ()>;

/// A stack slot, given as the number of bytes below the frame pointer.
pub(super) type SlotDepth = i16;

/// A 32-bit number that the program computes.
#[derive(Clone, Copy, Debug)]
pub struct Num<'s> {
    pub(super) slot: SlotDepth,
    pub(super) brand: Brand<'s>,
}

/// A 32-bit number, either constant or computed.
#[derive(Clone, Copy, Debug)]
pub enum Value<'s> {
    /// A number that is known during emission.
    Const(u32),
    /// A number that the program computes.
    Num(Num<'s>),
}

impl From<u32> for Value<'_> {
    fn from(value: u32) -> Self {
        Self::Const(value)
    }
}

impl<'s> From<Num<'s>> for Value<'s> {
    fn from(num: Num<'s>) -> Self {
        Self::Num(num)
    }
}

/// A position in the frame. The position alone does not permit reading.
#[derive(Clone, Copy, Debug)]
pub struct FramePos<'s> {
    pub(super) base: PosBase,
    /// Constant number of bytes between the base of the position and the position.
    pub(super) offset: u16,
    /// Upper bound of the position's distance in bytes from the first byte of the frame.
    pub(super) reach: u32,
    /// Value of the builder's `epoch` when the position was computed. The position is invalid in
    /// later epochs.
    pub(super) epoch: u16,
    /// Usual offset of the position's base from the first byte of the frame, in bytes: a hint that
    /// may be wrong; `None` if there is none.
    pub(super) usual: Option<u16>,
    pub(super) brand: Brand<'s>,
}

impl FramePos<'_> {
    /// The first byte of an unedited frame.
    pub(super) const START: Self = Self {
        base: PosBase::Frame,
        offset: 0,
        reach: 0,
        epoch: 0,
        usual: None,
        brand: PhantomData,
    };
}

/// An offset in bytes from the first byte of the frame, which may be computed. Unlike a
/// [`FramePos`], it stays valid after edits of the frame.
#[derive(Clone, Copy, Debug)]
pub struct FrameOffset<'s> {
    pub(super) base: Value<'s>,
    /// Constant number of bytes between `base` and the offset.
    pub(super) off: u16,
    /// Upper bound of the offset's distance in bytes from the first byte of the frame.
    pub(super) reach: u32,
}

/// The origin from which the offset of a [`FramePos`] is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PosBase {
    /// The offset is measured from the first byte of the frame.
    Frame,
    /// The offset is measured from a computed position, which is stored in this stack slot.
    Slot(SlotDepth),
}

/// The proof that `N` bytes follow a position in the frame.
#[derive(Clone, Copy, Debug)]
pub struct Window<'s, const N: usize> {
    pub(super) bytes: CheckedBytes<'s>,
}

/// The proof that a number of bytes follow a position in the frame. The number is known during
/// emission but not at compile time.
#[derive(Clone, Copy, Debug)]
pub struct DynWindow<'s> {
    pub(super) bytes: CheckedBytes<'s>,
    pub(super) length: u16,
}

impl<'s, const N: usize> From<Window<'s, N>> for DynWindow<'s> {
    fn from(window: Window<'s, N>) -> Self {
        Self { bytes: window.bytes, length: u16::try_from(N).unwrap_or(u16::MAX) }
    }
}

/// The location of frame bytes whose presence has been checked.
#[derive(Clone, Copy, Debug)]
pub(super) enum CheckedBytes<'s> {
    /// The bytes are in the frame itself, at this position.
    Packet(FramePos<'s>),
    /// The bytes are in a copy on the stack. Contains the first stack slot of the copy, and the
    /// `epoch` in which it was made.
    Copy(SlotDepth, u16),
}

/// An exit of a twin or an arm: a target of jumps, which can only lead forward and outward.
#[derive(Clone, Copy, Debug)]
pub struct Exit<'s> {
    pub(super) label: Label,
    pub(super) brand: Brand<'s>,
}

/// A 32-bit variable that can be set in its own scope or in an inner arm. A value that depends on
/// the control path is passed on only in such a variable or in a [`FramePosVar`].
#[derive(Clone, Copy, Debug)]
pub struct Var<'s>(pub(super) Num<'s>);

/// A variable for a position in the frame, which can be set in its own scope or in an inner arm.
#[derive(Clone, Copy, Debug)]
pub struct FramePosVar<'s> {
    pub(super) slot: SlotDepth,
    /// Index of the variable in the builder's `position_reaches`, which contains the maximum
    /// distance of each position variable from the first byte of the frame.
    pub(super) reach: usize,
    pub(super) brand: Brand<'s>,
}

/// The parse state of a frame, which each twin passes on to the next.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'s> {
    /// Position of the first byte of the frame.
    pub frame: FramePos<'s>,
    /// Start of the view: the part of the frame that the previous twins have not parsed.
    pub at: FramePos<'s>,
    /// Class that the last filter assigned, or 1 for an incoming frame.
    pub class: Value<'s>,
    /// Length of the view in bytes; `None` if the view ends with the frame.
    pub length: Option<Num<'s>>,
    /// EtherType of the header at `at`, or `None` until the link layer has been parsed.
    pub next: Option<Num<'s>>,
    /// Start of layer 3, or `None` until a twin has found it.
    pub l3: Option<FramePos<'s>>,
    /// Layer 4 of the frame, or `None` until the `ip` twin has found it.
    pub l4: Option<Transport<'s>>,
    /// Number of VLAN tags parsed, including one that is stored outside the frame.
    pub tags: u8,
    /// True if the frame begins with its link header: false at hooks without link headers, and
    /// after a twin has removed the header.
    pub has_link_header: bool,
}

/// Layer 4 of a frame, as announced by the IP header.
#[derive(Clone, Copy, Debug)]
pub struct Transport<'s> {
    /// Start of the transport header.
    pub at: FramePos<'s>,
    /// Protocol number of layer 4, as in the IP header.
    pub protocol: Num<'s>,
    /// Length in bytes of the transport header and its payload, according to the IP header. The
    /// frame may contain fewer bytes, or padding after them.
    pub length: Num<'s>,
}

/// The result of a twin that recognizes the block: its class, and the layers for the next twin.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'s> {
    /// Class of the block; 0 means no answer.
    pub class: Value<'s>,
    /// The layers of the frame as the next twin receives them.
    pub layers: Layers<'s>,
}

impl<'s> Answer<'s> {
    /// Creates an answer with this class and these layers.
    pub fn new(class: impl Into<Value<'s>>, layers: Layers<'s>) -> Self {
        Self { class: class.into(), layers }
    }
}

/// A header field of type `T` in network byte order, `OFF` bytes into a window.
#[derive(Clone, Copy, Debug)]
pub struct Field<T, const OFF: usize> {
    width: PhantomData<T>,
}

/// Returns the one-byte field at offset `OFF`.
pub const fn byte<const OFF: usize>() -> Field<u8, OFF> {
    Field { width: PhantomData }
}

/// Returns the two-byte field at offset `OFF`, in network byte order.
pub const fn be16<const OFF: usize>() -> Field<u16, OFF> {
    Field { width: PhantomData }
}

/// Returns the four-byte field at offset `OFF`, in network byte order.
pub const fn be32<const OFF: usize>() -> Field<u32, OFF> {
    Field { width: PhantomData }
}

/// An unsigned integer type of the width of a field: `u8`, `u16` or `u32`.
pub trait Width: sealed::Sealed {
    /// Size of the load that reads a field of this type.
    const SIZE: Size;
}

impl Width for u8 {
    const SIZE: Size = Size::B;
}

impl Width for u16 {
    const SIZE: Size = Size::H;
}

impl Width for u32 {
    const SIZE: Size = Size::W;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for u16 {}
    impl Sealed for u32 {}
}
