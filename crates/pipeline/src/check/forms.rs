//! Inference of each stream's forms. Every filter must accept the forms that the nodes upstream
//! emit (CONTRACT 5).

use filter::{Description, FilterKind, Form, Forms, OutputForm};

use super::lower::{Draft, DraftStep};
use crate::graph::{FilterUse, NodeId};
use crate::language::Diagnostic;
use crate::registry::Registry;

/// The inferred forms of all streams.
pub(super) struct StreamForms {
    /// The forms that can arrive at each node.
    pub(super) input_forms: Vec<Vec<Form>>,
    /// Filters to insert before operands of sections (`++`, `+*` and `!`).
    pub(super) insertions: Vec<FilterInsertion>,
}

/// A filter that assembles streams from packets, to be inserted before an operand (of `++`, `+*` or
/// `!`) that needs streams.
pub(super) struct FilterInsertion {
    /// The operand that needs streams.
    pub(super) operand: NodeId,
    /// The filter to insert, which assembles streams.
    pub(super) filter: &'static Description,
    /// The forms of the blocks that arrive at the operand.
    pub(super) input_forms: Vec<Form>,
}

/// Infers the forms of all streams of a request, and reports streams whose form the receiving
/// filter does not accept. `used` contains the filter of each node.
pub(super) fn infer_forms(
    draft: &mut Draft<'_>,
    used: &[Option<FilterUse>],
    registry: &dyn Registry,
) -> StreamForms {
    let input_forms = vec![Some(FormSet::EMPTY); draft.nodes.len()];
    let mut flow = FormInference { input_forms, used, registry, before: Vec::new() };
    flow.propagate_forms(draft);
    let mut mistakes = Vec::new();
    for edge in &draft.edges {
        let emitted = flow.output_forms(draft, edge.from);
        flow.check_accepted_forms(
            draft,
            edge.to,
            emitted,
            &output_description(draft, edge.from),
            &mut mistakes,
        );
    }
    for index in 0..draft.nodes.len() {
        if let DraftStep::Section(body, _) = &draft.nodes[index].step {
            let input_forms = flow.input_forms[index];
            body.propagate(input_forms, &mut |id, input_forms| {
                let input_forms = flow.operand_forms(draft, id, input_forms);
                flow.input_forms[id.0] = input_forms;
                flow.check_accepted_forms(draft, id, input_forms, "it gets", &mut mistakes);
                filter_output_forms(flow.used[id.0].as_ref()?, input_forms)
            });
        }
    }
    draft.mistakes.append(&mut mistakes);
    let input_forms =
        flow.input_forms.into_iter().map(|set| set.map_or_else(Vec::new, FormSet::to_forms));
    StreamForms { input_forms: input_forms.collect(), insertions: flow.before }
}

/// A bit set of forms. Bits 0 to 7 represent the forms in the order of [`Form::ALL`]. Bits 8 to 15
/// represent the same forms, but for streams and messages that are not contained in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FormSet(u16);

impl FormSet {
    const EMPTY: Self = Self(0);
    const FRAMELESS_SHIFT: u32 = 8;

    fn from_predicate(wanted: impl Fn(Form) -> bool) -> Self {
        Self(
            Form::ALL
                .into_iter()
                .enumerate()
                .fold(0, |bits, (bit, form)| bits | u16::from(wanted(form)) << bit),
        )
    }

    /// Returns the set of forms that a filter with these input forms accepts. Unless the filter
    /// needs frames, it also accepts streams and messages that are not contained in a frame.
    fn from_forms(forms: Forms) -> Self {
        let inside = Self::from_predicate(|form| forms.contains(form));
        match forms.are_inside_frames() {
            true => inside,
            false => inside.union(inside.marked_frameless()),
        }
    }

    fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns these forms, with all streams and messages marked as not contained in a frame.
    fn marked_frameless(self) -> Self {
        let either = Self::from_predicate(|form| matches!(form, Form::Stream | Form::Message));
        let all = self.0 | self.0 >> Self::FRAMELESS_SHIFT;
        Self(all & 0xff & !either.0 | (all & either.0) << Self::FRAMELESS_SHIFT)
    }

