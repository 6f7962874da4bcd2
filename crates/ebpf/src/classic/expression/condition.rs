//! What an expression becomes between the tree and the program: conditions made of tests.
//!
//! In: tests, each a run of instructions and a comparison; out: one condition that `blocks` turns
//! into a graph. Constants fold while conditions are joined, so that `ip6` on a link that carries
//! only IPv4 costs nothing. What folds away is not asked, what stays is asked from left to right: a
//! load that leaves the frame rejects it, so the order of tests is part of their meaning.

pub(super) use super::super::lines::{
    Compare, Label, Line, TAX, TXA, alu_k, alu_x, constant_to_a, line, memory_to_a, memory_to_x,
    store_a,
};

/// A run of instructions and the comparison that ends it; without one it always holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Test {
    pub(super) lines: Vec<Line>,
    pub(super) compare: Option<Compare>,
}

/// A condition on a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Always,
    Never,
    Test(Test),
    Not(Box<Self>),
    All(Vec<Self>),
    Any(Vec<Self>),
}

impl Condition {
    /// This, and then that.
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

    /// This, and if it does not hold, that.
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

    /// The opposite.
    pub(super) fn not(self) -> Self {
        match self {
            Self::Always => Self::Never,
            Self::Never => Self::Always,
            Self::Not(inner) => *inner,
            other => Self::Not(Box::new(other)),
        }
    }

    /// Opposite if `wanted` is false.
    pub(super) fn is(self, wanted: bool) -> Self {
        if wanted { self } else { self.not() }
    }

    /// How many tests there are.
    pub(super) fn tests(&self) -> usize {
        match self {
            Self::Always | Self::Never => 0,
            Self::Test(_) => 1,
            Self::Not(inner) => inner.tests(),
            Self::All(all) | Self::Any(all) => all.iter().map(Self::tests).sum(),
        }
    }

    /// Runs `lines` before anything else that this condition does.
    pub(super) fn after(self, lines: Vec<Line>) -> Self {
        if lines.is_empty() {
            return self;
        }
        let first = Self::Test(Test { lines, compare: None });
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

/// A test of what `lines` leave in A against a constant.
pub(super) fn compare_k(lines: Vec<Line>, op: u16, k: u32) -> Condition {
    Condition::Test(Test { lines, compare: Some(Compare { op, with: Some(k) }) })
}

/// A test of what `lines` leave in A against X.
pub(super) fn compare_x(lines: Vec<Line>, op: u16) -> Condition {
    Condition::Test(Test { lines, compare: Some(Compare { op, with: None }) })
}
