//! Checks of an expression before the first frame arrives: they detect errors and expressions that
//! no frame can match, and find the compiler that accepts the expression.
//!
//! Input: the arguments, with the link types of the source if known. An expression that compiles
//! for none of the link types is an error. If the link types are unknown, the expression is
//! compiled for Ethernet or, if that fails, also for the first other link type on which a frame can
//! match.

use super::compile::{CompileErrors, CompiledExpression, Programs};
use super::recorded_names::RecordedNameResolver;
use crate::{Arguments, Mistake};
use ebpf::classic::LinkType;

/// The result of compiling an expression for each of the link types to check.
struct ExpressionPerLinkType {
    for_links: Vec<(u16, Result<CompiledExpression, CompileErrors>)>,
    /// True if the source's link types are known.
    has_known_links: bool,
}

impl ExpressionPerLinkType {
    fn from_arguments(arguments: &Arguments) -> Result<Self, Mistake> {
        let names = RecordedNameResolver::from_arguments(arguments)?;
        let compiled = |link: u16| (link, CompiledExpression::new(arguments, &names, link));
        if let Some(links) = arguments.link_types() {
            let for_links = links.iter().map(|link| compiled(link.0)).collect();
            return Ok(Self { for_links, has_known_links: true });
        }
        let ethernet = compiled(wire::LinkType::ETHERNET.0);
        if ethernet.1.is_ok() {
            return Ok(Self { for_links: vec![ethernet], has_known_links: false });
        }
        let others = LinkType::all().filter_map(|link| u16::try_from(link.0).ok());
        let mut others = others.filter(|link| *link != ethernet.0).map(compiled);
        let found = others.find(|(_, made)| made.as_ref().is_ok_and(|own| own.program.is_some()));
        Ok(Self {
            for_links: std::iter::once(ethernet).chain(found).collect(),
            has_known_links: false,
        })
    }

    /// Returns true if, for at least one of the link types, a frame can match the expression.
    fn can_match(&self) -> bool {
        let mut all = self.for_links.iter();
        all.any(|(_, made)| made.as_ref().is_ok_and(|own| own.program.is_some()))
    }
}

/// Returns the program for each link type for which the expression compiles. If it compiles for
/// none of them, fails with the error for the first link type.
pub(super) fn compiled_programs(arguments: &Arguments) -> Result<Programs, Mistake> {
    let judged = ExpressionPerLinkType::from_arguments(arguments)?;
    let mut programs = Vec::new();
    let mut refusals = Vec::new();
    for (link, made) in judged.for_links {
        match made {
            Ok(compiled) => programs.push((link, compiled.program)),
            Err(refusal) => refusals.push(refusal),
        }
    }
    match refusals.into_iter().next() {
        Some(refusal) if programs.is_empty() => Err(refusal.into()),
        _ => Ok(programs),
    }
}

/// Returns a warning if no frame can match the expression. Also returns a warning if, for some of
/// the known link types, no frame can match or the expression does not compile. Otherwise returns
/// `None`.
pub(super) fn match_warning(arguments: &Arguments) -> Option<Mistake> {
    let judged = ExpressionPerLinkType::from_arguments(arguments).ok()?;
    let whole = 0..arguments.text("expression").unwrap_or_default().len();
    let warning = |what: String| Mistake { range: Some(whole), ..Mistake::new("expression", what) };
    if !judged.can_match() {
        let links: Vec<String> =
            judged.for_links.iter().map(|(link, _)| link_type_in_file(*link).to_string()).collect();
        let hint = match judged.has_known_links {
            true => "it contradicts itself, or tests for what such frames cannot contain",
            false => "it contradicts itself, unless frames of another link type arrive",
        };
        return Some(
            warning(format!("no frame of {} can match", links.join(" or "))).with_hint(hint),
        );
    }
    if !judged.has_known_links {
        return None;
    }
    let mut without = judged.for_links.into_iter().filter_map(|(link, made)| match made {
        Ok(compiled) if compiled.program.is_some() => None,
        Ok(_) => Some(format!("no frame of {} can match", link_type_in_file(link))),
        Err(refusal) => {
            let Mistake { message: what, .. } = refusal.into();
            Some(format!("no frame of {} passes: {what}", link_type_in_file(link)))
        }
    });
    let first = without.next()?;
    Some(warning(without.fold(first, |all, next| format!("{all}; {next}"))))
}

fn link_type_in_file(link: u16) -> LinkType {
    LinkType::from_file_number(link.into())
}

/// Returns a remark for `explain`: the compiler and the length of the program for each known link
/// type, and the compiler for all other link types.
pub(super) fn compilation_remark(arguments: &Arguments) -> Option<String> {
    let judged = ExpressionPerLinkType::from_arguments(arguments).ok()?;
    let mut parts = Vec::new();
    for (link, made) in &judged.for_links {
        let Ok(compiled) = made else { continue };
        let link = link_type_in_file(*link);
        parts.push(match (&compiled.program, &compiled.compiler) {
            (None, _) => format!("no frame of {link} can match"),
            (Some(program), by) => {
                let by = by.as_deref().unwrap_or("the built-in compiler");
                let length = program.instructions().len();
                format!("compiled by {by} for {link}, {length} instructions")
            }
        });
    }
    if !judged.has_known_links {
        let other = arguments.compiler().map(|other| format!(", or by {}", other.name()));
        parts.push(format!("others at their first frame{}", other.unwrap_or_default()));
    }
    Some(parts.join("; "))
}
