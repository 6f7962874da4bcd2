//! Resolution of labels to the set of classes that each arc passes.
//!
//! The module resolves names, checks ranges against the classes that the classifiers upstream can
//! return, and intersects the label before a group with the labels of its branches. A name is
//! resolved for each incoming arc separately. If several classifiers can determine the class on an
//! arc, the name must denote the same classes for all of them. [SL §4.2], CONTRACT 9

use std::collections::HashMap;

use super::lower::{Draft, DraftEdge, DraftStep};
use super::upstream::{ClassifierSearch, Classifiers};
use crate::classes::ClassSet;
use crate::graph::{BooleanExpression, NodeId, SectionOperand};
use crate::language::label::truncate_word;
use crate::language::tree::{Label, Term};
use crate::language::{Diagnostic, Span};
use crate::registry::Registry;

mod arc_classifiers;
mod output_label;

use arc_classifiers::ArcClassifiers;
pub use output_label::resolve_output_label;

/// The resolved labels of a request.
pub(super) struct ResolvedLabels {
    /// The classes that pass over each edge.
    pub(super) classes: Vec<ClassSet>,
    /// The resolved expression of each section, by node; `None` for other nodes.
    pub(super) bodies: Vec<Option<BooleanExpression>>,
    /// The filters that classify the blocks arriving at each node.
    pub(super) classifiers: Vec<Vec<NodeId>>,
}

pub(super) fn resolve_labels(draft: &mut Draft<'_>, registry: &dyn Registry) -> ResolvedLabels {
    let mut reader = LabelResolver {
        upstream: ClassifierSearch::new(draft),
        registry,
        mistakes: Vec::new(),
        classifiers: vec![Vec::new(); draft.nodes.len()],
        known: HashMap::new(),
    };
    let bodies =
        (0..draft.nodes.len()).map(|node| reader.resolve_node(NodeId(node))).collect::<Vec<_>>();
    let classes = draft.edges.iter().map(|edge| reader.resolve_edge(edge, &bodies)).collect();
    let LabelResolver { mut mistakes, classifiers, .. } = reader;
    draft.mistakes.append(&mut mistakes);
    ResolvedLabels { classes, bodies, classifiers }
}

struct LabelResolver<'d, 't> {
    upstream: ClassifierSearch<'d, 't>,
    registry: &'d dyn Registry,
    mistakes: Vec<Diagnostic>,
    classifiers: Vec<Vec<NodeId>>,
    /// The classes of the labels resolved so far. The key is the span of a label and the node
    /// upstream of its arc. A label before a group applies to several arcs, so it is looked up
    /// several times.
    known: HashMap<(Span, NodeId), ClassSet>,
}

impl<'d, 't> LabelResolver<'d, 't> {
    /// Determines the classifiers of the blocks that arrive at a node, and stores them in
    /// `classifiers`. For a section, also resolves the labels in its expression, and returns the
    /// result. Does nothing for a node inside a section. Returns `None` unless the node is a
    /// section.
    fn resolve_node(&mut self, id: NodeId) -> Option<BooleanExpression> {
        let draft = self.upstream.draft;
        let node = &draft.nodes[id.0];
        if node.inside.is_some() {
            return None;
        }
        let input = self.upstream.input_classifiers(id);
        let body = match &node.step {
            DraftStep::Section(body, _) => Some(self.resolve_body(body, &input, &input)),
            _ => None,
        };
        self.classifiers[id.0] = input.nodes;
        body
    }

    /// Resolves the labels in an expression, which is all or part of a section's expression.
    /// `input` contains the classifiers of the blocks that arrive at `body`, and `entry` those of
    /// the blocks that arrive at the section.
    fn resolve_body(
        &mut self,
        body: &BooleanExpression<Option<&Label>>,
        input: &Classifiers,
        entry: &Classifiers,
    ) -> BooleanExpression {
        match body {
            BooleanExpression::Filter(id) => {
                self.classifiers[id.0].clone_from(&input.nodes);
                BooleanExpression::Filter(*id)
            }
            BooleanExpression::Not(inner) => {
                BooleanExpression::Not(Box::new(self.resolve_body(inner, input, entry)))
            }
            BooleanExpression::Chain { first, rest } => {
                let mut before = self.upstream.classifiers_after_body(first, input);
                let first = Box::new(self.resolve_body(first, input, entry));
                let mut links = Vec::with_capacity(rest.len());
                for link in rest {
                    let classes = match link.classes {
                        Some(label) => self.resolve_label(label, &before),
                        None => ClassSet::plain_pipe(),
                    };
                    links.push(SectionOperand {
                        classes,
                        body: self.resolve_body(&link.body, &before, entry),
                    });
                    before = self.upstream.classifiers_after_body(&link.body, &before);
                }
                BooleanExpression::Chain { first, rest: links }
            }
            BooleanExpression::Any(links) => {
                BooleanExpression::Any(self.resolve_operands(links, input, entry, false))
            }
            BooleanExpression::All(links) => {
                BooleanExpression::All(self.resolve_operands(links, input, entry, true))
            }
        }
    }

    /// Resolves the labels of the operands in a section's expression. If `chained` is true, the
    /// operands form a chain, so each of them classifies the input of the next.
    fn resolve_operands(
        &mut self,
        links: &[SectionOperand<Option<&Label>>],
        input: &Classifiers,
        entry: &Classifiers,
        chained: bool,
    ) -> Vec<SectionOperand> {
        let mut input = input.clone();
        let mut operands = Vec::with_capacity(links.len());
        for link in links {
            let classes =
                link.classes.map_or_else(ClassSet::all, |label| self.resolve_label(label, entry));
            operands.push(SectionOperand {
                classes,
                body: self.resolve_body(&link.body, &input, entry),
            });
            if chained {
                input = self.upstream.classifiers_after_body(&link.body, &input);
            }
        }
        operands
    }