    /// Returns the set without streams and messages that are not contained in a frame.
    fn without_frameless_forms(self) -> Self {
        Self(self.0 & 0xff)
    }

    /// Returns true if the set has streams or messages that are not contained in a frame.
    fn has_frameless_forms(self) -> bool {
        self.0 >> Self::FRAMELESS_SHIFT != 0
    }

    fn to_forms(self) -> Vec<Form> {
        let all = self.0 | self.0 >> Self::FRAMELESS_SHIFT;
        let member = |(bit, form): (usize, Form)| (all >> bit & 1 == 1).then_some(form);
        Form::ALL.into_iter().enumerate().filter_map(member).collect()
    }
}

struct FormInference<'c> {
    /// For each node, the forms of the blocks that arrive there; `None` if they are unknown because
    /// of an error.
    input_forms: Vec<Option<FormSet>>,
    used: &'c [Option<FilterUse>],
    registry: &'c dyn Registry,
    before: Vec<FilterInsertion>,
}

impl FormInference<'_> {
    /// Propagates the forms along all edges until no set of forms grows any more.
    fn propagate_forms(&mut self, draft: &Draft<'_>) {
        let mut successors: Vec<Vec<NodeId>> = vec![Vec::new(); draft.nodes.len()];
        for edge in &draft.edges {
            successors[edge.from.0].push(edge.to);
        }
        let mut open: Vec<usize> = (0..draft.nodes.len()).rev().collect();
        while let Some(node) = open.pop() {
            let emitted = self.output_forms(draft, NodeId(node));
            for to in &successors[node] {
                let before = self.input_forms[to.0];
                let after = before.zip(emitted).map(|(before, emitted)| before.union(emitted));
                if after != before {
                    self.input_forms[to.0] = after;
                    open.push(to.0);
                }
            }
        }
    }

    /// Returns the forms that leave a node, or `None` if unknown.
    fn output_forms(&self, draft: &Draft<'_>, id: NodeId) -> Option<FormSet> {
        let node = &draft.nodes[id.0];
        let input_forms = self.input_forms[id.0];
        match &node.step {
            DraftStep::Section(..) | DraftStep::Merge => input_forms,
            DraftStep::Filter(_) | DraftStep::Hole => {
                filter_output_forms(self.used[id.0].as_ref()?, input_forms)
            }
        }
    }

    /// Returns the forms of the blocks that arrive at an operand of a section, or `None` if they
    /// are unknown because of an error.
    ///
    /// Some operands only read blocks and need streams. If one read-only filter can assemble
    /// streams from the input of such an operand, records that this filter must be inserted, and
    /// returns streams. The section still outputs the original block.
    fn operand_forms(
        &mut self,
        draft: &Draft<'_>,
        id: NodeId,
        input_forms: Option<FormSet>,
    ) -> Option<FormSet> {
        let (entry, set) = (draft.nodes[id.0].entry?, input_forms?);
        let takes = FormSet::from_forms(entry.input_forms);
        let rejected = FormSet(set.0 & !takes.0).without_frameless_forms().to_forms();
        let reads = self.used[id.0].as_ref().is_some_and(|used| used.effect().kind.is_read_only());
        let Some(first) = rejected.first().filter(|_| reads) else { return input_forms };
        let Some(name) = self.shortest_chain(*first, takes) else { return input_forms };
        let streams = OutputForm::Form(Form::Stream);
        let filter = self
            .registry
            .find(&name)
            .filter(|it| it.output_form == streams && it.kind.is_read_only());
        let fits = |it: &&Description| set.0 & !FormSet::from_forms(it.input_forms).0 == 0;
        let Some(filter) = filter.filter(fits) else { return input_forms };
        self.before.push(FilterInsertion { operand: id, filter, input_forms: set.to_forms() });
        Some(FormSet::from_predicate(|form| form == Form::Stream))
    }

    /// Reports the forms in `gives` that arrive at node `to`, but that this node does not accept.
    /// `giver` begins the explanation in the message, with its subject and verb, such as "`tcp`
    /// gives".
    fn check_accepted_forms(
        &self,
        draft: &Draft<'_>,
        to: NodeId,
        gives: Option<FormSet>,
        giver: &str,
        mistakes: &mut Vec<Diagnostic>,
    ) {
        let node = &draft.nodes[to.0];
        let (Some(entry), Some(gives)) = (node.entry, gives) else { return };
        let takes = FormSet::from_forms(entry.input_forms);
        if entry.kind == FilterKind::Source {
            return;
        }
        let place = match &node.step {
            DraftStep::Filter(uses) => uses.first().map_or(node.span, |node| node.name.span),
            _ => node.span,
        };
        let source_hint = || {
            entry.input_forms.contains(Form::Frame).then(|| framed_source_hint(draft, to)).flatten()
        };
        let rejected = FormSet(gives.0 & !takes.0).to_forms();
        let Some(first) = rejected.iter().copied().find(|form| !entry.input_forms.contains(*form))
        else {
            mistakes.extend(rejected.first().map(|form| {
                let why = format!("{giver} {} that no frame carried", form_with_article(*form));
                let what = format!("`{}` needs frames", entry.name);
                Diagnostic::error(place, what).why(why).hint(source_hint().unwrap_or_default())
            }));
            return;
        };
        let wanted: Vec<String> = takes.to_forms().into_iter().map(form_with_article).collect();
        let what = format!("`{}` needs {}", entry.name, join_with_or(&wanted));
        let why = format!("{giver} {}", form_with_article(first));
        let between =
            || self.example_chain(first, entry).or_else(|| self.shortest_chain(first, takes));
        let hint = source_hint().map(str::to_owned);
        let hint = hint.or_else(|| between().map(|chain| format!("put `{chain}` before it")));
        let hint = hint.unwrap_or_default();
        mistakes.push(Diagnostic::error(place, what).why(why).hint(hint));
    }

    /// Returns, as text, a chain of filters that converts `from` to input of `entry`, taken from
    /// the example request in the description of `entry`. The chain begins with the last filter
    /// before `entry` that accepts `from`; returns `None` if no filter there does. An example is
    /// preferred because it is a useful request, whereas a chain whose forms merely match may be
    /// useless.
    fn example_chain(&self, from: Form, entry: &Description) -> Option<String> {
        // An example is `replay web.pcap | tcp | http |exchange weblog access.log`.
        let parts: Vec<&str> = entry.example.split('|').collect();
        let name = |part: &&str| {
            let mut words = part.split_whitespace();
            let labelled = !part.starts_with(' ');
            if labelled { words.nth(1) } else { words.next() }.map(str::to_owned)
        };
        let names: Vec<Option<String>> = parts.iter().map(name).collect();
        let here = names.iter().skip(1).position(|name| name.as_deref() == Some(entry.name))? + 1;
        let takes = |name: &Option<String>| {
            let found = self.registry.find(name.as_deref()?)?;
            found.input_forms.contains(from).then_some(())
        };
        let first = (1..here).rev().find(|index| takes(&names[*index]).is_some())?;
        let mut chain = parts[first..here].join("|").trim().to_owned();
        // The class of the last arc belongs to the filter before it.
        let label = parts[here].split_whitespace().next().filter(|_| !parts[here].starts_with(' '));
        if let Some(label) = label {
            chain = format!("{chain} |{label}");
        }
        Some(chain)
    }

    /// Returns the shortest chain of at most `CHAIN_LENGTH_MAX` filters that converts `from` into
    /// one of the forms `wanted`, as text, or `None` if there is none. The chain contains no
    /// sources, sinks or programs.
    fn shortest_chain(&self, from: Form, wanted: FormSet) -> Option<String> {
        const CHAIN_LENGTH_MAX: usize = 4;
        let filters: Vec<&Description> =
            self.registry.names().into_iter().filter_map(|name| self.registry.find(name)).collect();
        let mut reached = vec![(from, String::new())];
        let mut reached_forms = FormSet::from_predicate(|form| form == from);
        for _ in 0..CHAIN_LENGTH_MAX {
            let mut next = Vec::new();
            for (form, chain) in &reached {
                for filter in filters.iter().filter(|filter| filter.input_forms.contains(*form)) {
                    let OutputForm::Form(made) = filter.output_form else { continue };
                    let made_set = FormSet::from_predicate(|form| form == made);
                    let ends = matches!(filter.kind, FilterKind::Source | FilterKind::Sink);
                    if ends
                        || self.registry.endpoint_facts(filter).is_program
                        || reached_forms.0 & made_set.0 != 0
                    {
                        continue;
                    }
                    let bar = if chain.is_empty() { "" } else { " | " };
                    let chain = format!("{chain}{bar}{}", filter.name);
                    if wanted.0 & made_set.0 != 0 {
                        return Some(chain);
                    }
                    reached_forms = FormSet(reached_forms.0 | made_set.0);
                    next.push((made, chain));
                }
            }
            reached = next;
        }
        None
    }
}

