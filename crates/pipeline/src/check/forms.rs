//! Infers the form that each stream carries: every filter must accept what the filters before it
//! give (CONTRACT 5).

use filter::{Description, Form, Forms, Gives, Kind};

use super::lower::{Draft, DraftStep};
use crate::catalogue::Catalogue;
use crate::graph::{Boolean, NodeId, Use};
use crate::language::Diagnostic;

/// The forms carried by the streams of a request.
pub(super) struct Carried {
    /// For each node, the forms that may come to it.
    pub(super) comes: Vec<Vec<Form>>,
    /// Filters that stand before operands without having been written.
    pub(super) before: Vec<Before>,
}

/// A filter that makes streams of what comes to an operand that needs them.
pub(super) struct Before {
    /// The operand.
    pub(super) operand: NodeId,
    /// The filter.
    pub(super) filter: &'static Description,
    /// The forms that come to the node.
    pub(super) comes: Vec<Form>,
}

/// Infers the forms of all streams; `used` holds the filters of the nodes.
pub(super) fn forms(
    draft: &mut Draft<'_>,
    used: &[Option<Use>],
    catalogue: &dyn Catalogue,
) -> Carried {
    let comes = vec![Some(Set::NONE); draft.nodes.len()];
    let mut flow = Flow { comes, used, catalogue, before: Vec::new() };
    flow.spread(draft);
    let mut mistakes = Vec::new();
    for edge in &draft.edges {
        let gives = flow.gives(draft, edge.from);
        flow.check(draft, edge.to, gives, &name(draft, edge.from), &mut mistakes);
    }
    for index in 0..draft.nodes.len() {
        if let DraftStep::Boolean(body, _) = &draft.nodes[index].step {
            let comes = flow.comes[index];
            flow.body(draft, body, comes, &mut mistakes);
        }
    }
    draft.mistakes.append(&mut mistakes);
    let comes = flow.comes.into_iter().map(|set| set.map_or_else(Vec::new, Set::list));
    Carried { comes: comes.collect(), before: flow.before }
}

/// A set of forms that can be joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Set(u8);

impl Set {
    const NONE: Self = Self(0);

    fn of(wanted: impl Fn(Form) -> bool) -> Self {
        Self(
            Form::ALL
                .into_iter()
                .enumerate()
                .fold(0, |bits, (bit, form)| bits | u8::from(wanted(form)) << bit),
        )
    }

    fn taken(forms: Forms) -> Self {
        Self::of(|form| forms.has(form))
    }

    fn list(self) -> Vec<Form> {
        let member = |(bit, form): (usize, Form)| (self.0 >> bit & 1 == 1).then_some(form);
        Form::ALL.into_iter().enumerate().filter_map(member).collect()
    }
}

struct Flow<'c> {
    /// None where a mistake has made it unknown.
    comes: Vec<Option<Set>>,
    used: &'c [Option<Use>],
    catalogue: &'c dyn Catalogue,
    before: Vec<Before>,
}

