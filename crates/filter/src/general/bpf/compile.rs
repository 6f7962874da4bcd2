//! Compilation of an expression for one link type.

use super::recorded_names::RecordedNameResolver;
use crate::prelude::*;
use ebpf::classic::{self, ClassicProgram, ErrorKind, LinkType, Options};

/// Programs by link type (LINKTYPE_ value of capture files). A program is `None` if no frame of its
/// link type can match, or if the expression does not compile for it.
pub(super) type Programs = Vec<(u16, Option<ClassicProgram>)>;

/// An expression compiled for a link type.
pub(super) struct CompiledExpression {
    /// The program, or `None` if no frame can match.
    pub(super) program: Option<ClassicProgram>,
    /// Name of the compiler, or `None` for the built-in one.
    pub(super) compiler: Option<String>,
}

impl CompiledExpression {
    pub(super) fn new(
        arguments: &Arguments,
        names: &RecordedNameResolver,
        link: u16,
    ) -> Result<Self, CompileErrors> {
        let (text, link) = (
            arguments.text("expression").unwrap_or_default(),
            LinkType::from_file_number(link.into()),
        );
        if classic::is_numeric_program(text) {
            return match classic::parse_numeric_program(text) {
                Ok(program) => Ok(Self { program: Some(program), compiler: None }),
                Err(what) => {
                    let hint =
                        Some("write it as `tcpdump -ddd` does, with commas for lines".into());
                    let kind = ErrorKind::Invalid;
                    let own =
                        classic::ExpressionError { span: 0..text.len(), message: what, hint, kind };
                    Err(CompileErrors { own, other: None })
                }
            };
        }
        let options = Options { resolver: names, ..Options::default() };
        let own = match classic::compile(text, link, &options) {
            Ok(program) => return Ok(Self { program: Some(program), compiler: None }),
            Err(error) if error.kind == ErrorKind::RejectsAll => {
                return Ok(Self { program: None, compiler: None });
            }
            Err(error) => error,
        };
        let other = match (own.kind, arguments.compiler()) {
            (ErrorKind::Unsupported, Some(other)) => other,
            _ => return Err(CompileErrors { own, other: None }),
        };
        match other.compile(text, link, options.snaplen) {
            Ok(program) => Ok(Self { program: Some(program), compiler: Some(other.name()) }),
            Err(why) => Err(CompileErrors { own, other: Some((other.name(), why)) }),
        }
    }
}

/// The errors of all compilers that rejected an expression.
pub(super) struct CompileErrors {
    pub(super) own: classic::ExpressionError,
    /// Name and error message of the compiler that the arguments provide
    /// ([`Arguments::compiler`]), or `None` if it was not tried.
    pub(super) other: Option<(String, String)>,
}

impl From<CompileErrors> for Mistake {
    fn from(CompileErrors { own, other }: CompileErrors) -> Self {
        let what = match other {
            None => own.message,
            Some((name, why)) => format!("{}; {name}: {why}", own.message),
        };
        Self { range: Some(own.span), hint: own.hint, ..Self::new("expression", what) }
    }
}

/// Compiles the expression in the arguments for a link type. Fails if no compiler accepts the
/// expression.
pub(super) fn compile(arguments: &Arguments, link: u16) -> Result<CompiledExpression, Mistake> {
    Ok(CompiledExpression::new(arguments, &RecordedNameResolver::from_arguments(arguments)?, link)?)
}