    fn resolve_edge(
        &mut self,
        edge: &DraftEdge<'_>,
        bodies: &[Option<BooleanExpression>],
    ) -> ClassSet {
        let classifiers = self.upstream.output_classifiers(edge.from);
        if edge.glued {
            self.warn_of_misreading(edge, &classifiers);
        }
        let mut classes: Option<ClassSet> = None;
        let mut outer: Option<&Label> = None;
        for label in edge.arc.into_iter().chain(edge.branch_labels.iter().copied()) {
            let key = (label.span, edge.from);
            let inner = match self.known.get(&key) {
                Some(known) => known.clone(),
                None => self.resolve_label(label, &classifiers),
            };
            self.known.entry(key).or_insert_with(|| inner.clone());
            classes = Some(self.intersect_labels(classes, inner, outer, label, edge.target));
            outer = Some(label);
        }
        let section = match &self.upstream.draft.nodes[edge.to.0].step {
            DraftStep::Section(body, _) => Some(body),
            _ => None,
        };
        match (section, bodies.get(edge.to.0)) {
            (Some(body), Some(Some(resolved))) => {
                self.entering_classes(classes, outer, body, resolved, edge)
            }
            _ => classes.unwrap_or_else(ClassSet::plain_pipe),
        }
    }

    /// Returns the classes of the blocks that enter a section over the arc `edge`. If the arc has a
    /// label, the result is `classes`, the classes of this label; operands that select none of them
    /// are reported. Over a plain pipe, a section with `++` or `+*` receives the classes that any
    /// of its operands selects, and any other section receives all classes except 0. An operand
    /// without a label selects all classes except 0.
    fn entering_classes(
        &mut self,
        classes: Option<ClassSet>,
        outer: Option<&Label>,
        body: &BooleanExpression<Option<&Label>>,
        resolved: &BooleanExpression,
        edge: &DraftEdge<'_>,
    ) -> ClassSet {
        let (asked, resolved) = match (body, resolved) {
            (BooleanExpression::Any(asked), BooleanExpression::Any(resolved)) => (asked, resolved),
            (BooleanExpression::All(asked), BooleanExpression::All(resolved)) => (asked, resolved),
            _ => return classes.unwrap_or_else(ClassSet::plain_pipe),
        };
        let mut all = ClassSet::empty();
        for (asked, operand) in asked.iter().zip(resolved) {
            match asked.classes {
                None => all = all.union(&ClassSet::plain_pipe()),
                Some(label) => {
                    all = all.union(&operand.classes);
                    self.intersect_labels(
                        classes.clone(),
                        operand.classes.clone(),
                        outer,
                        label,
                        edge.target,
                    );
                }
            }
        }
        classes.unwrap_or(all)
    }

    /// Returns the classes that two successive labels both select: `classes`, selected by `outer`,
    /// and `inner`, selected by `label`. Returns `inner` if there is no outer label. Reports an
    /// error and returns `inner` if both sets are nonempty and have no class in common.
    fn intersect_labels(
        &mut self,
        classes: Option<ClassSet>,
        inner: ClassSet,
        outer: Option<&Label>,
        label: &Label,
        target: Option<&Term>,
    ) -> ClassSet {
        let (Some(classes), Some(outer)) = (classes, outer) else { return inner };
        let both = classes.intersection(&inner);
        if !both.is_empty() || classes.is_empty() || inner.is_empty() {
            return both;
        }
        let what = format!("`{}` has no input", truncate_word(&label.to_string()));
        let why =
            format!("`{}` before it passes none of its classes", truncate_word(&outer.to_string()));
        let hint = match target.map(Term::to_string).filter(|text| text.len() <= 60) {
            Some(group) => format!("write `| {group}`"),
            None => "write the classes at the branches alone".to_owned(),
        };
        self.mistakes.push(Diagnostic::error(label.span, what).why(why).hint(hint));
        inner
    }

    fn resolve_label(&mut self, label: &Label, classifiers: &Classifiers) -> ClassSet {
        let meaning = ArcClassifiers::new(classifiers, self.upstream.draft, self.registry);
        meaning.label_classes(label, &mut self.mistakes)
    }

    /// Warns if an arc leads to a filter whose name was probably meant as a class. For example,
    /// `dport|ssh log` calls the filter `ssh` with the argument `log`; the warning proposes the
    /// class `ssh`.
    fn warn_of_misreading(&mut self, edge: &DraftEdge<'_>, classifiers: &Classifiers) {
        let target = &self.upstream.draft.nodes[edge.to.0];
        let Some(Term::Filter(node)) = edge.target else { return };
        let meaning = ArcClassifiers::new(classifiers, self.upstream.draft, self.registry);
        let Some(classifier) = meaning.find_defining_classifier(&node.name.text) else { return };
        let follows =
            node.arguments.first().filter(|first| first.key.is_none() && !first.value.quoted);
        if follows.is_none() && target.entry.is_some() {
            return;
        }
        let name = &node.name.text;
        let what = format!("`{name}` is read as a filter, not as the class of `{classifier}`");
        let rest = follows
            .map_or_else(|| "…".to_owned(), |first| truncate_word(&first.value.to_string_lossy()));
        let span = Span::new(edge.span.start, node.name.span.end);
        self.mistakes.push(
            Diagnostic::warning(span, what)
                .hint(format!("for the class write ` |{name} {rest}`, for the filter `| {name}`")),
        );
    }
}