impl Flow<'_> {
    /// Follows the forms along all edges until nothing changes; sets only grow, so it ends.
    fn spread(&mut self, draft: &Draft<'_>) {
        let mut leaving: Vec<Vec<NodeId>> = vec![Vec::new(); draft.nodes.len()];
        for edge in &draft.edges {
            leaving[edge.from.0].push(edge.to);
        }
        let mut open: Vec<usize> = (0..draft.nodes.len()).rev().collect();
        while let Some(node) = open.pop() {
            let gives = self.gives(draft, NodeId(node));
            for to in &leaving[node] {
                let before = self.comes[to.0];
                let after = before.zip(gives).map(|(before, gives)| Set(before.0 | gives.0));
                if after != before {
                    self.comes[to.0] = after;
                    open.push(to.0);
                }
            }
        }
    }

    /// Returns the forms that leave a node.
    fn gives(&self, draft: &Draft<'_>, id: NodeId) -> Option<Set> {
        let node = &draft.nodes[id.0];
        let comes = self.comes[id.0];
        match &node.step {
            DraftStep::Boolean(..) | DraftStep::Merge => comes,
            DraftStep::Filter(_) | DraftStep::Hole => given(self.used[id.0].as_ref()?, comes),
        }
    }

    /// Checks the filters of a composite; what leaves it is what came.
    fn body<L>(
        &mut self,
        draft: &Draft<'_>,
        body: &Boolean<L>,
        comes: Option<Set>,
        mistakes: &mut Vec<Diagnostic>,
    ) -> Option<Set> {
        match body {
            Boolean::Filter(id) => {
                let comes = self.streams(draft, *id, comes);
                self.comes[id.0] = comes;
                self.check(draft, *id, comes, "what comes", mistakes);
                given(self.used[id.0].as_ref()?, comes)
            }
            Boolean::Not(inner) => {
                self.body(draft, inner, comes, mistakes);
                comes
            }
            Boolean::Any(links) | Boolean::All(links) => {
                for link in links {
                    self.body(draft, &link.body, comes, mistakes);
                }
                comes
            }
            Boolean::Chain { first, rest } => {
                let first = self.body(draft, first, comes, mistakes);
                rest.iter().fold(first, |gives, link| self.body(draft, &link.body, gives, mistakes))
            }
        }
    }

    /// Returns the forms that come to an operand. An operand that needs streams gets the filter
    /// that makes them in front of it; it is asked about the block all the same.
    fn streams(&mut self, draft: &Draft<'_>, id: NodeId, comes: Option<Set>) -> Option<Set> {
        let (entry, set) = (draft.nodes[id.0].entry?, comes?);
        let takes = Set::taken(entry.takes);
        let misfit = Set(set.0 & !takes.0).list();
        let reads = self.used[id.0].as_ref().is_some_and(|used| used.effect().kind.reads_only());
        let Some(first) = misfit.first().filter(|_| reads) else { return comes };
        let Some(name) = self.bridge(*first, takes) else { return comes };
        let streams = Gives::Form(Form::Stream);
        let filter =
            self.catalogue.find(&name).filter(|it| it.gives == streams && it.kind.reads_only());
        let fits = |it: &&Description| set.0 & !Set::taken(it.takes).0 == 0;
        let Some(filter) = filter.filter(fits) else { return comes };
        self.before.push(Before { operand: id, filter, comes: set.list() });
        Some(Set::of(|form| form == Form::Stream))
    }

    /// Reports forms that come to a node and that it does not take.
    fn check(
        &self,
        draft: &Draft<'_>,
        to: NodeId,
        gives: Option<Set>,
        giver: &str,
        mistakes: &mut Vec<Diagnostic>,
    ) {
        let node = &draft.nodes[to.0];
        let (Some(entry), Some(gives)) = (node.entry, gives) else { return };
        let takes = Set::taken(entry.takes);
        let misfit = Set(gives.0 & !takes.0).list();
        let Some(first) = misfit.first().filter(|_| entry.kind != Kind::Source) else { return };
        let wanted: Vec<String> = takes.list().into_iter().map(with_article).collect();
        let what = format!("`{}` needs {}", entry.name, wanted.join(" or "));
        let why = format!("{giver} is {}", with_article(*first));
        let between = self.shown(*first, entry).or_else(|| self.bridge(*first, takes));
        let hint = between.map(|between| format!("put `{between}` before it")).unwrap_or_default();
        let place = match &node.step {
            DraftStep::Filter(uses) => uses.first().map_or(node.span, |node| node.name.span),
            _ => node.span,
        };
        mistakes.push(Diagnostic::error(place, what).why(why).hint(hint));
    }

    /// The chain that the example of a filter shows before it, from the last filter on that takes
    /// what there is: of the chains that fit by their forms it is one that makes sense.
    fn shown(&self, from: Form, entry: &Description) -> Option<String> {
        // `replay web.pcap | tcp | http |exchange weblog access.log`
        let parts: Vec<&str> = entry.example.split('|').collect();
        let name = |part: &&str| {
            let mut words = part.split_whitespace();
            let labelled = !part.starts_with(' ');
            if labelled { words.nth(1) } else { words.next() }.map(str::to_owned)
        };
        let names: Vec<Option<String>> = parts.iter().map(name).collect();
        let here = names.iter().skip(1).position(|name| name.as_deref() == Some(entry.name))? + 1;
        let takes = |name: &Option<String>| {
            let found = self.catalogue.find(name.as_deref()?)?;
            found.takes.has(from).then_some(())
        };
        let first = (1..here).rev().find(|index| takes(&names[*index]).is_some())?;
        let mut chain = parts[first..here].join("|").trim().to_owned();
        // The class with which its arc begins belongs to what stands before it.
        let label = parts[here].split_whitespace().next().filter(|_| !parts[here].starts_with(' '));
        if let Some(label) = label {
            chain = format!("{chain} |{label}");
        }
        Some(chain)
    }

    /// The shortest chain of filters that makes what is wanted of what there is.
    fn bridge(&self, from: Form, wanted: Set) -> Option<String> {
        const LONGEST: usize = 4;
        let filters: Vec<&Description> = self
            .catalogue
            .names()
            .into_iter()
            .filter_map(|name| self.catalogue.find(name))
            .collect();
        let mut reached = vec![(from, String::new())];
        let mut seen = Set::of(|form| form == from);
        for _ in 0..LONGEST {
            let mut next = Vec::new();
            for (form, chain) in &reached {
                for filter in filters.iter().filter(|filter| filter.takes.has(*form)) {
                    let Gives::Form(made) = filter.gives else { continue };
                    let made_set = Set::of(|form| form == made);
                    let ends = matches!(filter.kind, Kind::Source | Kind::Sink);
                    if ends || self.catalogue.endpoint(filter).process || seen.0 & made_set.0 != 0 {
                        continue;
                    }
                    let bar = if chain.is_empty() { "" } else { " | " };
                    let chain = format!("{chain}{bar}{}", filter.name);
                    if wanted.0 & made_set.0 != 0 {
                        return Some(chain);
                    }
                    seen = Set(seen.0 | made_set.0);
                    next.push((made, chain));
                }
            }
            reached = next;
        }
        None
    }
}

/// Returns the forms that a filter gives for these input forms.
fn given(used: &Use, comes: Option<Set>) -> Option<Set> {
    let effect = used.effect();
    match effect.gives {
        Gives::Form(form) => Some(Set::of(|given| given == form)),
        Gives::Nothing => Some(Set::NONE),
        // What it does not take has been reported there.
        Gives::Same if effect.kind == Kind::Source => None,
        Gives::Same => match (comes?, comes?.0 & Set::taken(used.description.takes).0) {
            (Set::NONE, _) => Some(Set::NONE),
            (_, 0) => None,
            (_, both) => Some(Set(both)),
        },
    }
}

/// The name of a node as the subject of a reason.
fn name(draft: &Draft<'_>, id: NodeId) -> String {
    match draft.nodes[id.0].entry {
        Some(entry) => format!("what `{}` gives", entry.name),
        None => "what comes".to_owned(),
    }
}

fn with_article(form: Form) -> String {
    match form {
        Form::Bytes => form.name().to_owned(),
        form => format!("a {}", form.name()),
    }
}
