//! The tree of a request: what the parser makes, what the printer, the outline and the checks read.
//!
//! One type per rule of the grammar, each with its span, in **normal form**, so that a meaning has
//! one tree whatever white space and parentheses it was written with:
//!
//! 1. a pipeline has at least two stages, and no stage of it is a pipeline
//!    (`(a | b) | c` is `a | b | c`);
//! 2. a group has at least two branches, or one that carries a label (`(|22 ssh)`);
//! 3. a branch without a label is never a group of the same operator nor a group of one branch
//!    (`(a + b) + c` is `a + b + c`; all three operators are associative).
//!
//! Depth is bounded by `limits::DEPTH_MAX`, so the recursion of derived code is too.      [SL §4.2]

use super::diagnose::Span;

/// A whole request: its options, then its pipelines; marks are shared by all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// Options before the first filter, `--latency=1ms`.
    pub options: Vec<Option_>,
    /// The pipelines that `;` separates.
    pub pipelines: Vec<Term>,
}

/// A request option, `--latency=1ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Option_ {
    /// The word between `--` and `=`.
    pub key: Name,
    /// The text behind `=`; `None` for a bare `--key`.
    pub value: Option<Text>,
    /// The whole option.
    pub span: Span,
}

/// A term between two arcs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// A place where the parser found a mistake instead of a filter; only beside a diagnostic.
    Missing(Span),
    /// A filter with its arguments.
    Filter(FilterTerm),
    /// `!a`: what `a` answered 0.
    Not(Not),
    /// `a + b`, `a ++ b` or `a +* b`.
    Group(Group),
    /// `a | b`.
    Pipeline(Pipeline),
}

/// A chain of terms joined by arcs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipeline {
    /// The stage that no arc of this pipeline leads to.
    pub first: Box<Term>,
    /// The stages after it, each with the arc that leads to it; at least one.
    pub rest: Vec<Stage>,
    /// From the first stage to the last.
    pub span: Span,
}

/// A term and the arc that leads to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The arc that leads here.
    pub arc: Pipe,
    /// The term behind the arc.
    pub term: Term,
}

/// A pipe, plain or with a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipe {
    /// The classes it lets through; none for a plain pipe, which lets all but class 0 through.
    pub label: Option<Label>,
    /// The pipe with its label.
    pub span: Span,
}

/// A class constraint, `|22`, `|!80`, `|ssh:telnet`, `|all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// True after `!`: everything but the classes, 0 included.
    pub inverted: bool,
    /// The classes that are named.
    pub classes: Classes,
    /// The label with its pipe.
    pub span: Span,
}

/// The classes that a label names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Classes {
    /// `all`: everything, 0 included.
    All,
    /// A list, at least one.
    List(Vec<Class>),
}

/// One entry of a label's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Class {
    /// `22`, `0x86dd`, `ssh`.
    One(Value),
    /// `22:23`, `1024:`, `:80`; at least one end is there.
    Range {
        /// The lowest class; none for the lowest that there is.
        low: Option<Value>,
        /// The highest class; none for the highest that there is.
        high: Option<Value>,
        /// The whole range.
        span: Span,
    },
}

/// A class as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number; `hex` keeps the way it was written.
    Number {
        /// The class.
        value: u32,
        /// Written as `0x…`.
        hex: bool,
        /// The place in the text.
        span: Span,
    },
    /// A name that the nearest classifier upstream gives a meaning.
    Name(Name),
}

/// Several terms on the same stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The operator between the branches.
    pub operator: Operator,
    /// The branches in the order of the text.
    pub branches: Vec<Branch>,
    /// From the first branch to the last.
    pub span: Span,
}

/// The operators of a group, from the loosest to the tightest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// `+`: a copy to each, joined in order.
    Parallel,
    /// `++`: a, and b on what a answered 0.
    Union,
    /// `+*`: a, then b on what a answered.
    Section,
}

impl Operator {
    /// The operator as it is written.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Parallel => "+",
            Self::Union => "++",
            Self::Section => "+*",
        }
    }
}

/// One operand of a group, `|22 ssh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// The label by which the branch selects.
    pub label: Option<Label>,
    /// The term of the branch.
    pub term: Term,
    /// Label and term.
    pub span: Span,
}

/// A negation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Not {
    /// The negated term.
    pub term: Box<Term>,
    /// From `!` to the end of the term.
    pub span: Span,
}

/// A filter with its arguments, `tcp@thread2 depth=4 --name=X`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterTerm {
    /// The filter's name.
    pub name: Name,
    /// Positional arguments and parameters in the order of the text.
    pub arguments: Vec<Argument>,
    /// `--name=X`: equal marks are one node.
    pub mark: Option<Name>,
    /// `@kernel`: the space that the user wants.
    pub pin: Option<Name>,
    /// From the name to the last argument.
    pub span: Span,
}

/// An argument, `eth0` or `both=yes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// The parameter's name; none for a positional argument.
    pub key: Option<Name>,
    /// The value.
    pub value: Text,
    /// Key and value.
    pub span: Span,
}

/// A name: of a filter, a parameter, a mark, a space, a class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The name itself.
    pub text: String,
    /// The place in the text.
    pub span: Span,
}

/// The text of an argument. Bytes, since `"\xff"` need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The bytes, with escapes resolved.
    pub bytes: Vec<u8>,
    /// It was written in quotes, so it is never a flag's name.
    pub quoted: bool,
    /// The place in the text, quotes included.
    pub span: Span,
}

impl Term {
    /// Returns the span of the term.
    pub fn span(&self) -> Span {
        match self {
            Self::Missing(span) => *span,
            Self::Filter(node) => node.span,
            Self::Not(not) => not.span,
            Self::Group(group) => group.span,
            Self::Pipeline(pipeline) => pipeline.span,
        }
    }
}

impl Class {
    /// Returns the span of the class.
    pub fn span(&self) -> Span {
        match self {
            Self::One(value) => value.span(),
            Self::Range { span, .. } => *span,
        }
    }
}

impl Value {
    /// Returns the span of the value.
    pub fn span(&self) -> Span {
        match self {
            Self::Number { span, .. } => *span,
            Self::Name(name) => name.span,
        }
    }
}

impl Label {
    /// The name, if the label is one name and nothing else: it may have been meant as a filter.
    pub fn single_name(&self) -> Option<&str> {
        match &self.classes {
            Classes::List(list) => match list.as_slice() {
                [Class::One(Value::Name(name))] => Some(&name.text),
                _ => None,
            },
            Classes::All => None,
        }
    }
}

impl Text {
    /// The text, or the text with every byte replaced that is not UTF-8: for messages.
    pub fn lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}