/// Returns the forms that a filter emits for these input forms, or `None` if they are unknown.
fn filter_output_forms(used: &FilterUse, input_forms: Option<FormSet>) -> Option<FormSet> {
    let effect = used.effect();
    match effect.output_form {
        OutputForm::Form(form) => {
            let inside = FormSet::from_predicate(|given| given == form);
            let outside = inside.marked_frameless();
            let only = |set: FormSet, wanted: bool| if wanted { set } else { FormSet::EMPTY };
            Some(match (effect.kind, input_forms) {
                (FilterKind::Source, _) if used.description.frames_hint.is_some() => outside,
                (FilterKind::Source, _) | (_, None) => inside,
                (_, Some(input)) => only(inside, input.without_frameless_forms() != FormSet::EMPTY)
                    .union(only(outside, input.has_frameless_forms())),
            })
        }
        OutputForm::Nothing => Some(FormSet::EMPTY),
        // `check` reports input that the filter does not accept.
        OutputForm::Same if effect.kind == FilterKind::Source => None,
        OutputForm::Same => {
            match (
                input_forms?,
                input_forms?.0 & FormSet::from_forms(used.description.input_forms).0,
            ) {
                (FormSet::EMPTY, _) => Some(FormSet::EMPTY),
                (_, 0) => None,
                (_, both) => Some(FormSet(both)),
            }
        }
    }
}

