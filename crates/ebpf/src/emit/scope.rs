//! The scope: everything that a twin can say.
//!
//! A piece is given a `Scope` and calls its methods in the order in which they shall happen.
//! Methods do not fail: what cannot be expressed is remembered and becomes the `Unfit` of the whole
//! program.

use std::fmt;
use std::marker::PhantomData;
use std::mem;

use super::build::{Builder, skb};
use super::handle::{
    Answer, At, AtVar, Base, Brand, Exit, Field, Layers, Num, Span, Value, Var, Width, Window,
};
use super::lower::too_far;
use super::{Emit, Unfit, ZERO};
use crate::insn::{Alu, Cond, Insn, R0, R1, R6, Size};
use crate::program::{Place, Word};

/// A stretch of straight code; `'s` is its brand, `'o` that of the scope around it.
pub struct Scope<'s, 'o: 's> {
    builder: Box<Builder>,
    brand: PhantomData<(Invariant<'s>, Invariant<'o>)>,
}

/// A scope is never taken for another, so its brands are equal or nothing.
type Invariant<'s> = fn(&'s ()) -> &'s ();

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope at instruction {}", self.builder.asm.here())
    }
}

/// A comparison of unsigned numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cmp {
    /// ==
    Eq,
    /// !=
    Ne,
    /// <
    Lt,
    /// <=
    Le,
    /// >
    Gt,
    /// >=
    Ge,
    /// They have a bit in common.
    Any,
    /// They have no bit in common.
    NotAny,
}

/// What the kernel says about a frame besides its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meta {
    /// Its length with all fragments, in bytes.
    Length,
    /// 1 if a VLAN tag is kept beside it.
    TagPresent,
    /// That tag: priority, drop eligible, VLAN number.
    TagTci,
    /// Its protocol: 0x8100 or 0x88a8.
    TagProtocol,
}

