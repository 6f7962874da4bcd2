//! The scope, whose methods are the operations that a twin can emit.
//!
//! A twin calls the methods of its [`Scope`] in execution order. Most methods cannot fail. The
//! first operation that eBPF cannot express is remembered and becomes the [`UnfitReason`] error of
//! the entire program.

use std::fmt;
use std::marker::PhantomData;
use std::mem;

use super::builder::{Builder, skb};
use super::handle::{
    Answer, Brand, DynWindow, Exit, Field, FramePos, FramePosVar, Layers, Num, Value, Var, Width,
    Window,
};
use super::lower::offset_too_far_error;
use super::target::NATURAL_ZERO_CLASS;
use super::unfit::UnfitReason;
use crate::insn::{Alu, Cond, Insn, R0, R1, R6, Size};
use crate::program::{FilterSpan, Hook};

/// The type of a twin, as stored in a filter's description. `A` is the type of the filter's
/// arguments. A plain `fn` with these parameters coerces to this type.
pub type EmitFn<A> =
    for<'s, 'o> fn(&A, &mut Scope<'s, 'o>, Layers<'s>, Exit<'s>) -> Result<Answer<'s>, UnfitReason>;

/// Straight-line code under construction. `'s` is the brand of the scope, a lifetime that marks the
/// handles valid in it, and `'o` is the brand of the enclosing scope.
pub struct Scope<'s, 'o: 's> {
    builder: Box<Builder>,
    brand: PhantomData<(InvariantLifetime<'s>, InvariantLifetime<'o>)>,
}

/// A function type that is invariant in its lifetime. It makes a scope invariant in its brands, so
/// no scope can be used in place of another.
type InvariantLifetime<'s> = fn(&'s ()) -> &'s ();

impl fmt::Debug for Scope<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Scope at instruction {}", self.builder.asm.next_slot())
    }
}

/// A comparison of two unsigned numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cmp {
    /// Equal: `==`.
    Eq,
    /// Not equal: `!=`.
    Ne,
    /// Less: `<`.
    Lt,
    /// Less or equal: `<=`.
    Le,
    /// Greater: `>`.
    Gt,
    /// Greater or equal: `>=`.
    Ge,
    /// Holds if the operands have a set bit in common.
    Any,
    /// Holds if the operands have no set bit in common.
    NotAny,
}

impl Cmp {
    /// Returns the condition of the opposite comparison, or `None` for [`Cmp::Any`], whose opposite
    /// BPF lacks.
    pub(super) const fn inverse(self) -> Option<Cond> {
        Some(match self {
            Self::Eq => Cond::Ne,
            Self::Ne => Cond::Eq,
            Self::Lt => Cond::Ge,
            Self::Le => Cond::Gt,
            Self::Gt => Cond::Le,
            Self::Ge => Cond::Lt,
            Self::NotAny => Cond::Set,
            Self::Any => return None,
        })
    }
}

/// Frame metadata that the kernel provides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataField {
    /// Length of the frame in bytes, including fragments.
    Length,
    /// 1 if a VLAN tag is stored outside the frame, else 0.
    TagPresent,
    /// Control information of the tag stored outside the frame: priority, drop eligibility and
    /// VLAN id.
    TagTci,
    /// Protocol of the tag stored outside the frame: 0x8100 or 0x88a8.
    TagProtocol,
}

impl Layers<'_> {
    pub(super) fn unparsed(hook: Hook) -> Self {
        let frame = FramePos::START;
        let class = Value::Const(1);
        let (length, next, l4) = (None, None, None);
        let linked = hook.has_link_header();
        let l3 = (!linked).then_some(frame);
        Self { frame, at: frame, class, length, next, l3, l4, tags: 0, has_link_header: linked }
    }
}