/// Returns a hint that tells how to change a source upstream of a node so that its blocks are
/// contained in frames. Returns `None` if no source upstream emits blocks without frames.
fn framed_source_hint(draft: &Draft<'_>, at: NodeId) -> Option<&'static str> {
    let at = draft.nodes[at.0].inside.unwrap_or(at);
    let (mut open, mut visited) = (vec![at], vec![at]);
    while let Some(node) = open.pop() {
        let hint = draft.nodes[node.0].entry.and_then(|entry| entry.frames_hint);
        if hint.is_some() {
            return hint;
        }
        let predecessors = draft.edges.iter().filter(|edge| edge.to == node).map(|edge| edge.from);
        let new: Vec<NodeId> = predecessors.filter(|from| !visited.contains(from)).collect();
        visited.extend(&new);
        open.extend(new);
    }
    None
}

/// Returns the subject and verb with which an explanation of a node's output begins, such as "`tcp`
/// emits".
fn output_description(draft: &Draft<'_>, id: NodeId) -> String {
    match draft.nodes[id.0].entry {
        Some(entry) => format!("`{}` emits", entry.name),
        None => "it gets".to_owned(),
    }
}

/// Joins words to a list in a sentence, with commas and with `or` before the last word.
fn join_with_or(words: &[String]) -> String {
    match words {
        [first @ .., before, last] => [first, &[format!("{before} or {last}")]].concat().join(", "),
        words => words.concat(),
    }
}

fn form_with_article(form: Form) -> String {
    match form {
        Form::Bytes => form.name().to_owned(),
        form => format!("a {}", form.name()),
    }
}