impl Layers<'_> {
    pub(super) fn untouched(place: Place) -> Self {
        let frame = At {
            base: Base::Frame,
            off: 0,
            reach: 0,
            epoch: 0,
            usual: None,
            brand: Brand::default(),
        };
        let class = Value::Const(1);
        let (length, next, l4) = (None, None, None);
        let linked = place.has_link();
        let l3 = (!linked).then_some(frame);
        Self { frame, at: frame, class, length, next, l3, l4, tags: 0, linked }
    }
}

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Where the program will run.
    pub fn place(&self) -> Place {
        self.builder.target.place
    }

    /// Whether the outer VLAN tag may lie beside the frame here (see [`Meta`]).
    pub fn has_tag_beside(&self) -> bool {
        !matches!(self.builder.target.place, Place::Xdp | Place::Cgroup)
    }

    // ---- bytes

    /// Goes on only if `N` bytes follow, and gives the proof.
    pub fn need<const N: usize>(&mut self, at: At<'s>, miss: Exit<'s>) -> Window<'s, N> {
        const { assert!(0 < N && N <= 512, "a window has 1 to 512 bytes") }
        let length = u16::try_from(N).unwrap_or(u16::MAX);
        Window { bytes: self.builder.check(at, length, miss.label) }
    }

    /// Loads a field from bytes that are proven to be there.
    pub fn load<T: Width, const OFF: usize, const N: usize>(
        &mut self,
        window: Window<'s, N>,
        _: Field<T, OFF>,
    ) -> Num<'s> {
        const { assert!(OFF + T::SIZE.bytes() <= N, "the field lies outside of the window") }
        self.builder.load(window.bytes, u16::try_from(OFF).unwrap_or(u16::MAX), T::SIZE)
    }

    /// `need` with a length known only while emitting: for expressions.
    pub fn need_dyn(&mut self, at: At<'s>, n: u16, miss: Exit<'s>) -> Result<Span<'s>, Unfit> {
        if !(1..=512).contains(&n) {
            return Err(self.unfit("it asks for no byte, or for more than 512 at once"));
        }
        Ok(Span { bytes: self.builder.check(at, n, miss.label), length: n })
    }

    /// `load` from a [`Span`].
    pub fn load_dyn<T: Width>(&mut self, span: Span<'s>, off: u16) -> Result<Num<'s>, Unfit> {
        if usize::from(off) + T::SIZE.bytes() > usize::from(span.length) {
            return Err(self.unfit("it reads past the bytes that it has checked"));
        }
        Ok(self.builder.load(span.bytes, off, T::SIZE))
    }

    /// The place `n` bytes further; no right to read there.
    pub fn advance(&mut self, at: At<'s>, n: u16) -> At<'s> {
        if at.off.checked_add(n).is_none() {
            self.builder.refuse(too_far());
        }
        At { off: at.off.saturating_add(n), reach: at.reach + u32::from(n), ..at }
    }

    /// The same place, with where it lies in most frames, in bytes from the first one. Where that
    /// is cheaper, what is there is read from there; what lies elsewhere is found all the same.
    #[must_use]
    pub fn usually(&self, at: At<'s>, usual: u16) -> At<'s> {
        At { usual: usual.checked_sub(at.off), ..at }
    }

    /// The place `by` bytes further; goes on only if `by` is at most `max`.
    pub fn advance_by(&mut self, at: At<'s>, by: Num<'s>, max: u16, miss: Exit<'s>) -> At<'s> {
        self.builder.move_by(at, by, max, miss.label)
    }

    // ---- decisions

    /// Goes on only if the comparison holds.
    pub fn only(&mut self, left: Num<'s>, cmp: Cmp, right: impl Into<Value<'s>>, miss: Exit<'s>) {
        let (cond, instead) = match cmp {
            Cmp::Eq => (Cond::Ne, false),
            Cmp::Ne => (Cond::Eq, false),
            Cmp::Lt => (Cond::Ge, false),
            Cmp::Le => (Cond::Gt, false),
            Cmp::Gt => (Cond::Le, false),
            Cmp::Ge => (Cond::Lt, false),
            Cmp::NotAny => (Cond::Set, false),
            Cmp::Any => (Cond::Set, true),
        };
        if instead {
            // There is no "has no bit in common": jump over the way out.
            let holds = self.builder.asm.label();
            self.jump_if(cond, left, right.into(), holds);
            self.builder.asm.jump(miss.label);
            self.builder.bind(holds);
        } else {
            self.jump_if(cond, left, right.into(), miss.label);
        }
    }

    /// Goes on only if the value lies in `low..=high`: the class range of an arc.
    pub fn only_in(&mut self, value: Value<'s>, low: u32, high: u32, miss: Exit<'s>) {
        match value {
            Value::Const(constant) if (low..=high).contains(&constant) => {}
            Value::Const(_) => self.leave(miss),
            Value::Num(num) if low == high => self.only(num, Cmp::Eq, low, miss),
            Value::Num(num) => {
                if low > 0 {
                    self.only(num, Cmp::Ge, low, miss);
                }
                if high < u32::MAX {
                    self.only(num, Cmp::Le, high, miss);
                }
            }
        }
    }

    /// Emits an arm: a stretch that can end early through its own exit. What it made stays inside.
    pub fn arm<R>(&mut self, f: impl for<'i> FnOnce(&mut Scope<'i, 's>, Exit<'i>) -> R) -> R {
        let mark = self.builder.open();
        let exit = Exit { label: Builder::end_of(&mark), brand: Brand::default() };
        let mut inner = Scope { builder: mem::take(&mut self.builder), brand: PhantomData };
        let result = f(&mut inner, exit);
        self.builder = inner.builder;
        self.builder.close(mark);
        result
    }

    /// Goes there; nothing behind it in this scope is emitted.
    pub fn leave(&mut self, to: Exit<'s>) {
        self.builder.asm.jump(to.label);
    }

    /// The exit that counts `counter` of this filter and goes on to `then`: the block is not what
    /// the filter looks for.
    pub fn absent(&mut self, counter: &str, then: Exit<'s>) -> Exit<'s> {
        Exit { label: self.builder.counted(counter, then.label), brand: then.brand }
    }

    /// The exit for what cannot be told here: the user implementation must look.
    pub fn unsure(&self) -> Exit<'s> {
        Exit { label: self.builder.unsure(), brand: Brand::default() }
    }

    /// Adds one to a counter of this filter.
    pub fn count(&mut self, counter: &str) {
        let counter = self.builder.counter(counter);
        self.builder.count(counter);
    }

    // ---- numbers

    /// A constant as a number.
    pub fn constant(&mut self, value: u32) -> Num<'s> {
        self.builder.fetch(value.into(), R0);
        self.builder.keep(R0)
    }

    /// `left & right`.
    pub fn and(&mut self, left: Num<'s>, right: impl Into<Value<'s>>) -> Num<'s> {
        self.compute(Alu::And, left, right.into())
    }

    /// `left | right`.
    pub fn or(&mut self, left: Num<'s>, right: impl Into<Value<'s>>) -> Num<'s> {
        self.compute(Alu::Or, left, right.into())
    }

    /// `left + right`, modulo 2^32.
    pub fn add(&mut self, left: Num<'s>, right: impl Into<Value<'s>>) -> Num<'s> {
        self.compute(Alu::Add, left, right.into())
    }

    /// `left - right`, modulo 2^32.
    pub fn sub(&mut self, left: Num<'s>, right: impl Into<Value<'s>>) -> Num<'s> {
        self.compute(Alu::Sub, left, right.into())
    }

    /// `left << bits`, modulo 2^32; `bits` counts modulo 32.
    pub fn shl(&mut self, left: Num<'s>, bits: u32) -> Num<'s> {
        self.compute(Alu::Shl, left, Value::Const(bits & 31))
    }

    /// `left >> bits`; `bits` counts modulo 32.
    pub fn shr(&mut self, left: Num<'s>, bits: u32) -> Num<'s> {
        self.compute(Alu::Shr, left, Value::Const(bits & 31))
    }

    /// The class of a natural value: itself, or [`ZERO`] for 0, which as a class means no answer.
    pub fn natural(&mut self, num: Num<'s>) -> Num<'s> {
        let b = &mut self.builder;
        let named = b.asm.label();
        b.fetch(num.into(), R0);
        b.asm.jump_if(Cond::Ne, R0, 0, named);
        b.asm.push(Insn::alu32(Alu::Mov, R0, ZERO.cast_signed()));
        b.bind(named);
        b.keep(R0)
    }

    /// What the kernel says about the frame. Tags are 0 where none can lie beside it.
    pub fn meta(&mut self, meta: Meta) -> Num<'s> {
        if !self.has_tag_beside() && meta != Meta::Length {
            return self.constant(0);
        }
        if self.builder.target.place == Place::Xdp {
            self.builder.frame_length();
            return self.builder.keep(R0);
        }
        let field = match meta {
            Meta::Length => skb::LEN,
            Meta::TagPresent => skb::TAG_PRESENT,
            Meta::TagTci => skb::TAG_TCI,
            Meta::TagProtocol => skb::TAG_PROTOCOL,
        };
        self.builder.asm.push(Insn::load(Size::W, R0, R6, field));
        if meta == Meta::TagProtocol {
            self.builder.asm.push(Insn::big_endian(R0, 16));
        }
        self.builder.keep(R0)
    }

    // ---- joins

    /// A number that arms may set, with a first value.
    pub fn var(&mut self, first: impl Into<Value<'s>>) -> Var<'s> {
        self.builder.fetch(first.into(), R0);
        let Num { slot, brand } = self.builder.keep(R0);
        Var { slot, brand }
    }

    /// Sets it, from this scope or any arm inside.
    pub fn set(&mut self, var: Var<'s>, value: impl Into<Value<'s>>) {
        self.builder.fetch(value.into(), R0);
        self.builder.put(var.slot, R0);
    }

    /// Its value now.
    pub fn get(&mut self, var: Var<'s>) -> Num<'s> {
        let now = Num { slot: var.slot, brand: var.brand };
        self.builder.fetch(now.into(), R0);
        self.builder.keep(R0)
    }

    /// A place that arms may set, with a first value.
    pub fn at_var(&mut self, first: At<'s>) -> AtVar<'s> {
        self.builder.at_var(first)
    }

    /// Sets it, from this scope or any arm inside.
    pub fn set_at(&mut self, var: AtVar<'s>, at: At<'s>) {
        self.builder.set_at(var, at);
    }

    /// The place that it holds now.
    pub fn get_at(&mut self, var: AtVar<'s>) -> At<'s> {
        self.builder.get_at(var)
    }

    // ---- pieces

    /// Emits the twin of the filter that stands at `word` in the request. `out` is where blocks go
    /// that it does not recognise. The stack that the twin used is given back, but for its answer.
    pub fn piece<A: ?Sized>(
        &mut self,
        word: Word,
        emit: Emit<A>,
        args: &A,
        on: Layers<'s>,
        out: Exit<'s>,
    ) -> Result<Answer<'s>, Unfit> {
        let mark = self.builder.open();
        self.builder.word(word);
        let mut inner =
            Scope::<'_, 's> { builder: mem::take(&mut self.builder), brand: PhantomData };
        let answer = emit(args, &mut inner, on, out);
        self.builder = inner.builder;
        match answer {
            Ok(Answer { class, layers }) => {
                let answer = Answer { class, layers: Layers { class, ..layers } };
                Ok(self.builder.close_with(mark, answer))
            }
            Err(unfit) => {
                // Its code is half there: nobody may go on as if it were not.
                self.builder.refuse(unfit.clone());
                Err(unfit)
            }
        }
    }

    /// The same, with what happens where the twin does not recognise the block and where it cannot
    /// tell: both leave. Behind it stands what happens to a block that was answered, in no arm.
    pub fn piece_or<A: ?Sized>(
        &mut self,
        (word, emit, args): (Word, Emit<A>, &A),
        on: Layers<'s>,
        absent: impl for<'i> FnOnce(&mut Scope<'i, 's>) -> Result<(), Unfit>,
        unsure: impl for<'i> FnOnce(&mut Scope<'i, 's>),
    ) -> Result<Answer<'s>, Unfit> {
        let asm = &mut self.builder.asm;
        let (none, doubt, next) = (asm.label(), asm.label(), asm.label());
        let outer = self.builder.unsure();
        self.builder.doubt(doubt);
        let out = Exit { label: none, brand: Brand::default() };
        let answer = self.piece(word, emit, args, on, out);
        self.builder.doubt(outer);
        let answer = answer?;
        let (misses, doubts) = (self.builder.asm.is_used(none), self.builder.asm.is_used(doubt));
        if misses || doubts {
            self.builder.asm.jump(next);
        }
        if misses {
            self.builder.bind(none);
            self.arm(|inner, _| absent(inner))?;
        }
        if doubts {
            self.builder.bind(doubt);
            self.arm(|inner, _| unsure(inner));
        }
        self.builder.bind(next);
        Ok(answer)
    }

    /// Emits what goes on only under conditions, and what happens where they do not hold, which
    /// leaves.
    pub fn or_else(
        &mut self,
        only: impl FnOnce(&mut Self, Exit<'s>),
        miss: impl for<'i> FnOnce(&mut Scope<'i, 's>),
    ) {
        let (other, next) = (self.builder.asm.label(), self.builder.asm.label());
        only(self, Exit { label: other, brand: Brand::default() });
        if self.builder.asm.is_used(other) {
            self.builder.asm.jump(next);
            self.builder.bind(other);
            self.arm(|inner, _| miss(inner));
        }
        self.builder.bind(next);
    }

    /// The reason, remembered in case the twin drops it.
    fn unfit(&mut self, why: &'static str) -> Unfit {
        self.builder.refuse(Unfit::new(why));
        Unfit::new(why)
    }

    fn compute(&mut self, op: Alu, left: Num<'s>, right: Value<'s>) -> Num<'s> {
        let b = &mut self.builder;
        match right {
            Value::Const(constant) => {
                b.fetch(left.into(), R0);
                b.asm.push(Insn::alu32(op, R0, constant.cast_signed()));
            }
            Value::Num(right) => {
                b.fetch(right.into(), R1);
                b.fetch(left.into(), R0);
                b.asm.push(Insn::alu32(op, R0, R1));
            }
        }
        b.keep(R0)
    }

    fn jump_if(&mut self, cond: Cond, left: Num<'s>, right: Value<'s>, to: crate::asm::Label) {
        let b = &mut self.builder;
        match right {
            Value::Const(constant) => {
                let left = b.register(left.slot, R0);
                match i32::try_from(constant) {
                    Ok(constant) => b.asm.jump_if(cond, left, constant, to),
                    Err(_) => b.asm.jump32_if(cond, left, constant.cast_signed(), to),
                }
            }
            Value::Num(right) => {
                b.fetch(right.into(), R1);
                b.fetch(left.into(), R0);
                b.asm.jump_if(cond, R0, R1, to);
            }
        }
    }
}

impl Scope<'_, '_> {
    pub(super) fn builder(&mut self) -> &mut Builder {
        &mut self.builder
    }
}

impl Scope<'_, 'static> {
    pub(super) fn root(builder: Box<Builder>) -> Self {
        Self { builder, brand: PhantomData }
    }

    pub(super) fn into_builder(self) -> Box<Builder> {
        self.builder
    }
}