impl<'s, 'o: 's> Scope<'s, 'o> {
    /// Returns the hook of the program.
    pub fn hook(&self) -> Hook {
        self.builder.target.hook
    }

    /// Returns true if, at this hook, the outer VLAN tag may be stored outside the frame (see
    /// [`MetadataField`]).
    pub fn may_have_stored_tag(&self) -> bool {
        self.builder.may_have_stored_tag()
    }

    // ---- bounds checks and loads

    /// Emits the check that `N` bytes follow `at`, and returns the proof. Shorter blocks take the
    /// exit `miss`. Blocks whose bytes are present but not directly readable take the `unsure`
    /// exit.
    pub fn need<const N: usize>(&mut self, at: FramePos<'s>, miss: Exit<'s>) -> Window<'s, N> {
        const { assert!(0 < N && N <= 512, "a window has 1 to 512 bytes") }
        let length = u16::try_from(N).unwrap_or(u16::MAX);
        Window { bytes: self.builder.check_bounds(at, length, miss.label) }
    }

    /// Emits code that loads a field from bytes that have been checked. An offset beyond the window
    /// does not compile.
    pub fn load<T: Width, const OFF: usize, const N: usize>(
        &mut self,
        window: Window<'s, N>,
        _: Field<T, OFF>,
    ) -> Num<'s> {
        const { assert!(OFF + T::SIZE.bytes() <= N, "the field is outside the window") }
        self.builder.load(window.bytes, u16::try_from(OFF).unwrap_or(u16::MAX), T::SIZE)
    }

    /// Checks bounds like [`Scope::need`], for a length that is known only during emission. Fails
    /// unless the length is between 1 and 512 bytes.
    pub fn need_dyn(
        &mut self,
        at: FramePos<'s>,
        n: u16,
        miss: Exit<'s>,
    ) -> Result<DynWindow<'s>, UnfitReason> {
        if !(1..=512).contains(&n) {
            return Err(self.record_unfit_reason("it reads no byte, or more than 512 at once"));
        }
        Ok(DynWindow { bytes: self.builder.check_bounds(at, n, miss.label), length: n })
    }

    /// Emits code that loads a field at byte offset `off` from bytes that [`Scope::need_dyn`] has
    /// checked. Fails if the field is beyond these bytes.
    pub fn load_dyn<T: Width>(
        &mut self,
        span: DynWindow<'s>,
        off: u16,
    ) -> Result<Num<'s>, UnfitReason> {
        if usize::from(off) + T::SIZE.bytes() > usize::from(span.length) {
            return Err(self.record_unfit_reason("it reads past the bytes that it has checked"));
        }
        Ok(self.builder.load(span.bytes, off, T::SIZE))
    }

    /// Returns the position `n` bytes after `at`. The new position needs its own bounds check
    /// before bytes are read there.
    pub fn advance(&mut self, at: FramePos<'s>, n: u16) -> FramePos<'s> {
        if at.offset.checked_add(n).is_none() {
            self.builder.refuse_program(offset_too_far_error());
        }
        FramePos { offset: at.offset.saturating_add(n), reach: at.reach + u32::from(n), ..at }
    }

    /// Returns the same position with a hint, `usual`: the position's usual distance in bytes from
    /// the first byte of the frame. Where loads from a constant distance are cheaper, the program
    /// compares the real distance with the hint. If they are equal, the program loads from the
    /// constant distance.
    #[must_use]
    pub fn hint_usual_distance(&self, at: FramePos<'s>, usual: u16) -> FramePos<'s> {
        FramePos { usual: usual.checked_sub(at.offset), ..at }
    }

    /// Returns the position `by` bytes after `at`. The emitted code jumps to the exit `miss` if
    /// `by` exceeds `max`.
    pub fn advance_by(
        &mut self,
        at: FramePos<'s>,
        by: Num<'s>,
        max: u16,
        miss: Exit<'s>,
    ) -> FramePos<'s> {
        self.builder.move_position_by(at, by, max, miss.label)
    }

    // ---- branches

    /// Emits a jump to the exit `miss` that is taken unless the comparison holds.
    pub fn only(&mut self, left: Num<'s>, cmp: Cmp, right: impl Into<Value<'s>>, miss: Exit<'s>) {
        match cmp.inverse() {
            Some(cond) => self.jump_if(cond, left, right.into(), miss.label),
            None => {
                // BPF has no inverse of JSET, so the code jumps over the jump to the exit.
                let holds = self.builder.asm.new_label();
                self.jump_if(Cond::Set, left, right.into(), holds);
                self.leave(miss);
                self.builder.bind(holds);
            }
        }
    }

    /// Emits a jump to the exit `miss` that is taken unless the number is one of these values.
    pub fn only_one_of(
        &mut self,
        num: Num<'s>,
        of: impl IntoIterator<Item = impl Into<u32>>,
        miss: Exit<'s>,
    ) {
        self.arm(|s, found| {
            of.into_iter().for_each(|one| s.only(num, Cmp::Ne, one.into(), found));
            s.leave(miss);
        });
    }

    /// Emits a jump to the exit `miss` that is taken unless the value is in `low..=high`, the class
    /// range of an arc.
    pub fn only_in_range(&mut self, value: Value<'s>, low: u32, high: u32, miss: Exit<'s>) {
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

    /// Emits an arm: code that can end early through its own exit. Handles created inside are not
    /// valid outside.
    pub fn arm<R>(&mut self, f: impl for<'i> FnOnce(&mut Scope<'i, 's>, Exit<'i>) -> R) -> R {
        let mark = self.builder.open_arm();
        let exit = Exit { label: Builder::arm_end_label(&mark), brand: Brand::default() };
        let mut inner = Scope { builder: mem::take(&mut self.builder), brand: PhantomData };
        let result = f(&mut inner, exit);
        self.builder = inner.builder;
        self.builder.close_arm(mark);
        result
    }

    /// Emits a jump to an exit. Code that is emitted later in this scope is unreachable and
    /// therefore dropped.
    pub fn leave(&mut self, to: Exit<'s>) {
        self.builder.asm.jump(to.label);
    }

    /// Returns an exit for blocks that this filter does not recognize. The code at the exit
    /// increments `counter` of this filter and continues at `then`.
    pub fn absent(&mut self, counter: &str, then: Exit<'s>) -> Exit<'s> {
        Exit { label: self.builder.counting_exit(counter, then.label), brand: then.brand }
    }

    /// Returns the exit for blocks that this code cannot decide. The filter's user implementation
    /// decides about them.
    pub fn unsure(&self) -> Exit<'s> {
        Exit { label: self.builder.unsure_label(), brand: Brand::default() }
    }

    /// Emits code that increments a counter of this filter.
    pub fn count(&mut self, counter: &str) {
        let counter = self.builder.counter_index(counter);
        self.builder.increment_counter(counter);
    }

    // ---- numbers

    /// Emits code that loads a constant, and returns it as a number.
    pub fn constant(&mut self, value: u32) -> Num<'s> {
        self.builder.fetch(value.into(), R0);
        self.builder.store_in_new_slot(R0)
    }

    /// Emits `left & right` and returns the result.
    pub fn and(&mut self, left: Num<'s>, right: impl Into<Value<'s>>) -> Num<'s> {
        self.compute(Alu::And, left, right.into())
    }

    /// Emits `left | right` and returns the result.
    pub fn or(&mut self, left: Num<'s>, right: impl Into<Value<'s>>) -> Num<'s> {
        self.compute(Alu::Or, left, right.into())
    }

    /// Emits `left + right`, modulo 2^32, and returns the result.
    pub fn add(&mut self, left: Num<'s>, right: impl Into<Value<'s>>) -> Num<'s> {
        self.compute(Alu::Add, left, right.into())
    }

    /// Emits `left - right`, modulo 2^32, and returns the result.
    pub fn sub(&mut self, left: Num<'s>, right: impl Into<Value<'s>>) -> Num<'s> {
        self.compute(Alu::Sub, left, right.into())
    }

    /// Returns `left << bits`, modulo 2^32. Only `bits` modulo 32 is used.
    pub fn shl(&mut self, left: Num<'s>, bits: u32) -> Num<'s> {
        self.compute(Alu::Shl, left, Value::Const(bits & 31))
    }

    /// Returns `left >> bits`. Only `bits` modulo 32 is used.
    pub fn shr(&mut self, left: Num<'s>, bits: u32) -> Num<'s> {
        self.compute(Alu::Shr, left, Value::Const(bits & 31))
    }

    /// Returns the class for a number: the number itself, or [`NATURAL_ZERO_CLASS`] for 0, because
    /// class 0 means no answer.
    pub fn natural_class(&mut self, num: Num<'s>) -> Num<'s> {
        self.load_if_zero(num, Insn::alu32(Alu::Mov, R0, NATURAL_ZERO_CLASS.cast_signed()))
    }

    /// Emits code that replaces a number by another one if it is 0, and returns the result. `insn`
    /// loads the other number into r0.
    pub(super) fn load_if_zero(&mut self, num: Num<'s>, insn: Insn) -> Num<'s> {
        let b = &mut self.builder;
        let done = b.asm.new_label();
        b.fetch(num.into(), R0);
        b.asm.jump_if(Cond::Ne, R0, 0, done);
        b.asm.push(insn);
        b.bind(done);
        b.store_in_new_slot(R0)
    }

    /// Emits code that loads metadata of the frame. Tag fields are 0 at hooks where no tag is
    /// stored outside the frame.
    pub fn load_metadata(&mut self, meta: MetadataField) -> Num<'s> {
        if !self.may_have_stored_tag() && meta != MetadataField::Length {
            return self.constant(0);
        }
        if self.builder.target.hook == Hook::Xdp {
            self.builder.emit_frame_length();
            return self.builder.store_in_new_slot(R0);
        }
        let field = match meta {
            MetadataField::Length => skb::LEN,
            MetadataField::TagPresent => skb::TAG_PRESENT,
            MetadataField::TagTci => skb::TAG_TCI,
            MetadataField::TagProtocol => skb::TAG_PROTOCOL,
        };
        self.builder.asm.push(Insn::load(Size::W, R0, R6, field));
        if meta == MetadataField::TagProtocol {
            self.builder.asm.push(Insn::big_endian(R0, 16));
        }
        self.builder.store_in_new_slot(R0)
    }

    // ---- joins

    /// Creates a variable, which arms may set, with the initial value `first`.
    pub fn var(&mut self, first: impl Into<Value<'s>>) -> Var<'s> {
        self.builder.fetch(first.into(), R0);
        Var(self.builder.store_in_new_slot(R0))
    }

    /// Emits code that sets a 32-bit variable, in this scope or in an inner arm.
    pub fn set(&mut self, var: Var<'s>, value: impl Into<Value<'s>>) {
        self.builder.fetch(value.into(), R0);
        self.builder.store_in_slot(var.0.slot, R0);
    }

    /// Returns the current value of a 32-bit variable.
    pub fn get(&mut self, var: Var<'s>) -> Num<'s> {
        self.builder.fetch(var.0.into(), R0);
        self.builder.store_in_new_slot(R0)
    }

    /// Creates a position variable, which arms may set, with the initial value `first`.
    pub fn position_var(&mut self, first: FramePos<'s>) -> FramePosVar<'s> {
        self.builder.position_var(first)
    }

    /// Emits code that sets a position variable, in this scope or in an inner arm.
    pub fn set_position(&mut self, var: FramePosVar<'s>, at: FramePos<'s>) {
        self.builder.set_position(var, at);
    }

    /// Returns the value of a position variable.
    pub fn get_position(&mut self, var: FramePosVar<'s>) -> FramePos<'s> {
        self.builder.get_position(var)
    }

    // ---- twins

    /// Emits the twin of the filter with this span. Blocks that the twin does not recognize take
    /// the exit `out`. Releases the stack slots of the twin, except those of its answer.
    pub fn emit_twin<A: ?Sized>(
        &mut self,
        filter: FilterSpan,
        emit: EmitFn<A>,
        args: &A,
        on: Layers<'s>,
        out: Exit<'s>,
    ) -> Result<Answer<'s>, UnfitReason> {
        let mark = self.builder.open_arm();
        self.builder.begin_filter(filter);
        let mut inner =
            Scope::<'_, 's> { builder: mem::take(&mut self.builder), brand: PhantomData };
        let answer = emit(args, &mut inner, on, out);
        self.builder = inner.builder;
        match answer {
            Ok(Answer { class, layers }) => {
                let answer = Answer { class, layers: Layers { class, ..layers } };
                Ok(self.builder.close_twin_with_answer(mark, answer))
            }
            Err(unfit) => {
                // The code of the twin is incomplete, so the program must not be used.
                self.builder.refuse_program(unfit.clone());
                Err(unfit)
            }
        }
    }

    /// Emits a twin with two handlers: `absent` for blocks that the twin does not recognize, and
    /// `unsure` for blocks that it cannot decide. Both handlers must end with a jump to an exit.
    /// Code after the call runs only for answered blocks.
    pub fn emit_twin_with_exits<A: ?Sized>(
        &mut self,
        (filter, emit, args): (FilterSpan, EmitFn<A>, &A),
        on: Layers<'s>,
        absent: impl for<'i> FnOnce(&mut Scope<'i, 's>) -> Result<(), UnfitReason>,
        unsure: impl for<'i> FnOnce(&mut Scope<'i, 's>),
    ) -> Result<Answer<'s>, UnfitReason> {
        let asm = &mut self.builder.asm;
        let (none, undecided, next) = (asm.new_label(), asm.new_label(), asm.new_label());
        let outer = self.builder.unsure_label();
        self.builder.set_unsure_label(undecided);
        let out = Exit { label: none, brand: Brand::default() };
        let answer = self.emit_twin(filter, emit, args, on, out);
        self.builder.set_unsure_label(outer);
        let answer = answer?;
        let (unrecognized_used, undecided_used) =
            (self.builder.asm.is_used(none), self.builder.asm.is_used(undecided));
        if unrecognized_used || undecided_used {
            self.builder.asm.jump(next);
        }
        if unrecognized_used {
            self.builder.bind(none);
            self.arm(|inner, _| absent(inner))?;
        }
        if undecided_used {
            self.builder.bind(undecided);
            self.arm(|inner, _| unsure(inner));
        }
        self.builder.bind(next);
        Ok(answer)
    }

    /// Emits the code of `only` and the code of `miss`, which runs if `only` leaves through the
    /// exit that it receives. `miss` must end with a jump to another exit, so that the code after
    /// the call runs only if `only` succeeded.
    pub fn or_else(
        &mut self,
        only: impl FnOnce(&mut Self, Exit<'s>),
        miss: impl for<'i> FnOnce(&mut Scope<'i, 's>),
    ) {
        let (other, next) = (self.builder.asm.new_label(), self.builder.asm.new_label());
        only(self, Exit { label: other, brand: Brand::default() });
        if self.builder.asm.is_used(other) {
            self.builder.asm.jump(next);
            self.builder.bind(other);
            self.arm(|inner, _| miss(inner));
        }
        self.builder.bind(next);
    }

    /// Records `why` as the reason for which eBPF cannot express the program, and returns it as an
    /// error. Because of the record, the program is refused even if the twin ignores the returned
    /// error.
    fn record_unfit_reason(&mut self, why: &'static str) -> UnfitReason {
        self.builder.refuse_program(UnfitReason::new(why));
        UnfitReason::new(why)
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
        b.store_in_new_slot(R0)
    }

    fn jump_if(&mut self, cond: Cond, left: Num<'s>, right: Value<'s>, to: crate::asm::Label) {
        let b = &mut self.builder;
        match right {
            Value::Const(constant) => {
                let left = b.fetch_slot_register(left.slot, R0);
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
