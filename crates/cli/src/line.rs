//! A line: where it comes from, what is wrong with it, what is planned for it.

use crate::arguments::LineArguments;
use crate::status::Status;
use crate::terminal;
use engine::catalogue::House;
use pipeline::language::Span;
use pipeline::language::limits::TEXT_MAX;
use pipeline::plan::{Machine, Plan, Unplaceable, plan};
use pipeline::{Catalogue, Diagnostic, Graph, explain};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// The text of the line.
pub(crate) fn text(given: &LineArguments) -> Result<String, Status> {
    match &given.file {
        Some(path) => from_file(path),
        None if given.words.is_empty() => {
            terminal::complain("no line is given: write it in single quotes, or name a file by -f");
            Err(Status::Usage)
        }
        None => Ok(given.words.join(" ")),
    }
}

fn from_file(path: &Path) -> Result<String, Status> {
    // One byte more than a line may have, so that it is the language that says so.
    let limit = TEXT_MAX as u64 + 1;
    let mut bytes = Vec::new();
    let read = match path.as_os_str() == "-" {
        true => io::stdin().lock().take(limit).read_to_end(&mut bytes),
        false => File::open(path).and_then(|file| file.take(limit).read_to_end(&mut bytes)),
    };
    let name = path.display();
    if let Err(error) = read {
        terminal::complain(&format!("cannot read {name}: {}", terminal::reason(&error)));
        let missing = error.kind() == ErrorKind::NotFound;
        return Err(if missing { Status::Nothing } else { Status::Failed });
    }
    String::from_utf8(bytes).map(|text| text.trim_end().to_owned()).map_err(|_| {
        terminal::complain(&format!("cannot read {name}: it is no text in UTF-8"));
        Status::Usage
    })
}

/// The graph of a line without mistakes; all mistakes are told.
pub(crate) fn graph(text: &str) -> Result<Graph, Status> {
    graph_of(text, &House)
}

/// The same against another catalogue.
pub(crate) fn graph_of(text: &str, catalogue: &dyn Catalogue) -> Result<Graph, Status> {
    let (graph, mistakes) = pipeline::read(text, catalogue);
    tell(text, &mistakes);
    if mistakes.iter().any(Diagnostic::is_error) { Err(Status::Usage) } else { Ok(graph) }
}

/// The line with what was asked of this machine while it was read, and its graph; all mistakes are
/// told. What runs, is recorded, or goes elsewhere, is this line: nothing is asked a second time.
pub(crate) fn settled(text: String) -> Result<(String, Graph), Status> {
    let graph = graph(&text)?;
    if graph.settled.is_empty() {
        return Ok((text, graph));
    }
    let text = graph.text.as_ref().to_owned();
    let (graph, mistakes) = pipeline::read(&text, &House);
    // Its warnings have been told; it is longer than it was.
    if mistakes.iter().any(Diagnostic::is_error) {
        tell(&text, &mistakes);
        return Err(Status::Usage);
    }
    Ok((text, graph))
}

/// Where everything runs on this machine; what cannot be placed is told.
pub(crate) fn planned(text: &str, graph: Graph, machine: &Machine) -> Result<Plan, Status> {
    let whole = graph.clone();
    plan(graph, &House, machine).map_err(|refused| unplaceable(text, &whole, &refused))
}

/// Tells what cannot be placed.
pub(crate) fn unplaceable(text: &str, whole: &Graph, refused: &Unplaceable) -> Status {
    let span = whole.node(refused.node).span;
    tell(text, &[Diagnostic::error(span, format!("no space can run `{}`", refused.name))]);
    terminal::tell(&explain::unplaceable(whole, refused));
    Status::Failed
}

/// Tells mistakes in the look of the house.
pub(crate) fn tell(text: &str, mistakes: &[Diagnostic]) {
    terminal::tell(&pipeline::render(text, mistakes, terminal::colours()));
}

/// Tells a mistake at this place of the line.
pub(crate) fn tell_at(text: &str, span: Span, what: &str, hint: Option<&str>) {
    tell(text, &[Diagnostic::error(span, what).hint(hint.unwrap_or_default())]);
}
