//! The syntax tree of a request.
//!
//! Each grammar rule has a type, which contains the span. Trees are in **normal form**, so that
//! texts that differ only in white space or redundant parentheses have equal trees:
//!
//! 1. a pipeline has at least two stages, none of which is a pipeline (`(a | b) | c` is `a | b |
//!    c`);
//! 2. a group has at least two branches, or one branch with a label (`(|22 ssh)`);
//! 3. a branch without a label is neither a group of the same operator nor a group of one branch
//!    (`(a + b) + c` is `a + b + c`; all three operators are associative).
//!
//! `limits::NESTING_DEPTH_MAX` bounds the depth of a tree, and therefore the recursion of derived
//! code. [SL §4.2]

use super::diagnose::Span;

/// A request: options, then pipelines. All pipelines share one set of marks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Request {
    /// Options before the first filter, such as `--latency=1ms`.
    pub options: Vec<RequestOption>,
    /// The pipelines, which are separated by `;` in the text.
    pub pipelines: Vec<Term>,
}

/// A request option, such as `--latency=1ms`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestOption {
    /// The word between `--` and `=`.
    pub key: Name,
    /// The text after `=`, or `None` for a bare `--key`.
    pub value: Option<Text>,
    /// The span from `--` to the end of the value.
    pub span: Span,
}

/// An operand of a pipe or an operator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Term {
    /// A missing filter. The parser has reported a diagnostic at this position.
    Hole(Span),
    /// A filter with its arguments.
    Filter(FilterTerm),
    /// `!a`: passes the blocks to which `a` answers 0.
    Not(Not),
    /// `a + b`, `a ++ b` or `a +* b`.
    Group(Group),
    /// `a | b`.
    Pipeline(Pipeline),
}

/// A chain of terms connected by arcs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipeline {
    /// The first stage; it has no incoming arc in this pipeline.
    pub first: Box<Term>,
    /// The other stages, each with its incoming arc; at least one.
    pub rest: Vec<Stage>,
    /// The span from the first to the last stage.
    pub span: Span,
}

/// A term with its incoming arc.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The arc over which the previous stage sends blocks.
    pub arc: Pipe,
    /// The term that receives the blocks.
    pub term: Term,
}

/// A pipe, plain or with a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pipe {
    /// The classes that pass, or `None` for a plain pipe, which passes all classes except 0.
    pub label: Option<Label>,
    /// The span of the pipe and its label.
    pub span: Span,
}

/// A class constraint, such as `|22`, `|!80`, `|ssh:telnet` or `|all`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Label {
    /// True for `|!…`, which passes all classes that are not listed, including 0.
    pub inverted: bool,
    /// The classes that the label lists.
    pub classes: Classes,
    /// The span of the pipe and the label.
    pub span: Span,
}

/// The classes of a label.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Classes {
    /// `all`: every class, including 0.
    All,
    /// A list of single classes and ranges, with at least one element.
    List(Vec<LabelEntry>),
}

/// One entry of a label's list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LabelEntry {
    /// A single class, such as `22`, `0x86dd` or `ssh`.
    One(Value),
    /// A range, such as `22:23`, `1024:` or `:80`. At least one bound is present.
    Range {
        /// The lowest class, or `None` for the lowest possible class.
        low: Option<Value>,
        /// The highest class, or `None` for the highest possible class.
        high: Option<Value>,
        /// The span of the range in the text.
        span: Span,
    },
}

/// A class as written in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// A number, such as `22` or `0x86dd`.
    Number {
        /// The class that the number denotes.
        value: u32,
        /// True if the number was written as `0x…`.
        hex: bool,
        /// The span of the number in the text.
        span: Span,
    },
    /// A name defined by the nearest classifier upstream.
    Name(Name),
}

/// Several terms that receive the same stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// The operator that joins the branches.
    pub operator: Operator,
    /// The branches of the group, in text order.
    pub branches: Vec<Branch>,
    /// The span from the first to the last branch.
    pub span: Span,
}

/// The operators of a group, in order of increasing precedence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Operator {
    /// `a + b`: each branch receives a copy, and the outputs are joined in order.
    Parallel,
    /// `a ++ b`: `b` receives the blocks to which `a` answers 0.
    Union,
    /// `a +* b`: `b` receives the blocks that `a` selects.
    Section,
}

impl Operator {
    /// Returns the symbol of the operator.
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Parallel => "+",
            Self::Union => "++",
            Self::Section => "+*",
        }
    }
}

/// An operand of a group, such as `|22 ssh`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Branch {
    /// The classes that the branch selects, or `None` if it has no label.
    pub label: Option<Label>,
    /// The term that receives the selected blocks.
    pub term: Term,
    /// The span of the label and the term.
    pub span: Span,
}

/// A negation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Not {
    /// The negated term.
    pub term: Box<Term>,
    /// The span from `!` to the end of the term.
    pub span: Span,
}

/// A filter with its arguments, such as `tcp@thread2 depth=4 --name=X`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterTerm {
    /// The name of the filter.
    pub name: Name,
    /// Positional arguments and parameters, in text order.
    pub arguments: Vec<Argument>,
    /// The mark from `--name=X`, if any. Filter terms with equal marks denote the same node.
    pub mark: Option<Name>,
    /// The space in which the filter must run, as in `@kernel`; `None` if there is no pin.
    pub pin: Option<Name>,
    /// The span from the name to the last argument, mark or pin.
    pub span: Span,
}

/// An argument, such as `eth0` or `both=yes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Argument {
    /// The name of the parameter, or `None` for a positional argument.
    pub key: Option<Name>,
    /// The text of the value.
    pub value: Text,
    /// The span of the key and the value.
    pub span: Span,
}

/// The name of a filter, parameter, mark, space or class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// The characters of the name.
    pub text: String,
    /// The span of the name in the text.
    pub span: Span,
}

/// The text of an argument, as bytes because `"\xff"` is not UTF-8.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// The bytes of the text, with escapes resolved.
    pub bytes: Vec<u8>,
    /// True if the text was written in quotes.
    pub quoted: bool,
    /// The span of the text in the request, including quotes.
    pub span: Span,
}

impl Term {
    /// Returns the span of the term.
    pub fn span(&self) -> Span {
        match self {
            Self::Hole(span) => *span,
            Self::Filter(node) => node.span,
            Self::Not(not) => not.span,
            Self::Group(group) => group.span,
            Self::Pipeline(pipeline) => pipeline.span,
        }
    }
}

impl LabelEntry {
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
    /// Returns the name in a label that consists of one name. The author of the request may have
    /// meant this name as a filter. Returns `None` for other labels.
    pub fn single_name(&self) -> Option<&str> {
        match &self.classes {
            Classes::List(list) => match list.as_slice() {
                [LabelEntry::One(Value::Name(name))] => Some(&name.text),
                _ => None,
            },
            Classes::All => None,
        }
    }
}

impl Text {
    /// Returns the text for use in messages; invalid UTF-8 is replaced.
    pub fn to_string_lossy(&self) -> std::borrow::Cow<'_, str> {
        String::from_utf8_lossy(&self.bytes)
    }
}
