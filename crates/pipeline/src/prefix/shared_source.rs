//! The description of the source that reads a shared prefix. The prefix's last filter determines
//! the classes and the form of the output.

use crate::language::parse;
use crate::language::tree::{FilterTerm, Term};
use crate::registry::Registry;
use filter::{Classes, Description, Form, OutputForm};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// The descriptions created so far, by the name of the last filter and the form of its output. They
/// are never freed, because there are at most a few per filter in the catalog.
static SHARED_SOURCE_DESCRIPTIONS: Mutex<
    Option<HashMap<(&'static str, bool), &'static Description>>,
> = Mutex::new(None);

/// Returns the description of the source `shared`, with the classes of the prefix's last filter and
/// the form of its output. Returns `shared` itself if the prefix cannot be read or does not output
/// streams or messages.
pub(crate) fn describe_shared_source(
    shared: &'static Description,
    term: &FilterTerm,
    registry: &dyn Registry,
) -> &'static Description {
    let prefix = term.arguments.first().map(|argument| argument.value.to_string_lossy());
    let Some((last, form)) = prefix.and_then(|prefix| last_filter(&prefix, registry)) else {
        return shared;
    };
    let mut made = SHARED_SOURCE_DESCRIPTIONS.lock().unwrap_or_else(PoisonError::into_inner);
    let key = (last.name, form == Form::Message);
    let made = made.get_or_insert_default().entry(key);
    made.or_insert_with(|| {
        let output_form = OutputForm::Form(form);
        let Description { classes, class_groups: groups, .. } = *last;
        Box::leak(Box::new(Description { output_form, classes, class_groups: groups, ..*shared }))
    })
}

/// Returns the last filter of a prefix that has classes, and the form of the prefix's output.
/// Returns `None` unless the output consists of streams or messages.
fn last_filter(prefix: &str, registry: &dyn Registry) -> Option<(&'static Description, Form)> {
    let (request, mistakes) = parse(prefix);
    let [Term::Pipeline(whole)] = request.pipelines.as_slice() else { return None };
    if !mistakes.is_empty() {
        return None;
    }
    let filters = || {
        whole.rest.iter().rev().filter_map(|stage| match &stage.term {
            Term::Filter(term) => registry.find_filter(&term.name.text),
            _ => None,
        })
    };
    let form = filters().find_map(|filter| match filter.output_form {
        OutputForm::Form(form) => Some(form),
        OutputForm::Same | OutputForm::Nothing => None,
    });
    let form = form.filter(|form| [Form::Stream, Form::Message].contains(form))?;
    Some((filters().find(|filter| filter.classes != Classes::Same)?, form))
}
