//! Conditions, the intermediate representation between the syntax tree and the control-flow graph.
//!
//! Input: tests, each with instructions and a comparison. Output: one condition, which `blocks`
//! lowers to a graph. Combining conditions folds constants, so `ip6` on an IPv4-only link costs
//! nothing. The remaining tests run from left to right. Their order is part of their meaning,
//! because a load beyond the end of the frame rejects the frame.

pub(super) use super::super::assemble::{
    Comparison, JumpLabel, PseudoInsn, TAX, TXA, alu_k, alu_x, load_a_constant, load_a_from_word,
    load_x_from_word, non_branching, store_a,
};

/// A test of a frame: instructions and a final comparison. Without a comparison, the test always
/// succeeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ConditionTest {
    pub(super) lines: Vec<PseudoInsn>,
    pub(super) compare: Option<Comparison>,
}

/// A condition on a frame, built from tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Always,
    Never,
    Test(ConditionTest),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

impl Condition {
    /// Returns the conjunction of `self` and `then`. `then` is evaluated only if `self` holds.
    pub(super) fn and(self, then: Self) -> Self {
        match (self, then) {
            (Self::Never, _) | (_, Self::Never) => Self::Never,
            (Self::Always, then) => then,
            (first, Self::Always) => first,
            (Self::All(mut all), then) => {
                all.push(then);
                Self::All(all)
            }
            (first, then) => Self::All(vec![first, then]),
        }
    }

    /// Returns the disjunction of `self` and `otherwise`. `otherwise` is evaluated only if `self`
    /// does not hold.
    pub(super) fn or(self, otherwise: Self) -> Self {
        match (self, otherwise) {
            (Self::Always, _) | (_, Self::Always) => Self::Always,
            (Self::Never, otherwise) => otherwise,
            (first, Self::Never) => first,
            (Self::Any(mut any), otherwise) => {
                any.push(otherwise);
                Self::Any(any)
            }
            (first, otherwise) => Self::Any(vec![first, otherwise]),
        }
    }

    /// Returns the negation of the condition.
    pub(super) fn not(self) -> Self {
        match self {
            Self::Always => Self::Never,
            Self::Never => Self::Always,
            Self::Not(inner) => *inner,
            other => Self::Not(Box::new(other)),
        }
    }

    /// Returns the condition if `wanted` is true, else its negation.
    pub(super) fn negate_unless(self, wanted: bool) -> Self {
        if wanted { self } else { self.not() }
    }

    /// Returns the number of tests in the condition.
    pub(super) fn test_count(&self) -> usize {
        match self {
            Self::Always | Self::Never => 0,
            Self::Test(_) => 1,
            Self::Not(inner) => inner.test_count(),
            Self::All(all) | Self::Any(all) => all.iter().map(Self::test_count).sum(),
        }
    }

    /// Returns the condition with the instructions `lines` executed before its first test.
    pub(super) fn prepend_code(self, lines: Vec<PseudoInsn>) -> Self {
        if lines.is_empty() {
            return self;
        }
        let first = Self::Test(ConditionTest { lines, compare: None });
        match self {
            Self::Always => first,
            Self::All(mut all) => {
                all.insert(0, first);
                Self::All(all)
            }
            other => Self::All(vec![first, other]),
        }
    }
}

/// Returns a condition of one test, which executes `lines` and then compares A with the constant
/// `k`. `op` is the comparison.
pub(super) fn compare_k(lines: Vec<PseudoInsn>, op: u16, k: u32) -> Condition {
    Condition::Test(ConditionTest { lines, compare: Some(Comparison { op, with: Some(k) }) })
}

/// Returns a condition of one test, which executes `lines` and then compares A with X. `op` is the
/// comparison.
pub(super) fn compare_x(lines: Vec<PseudoInsn>, op: u16) -> Condition {
    Condition::Test(ConditionTest { lines, compare: Some(Comparison { op, with: None }) })
}
