//! Handles: what a twin holds while it emits. They name numbers, places and proofs, no registers.
//!
//! Every handle is branded with the scope in which it is valid. The brand is a lifetime that only
//! that scope has (closures and twins are generic over it), so the compiler refuses a handle
//! outside of its arm. Handles are covariant: what holds in a scope holds in the arms inside it.

use std::marker::PhantomData;

use crate::asm::Label;
use crate::insn::Size;

/// Covariant in `'s`, which is all that a handle owns of its scope.
pub(super) type Brand<'s> = PhantomData<&'s ()>;

/// Where a slot lies: bytes below the frame pointer.
pub(super) type Depth = i16;

/// A number of 32 bits, computed at run time.
#[derive(Clone, Copy, Debug)]
pub struct Num<'s> {
    pub(super) slot: Depth,
    pub(super) brand: Brand<'s>,
}

/// A number that is known now, or at run time.
#[derive(Clone, Copy, Debug)]
pub enum Value<'s> {
    /// Known while emitting.
    Const(u32),
    /// Known at run time.
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

/// A place in the frame: no right to read there.
#[derive(Clone, Copy, Debug)]
pub struct At<'s> {
    pub(super) base: Base,
    /// Bytes behind the base.
    pub(super) off: u16,
    /// How far from the beginning of the frame this can be at most.
    pub(super) reach: u32,
    /// After how many changes of the frame it was computed.
    pub(super) epoch: u16,
    /// Where its base lies in most frames, in bytes from the first one: a guess.
    pub(super) usual: Option<u16>,
    pub(super) brand: Brand<'s>,
}

/// Where a place lies, as a number of bytes from the first of the frame: what remains of a place
/// when the frame is changed.
#[derive(Clone, Copy, Debug)]
pub struct Spot<'s> {
    pub(super) base: Value<'s>,
    /// Bytes behind the base.
    pub(super) off: u16,
    /// How far from the beginning of the frame this can be at most.
    pub(super) reach: u32,
}

/// What an `At` counts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// The first byte of the frame.
    Frame,
    /// A place that was computed; it lies in this slot.
    Slot(Depth),
}

/// The proof that `N` bytes follow a place.
#[derive(Clone, Copy, Debug)]
pub struct Window<'s, const N: usize> {
    pub(super) bytes: Bytes<'s>,
}

/// The proof that some bytes follow a place; how many is known while emitting, not to the compiler.
#[derive(Clone, Copy, Debug)]
pub struct Span<'s> {
    pub(super) bytes: Bytes<'s>,
    pub(super) length: u16,
}

impl<'s, const N: usize> From<Window<'s, N>> for Span<'s> {
    fn from(window: Window<'s, N>) -> Self {
        Self { bytes: window.bytes, length: u16::try_from(N).unwrap_or(u16::MAX) }
    }
}

/// Where proven bytes are read from.
#[derive(Clone, Copy, Debug)]
pub(super) enum Bytes<'s> {
    /// From the packet itself.
    Packet(At<'s>),
    /// From a copy on the stack that begins in this slot, made after so many changes of the frame.
    Copy(Depth, u16),
}

/// A way out of a piece or an arm. Control goes forward and outward only.
#[derive(Clone, Copy, Debug)]
pub struct Exit<'s> {
    pub(super) label: Label,
    pub(super) brand: Brand<'s>,
}

/// A number that arms may set; the only join besides [`AtVar`].
#[derive(Clone, Copy, Debug)]
pub struct Var<'s> {
    pub(super) slot: Depth,
    pub(super) brand: Brand<'s>,
}

/// A place that arms may set.
#[derive(Clone, Copy, Debug)]
pub struct AtVar<'s> {
    pub(super) slot: Depth,
    /// Index of its farthest reach and its epoch in the builder.
    pub(super) reach: usize,
    pub(super) brand: Brand<'s>,
}

/// What a piece knows about the frame, and leaves for the next.
#[derive(Clone, Copy, Debug)]
pub struct Layers<'s> {
    /// The first byte of the frame.
    pub frame: At<'s>,
    /// Where the view begins: what the last piece has not looked at.
    pub at: At<'s>,
    /// The class that the last filter answered: that of a frame that came in is 1.
    pub class: Value<'s>,
    /// How many bytes the view has, where it may end before the frame does.
    pub length: Option<Num<'s>>,
    /// The EtherType of what begins at `at`, once the link layer has been read.
    pub next: Option<Num<'s>>,
    /// Where layer 3 begins.
    pub l3: Option<At<'s>>,
    /// Where layer 4 begins, once an `ip` piece has been there.
    pub l4: Option<Transport<'s>>,
    /// How many VLAN tags were read, those beside the frame included.
    pub tags: u8,
    /// Whether the frame begins with its link header; a piece may have cut it off.
    pub linked: bool,
}

/// Layer 4, as the IP header announces it.
#[derive(Clone, Copy, Debug)]
pub struct Transport<'s> {
    /// Where it begins.
    pub at: At<'s>,
    /// The protocol number.
    pub protocol: Num<'s>,
    /// How many bytes IP announces from there on; the frame may hold fewer, or padding behind.
    pub length: Num<'s>,
}

/// How a piece ends when it recognises the block: its class, and what the next piece may know.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'s> {
    /// The class; 0 is no answer.
    pub class: Value<'s>,
    /// The layers as the next piece shall see them.
    pub layers: Layers<'s>,
}

impl<'s> Answer<'s> {
    /// The answer `class`, with these layers.
    pub fn new(class: impl Into<Value<'s>>, layers: Layers<'s>) -> Self {
        Self { class: class.into(), layers }
    }
}

/// A number of a header: `T` wide, `OFF` bytes into it, in network byte order.
#[derive(Clone, Copy, Debug)]
pub struct Field<T, const OFF: usize> {
    width: PhantomData<T>,
}

/// One byte at `OFF`.
pub const fn byte<const OFF: usize>() -> Field<u8, OFF> {
    Field { width: PhantomData }
}

/// Two bytes at `OFF`, network byte order.
pub const fn be16<const OFF: usize>() -> Field<u16, OFF> {
    Field { width: PhantomData }
}

/// Four bytes at `OFF`, network byte order.
pub const fn be32<const OFF: usize>() -> Field<u32, OFF> {
    Field { width: PhantomData }
}

/// What a field can be wide: `u8`, `u16`, `u32`.
pub trait Width: sealed::Sealed {
    /// As an instruction says it.
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
