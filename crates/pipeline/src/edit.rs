//! Edits of a request: what is to be different in a line, as the line that says so.
//!
//! In: the text of a request and an edit. Out: the new text, and for every filter of it which one
//! of the old text it is. An edit works on the tree, and the new text is what the tree prints; so
//! what was not named stays what it is, and a path that runs the old text can keep what it has.
//! Whether the new text makes sense, the checks say. [Th §5.4]

use crate::language::tree::{Arc, Argument, Branch, Classes, Group, Label, Name, Node};
use crate::language::tree::{Operator, Pipeline, Stage, Term, Text};
use crate::language::{Request, Severity, Span, parse};
use filter::UNTRUSTED;
use std::fmt;

/// What is to be different in a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Puts a filter, or several joined by pipes, before, behind or beside another one.
    Insert {
        /// What is put there, as a request says it.
        filter: String,
        /// Where.
        place: Place,
        /// At which filter.
        node: String,
    },
    /// Takes a filter out; a branch that has nothing else goes too.
    Remove {
        /// Which.
        node: String,
    },
    /// Puts another filter in the place of one.
    Replace {
        /// Which.
        node: String,
        /// What comes there.
        filter: String,
    },
    /// Has a filter run in another space.
    Move {
        /// Which.
        node: String,
        /// Where.
        space: String,
    },
    /// Makes a filter anew, and gives it what the old one knows.
    Upgrade {
        /// Which.
        node: String,
    },
    /// Another text: what of the old one stands in the new one stays, in this order.
    Whole(String),
}

/// Where something is inserted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// What comes to the filter goes through it.
    Before,
    /// What the filter gives goes through it.
    After,
    /// It gets a copy of what the filter gives, on a branch of its own.
    At,
}

impl Place {
    const ALL: [Self; 3] = [Self::Before, Self::After, Self::At];

    /// The word for it.
    const fn name(self) -> &'static str {
        match self {
            Self::Before => "before",
            Self::After => "after",
            Self::At => "at",
        }
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words().join(" "))
    }
}

/// Why a request cannot be edited so.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Misfit(pub String);

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Misfit {}

/// A request after an edit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Edited {
    /// The new text.
    pub text: String,
    /// For every filter of the new text where it stands, and where the old text has it; `None`: it
    /// is new.
    pub filters: Vec<(Span, Option<Span>)>,
    /// The filter of the new text that is to be made anew with what the old one knows.
    pub upgraded: Option<Span>,
}

/// What is said for "out of the kernel", and the thread to which that hands over.
const PROCESS: &str = "process";
const KERNEL: &str = "kernel";
const FIRST: &str = "thread0";
/// What is said for "into a process of its own that may do nothing but compute".
const SANDBOX: &str = "sandbox";

/// How an edit is written.
const USAGE: &str = "write `insert FILTER before|after|at NODE`, `remove NODE`, \
     `replace NODE with FILTER`, `move NODE kernel|process|sandbox|SPACE`, `upgrade NODE` or \
     `pin SPACE PROCESSOR|any`";

impl Edit {
    /// Reads an edit as it is written at a command line. A filter may be several words.
    pub fn parse<W: AsRef<str>>(words: &[W]) -> Result<Self, Misfit> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let said = |node: &str| node.to_owned();
        Ok(match words.as_slice() {
            ["insert", filter @ .., place, node] if !filter.is_empty() => {
                let known = Place::ALL.into_iter().find(|known| known.name() == *place);
                let place = known.ok_or_else(|| Misfit(USAGE.to_owned()))?;
                Self::Insert { filter: filter.join(" "), place, node: said(node) }
            }
            ["remove", node] => Self::Remove { node: said(node) },
            ["replace", node, "with", filter @ ..] if !filter.is_empty() => {
                Self::Replace { node: said(node), filter: filter.join(" ") }
            }
            ["move", node, "to", space] | ["move", node, space] => {
                let space = if *space == PROCESS { FIRST } else { space };
                Self::Move { node: said(node), space: said(space) }
            }
            ["upgrade", node] => Self::Upgrade { node: said(node) },
            _ => return Err(Misfit(USAGE.to_owned())),
        })
    }

    /// The words that [`Edit::parse`] reads as this edit; of a whole text, the text.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let words: &[&str] = match self {
            Self::Insert { filter, place, node } => &["insert", filter, place.name(), node],
            Self::Remove { node } => &["remove", node],
            Self::Replace { node, filter } => &["replace", node, "with", filter],
            Self::Move { node, space } => &["move", node, "to", space],
            Self::Upgrade { node } => &["upgrade", node],
            Self::Whole(text) => &[text],
        };
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    /// The request that is wanted instead of this one.
    pub fn apply(&self, text: &str) -> Result<Edited, Misfit> {
        let mut request = tree(text, "the running request")?;
        let old: Vec<Span> = nodes(&request).map(|node| node.span).collect();
        if let Self::Whole(new) = self {
            return whole(&request, new);
        }
        let node = match self {
            Self::Insert { node, .. } | Self::Remove { node } | Self::Replace { node, .. } => node,
            Self::Move { node, .. } | Self::Upgrade { node } => node,
            Self::Whole(_) => return Err(Misfit(USAGE.to_owned())),
        };
        let at = find(&request, node)?;
        let mut act: Box<dyn FnMut(Term) -> Option<Term>> = match self {
            Self::Insert { filter, place: Place::After, .. } => {
                let filter = fragment(filter)?;
                Box::new(move |term| Some(chain(term, filter.clone())))
            }
            Self::Insert { filter, place: Place::Before, .. } => {
                let filter = fragment(filter)?;
                Box::new(move |term| Some(chain(filter.clone(), term)))
            }
            Self::Insert { filter, place: Place::At, .. } => {
                beside(&mut request, at, &fragment(filter)?)?;
                Box::new(Some)
            }
            Self::Replace { filter, .. } => {
                let filter = fragment(filter)?;
                Box::new(move |_| Some(filter.clone()))
            }
            Self::Move { space, .. } => {
                if space != KERNEL {
                    leave_kernel(&mut request, at);
                }
                Box::new(move |term| match term {
                    Term::Node(node) => Some(Term::Node(elsewhere(node, space))),
                    other => Some(other),
                })
            }
            Self::Remove { .. } => Box::new(|_| None),
            Self::Upgrade { .. } | Self::Whole(_) => Box::new(Some),
        };
        let pipelines = std::mem::take(&mut request.pipelines).into_iter();
        request.pipelines = pipelines.filter_map(|term| walk(term, at, &mut *act)).collect();
        if request.pipelines.is_empty() {
            return Err(Misfit(format!("without `{node}` nothing is left")));
        }
        let origins: Vec<Option<Span>> = nodes(&request)
            .map(|node| old.iter().copied().find(|span| *span == node.span))
            .collect();
        let mut edited = printed(&request, &origins)?;
        if matches!(self, Self::Upgrade { .. }) {
            let new = edited.filters.iter().find(|(_, old)| *old == Some(at));
            edited.upgraded = new.map(|(span, _)| *span);
        }
        Ok(edited)
    }
}

/// Where a node stands in a request, by its name, mark or number, as edits call it.
pub fn place(text: &str, node: &str) -> Result<Span, Misfit> {
    find(&tree(text, "the running request")?, node)
}

/// The place of what was not in the old text.
const NEW: Span = Span { start: usize::MAX, end: usize::MAX };

/// The text of a tree, and which filter of it is which.
fn printed(request: &Request, origins: &[Option<Span>]) -> Result<Edited, Misfit> {
    // The tree that was put together need not be in normal form; what is read is.
    let text = tree(&request.to_string(), "the new request")?.to_string();
    let again = tree(&text, "the new request")?;
    let filters: Vec<_> =
        nodes(&again).map(|node| node.span).zip(origins.iter().copied()).collect();
    debug_assert_eq!(nodes(&again).count(), origins.len(), "printing keeps filters in order");
    Ok(Edited { text, filters, upgraded: None })
}

/// A new text: the longest common sequence of filters, told apart by what they say, stays.
fn whole(old: &Request, new: &str) -> Result<Edited, Misfit> {
    let request = tree(new, "the new request")?;
    let text = |node: &Node| Term::Node(trusted(Node { pin: None, ..node.clone() })).to_string();
    let (before, after): (Vec<_>, Vec<_>) = (nodes(old).collect(), nodes(&request).collect());
    let (said, says): (Vec<String>, Vec<String>) = (
        before.iter().map(|node| text(node)).collect(),
        after.iter().map(|node| text(node)).collect(),
    );
    // How many are common from here on, for every pair of places.
    let mut common = vec![vec![0u32; says.len() + 1]; said.len() + 1];
    for i in (0..said.len()).rev() {
        for j in (0..says.len()).rev() {
            common[i][j] = match said[i] == says[j] {
                true => common[i + 1][j + 1] + 1,
                false => common[i + 1][j].max(common[i][j + 1]),
            };
        }
    }
    let mut origins = vec![None; says.len()];
    let (mut i, mut j) = (0, 0);
    while i < said.len() && j < says.len() {
        if said[i] == says[j] {
            origins[j] = Some(before[i].span);
            (i, j) = (i + 1, j + 1);
        } else if common[i + 1][j] >= common[i][j + 1] {
            i += 1;
        } else {
            j += 1;
        }
    }
    printed(&request, &origins)
}

/// Reads a text that must be without mistakes of grammar.
pub(crate) fn tree(text: &str, what: &str) -> Result<Request, Misfit> {
    let (request, mistakes) = parse(text);
    match mistakes.iter().find(|mistake| mistake.severity == Severity::Error) {
        None => Ok(request),
        Some(mistake) => Err(Misfit(format!("{what}: {}", mistake.what))),
    }
}

/// What is to be inserted.
pub(crate) fn fragment(text: &str) -> Result<Term, Misfit> {
    let mut request = tree(text, &format!("`{text}`"))?;
    if request.pipelines.len() != 1 || !request.options.is_empty() {
        return Err(Misfit(format!("`{text}` is not one filter, nor several joined by pipes")));
    }
    let mut term = request.pipelines.remove(0);
    each(&mut term, &mut |node| node.span = NEW);
    Ok(term)
}

/// The place of the filter that is meant: by its name if that is the only one, by its mark, or by
/// its number among those of the name (`count:2`).
fn find(request: &Request, wanted: &str) -> Result<Span, Misfit> {
    let (name, number) = match wanted.rsplit_once(':') {
        Some((name, number)) => (name, number.parse::<usize>().ok()),
        None => (wanted, None),
    };
    let (name, mark) = match name.split_once('#') {
        Some((name, mark)) => (name, Some(mark)),
        None => (name, None),
    };
    let marked = |node: &Node| node.mark.as_ref().map(|mark| mark.text.clone());
    let is = |node: &&Node| {
        (name.is_empty() || node.name.text == name)
            && mark.is_none_or(|mark| marked(node).as_deref() == Some(mark))
    };
    let found: Vec<&Node> = nodes(request).filter(is).collect();
    let node = match (found.as_slice(), number) {
        ([], _) => return Err(Misfit(format!("the request has no `{wanted}`"))),
        ([one], None) => one,
        (all, Some(number)) if (1..=all.len()).contains(&number) => all[number - 1],
        (all, _) => {
            let (many, last) = (all.len(), all.len());
            let what = format!("the request has {many} of `{name}`: say `{name}:1` to `:{last}`");
            return Err(Misfit(what));
        }
    };
    let mark = marked(node);
    if mark.is_some() && nodes(request).filter(|other| marked(other) == mark).count() > 1 {
        let why = "stands in several places by its mark: say the whole new line";
        return Err(Misfit(format!("`{wanted}` {why}")));
    }
    Ok(node.span)
}

/// Lets what stands behind this place follow what leaves the kernel there: it was put there by a
/// move, and cannot stay.
fn leave_kernel(request: &mut Request, at: Span) {
    let here = |term: &Term| {
        let mut found = false;
        each(&mut term.clone(), &mut |node| found |= node.span == at);
        found
    };
    for term in request.pipelines.iter_mut().filter(|term| here(term)) {
        let mut behind = false;
        each(term, &mut |node| {
            if behind && node.pin.as_ref().is_some_and(|pin| pin.text == KERNEL) {
                node.pin = None;
            }
            behind |= node.span == at;
        });
    }
}

/// The filter in another space: in a process of its own by an argument, anywhere else by a pin.
fn elsewhere(node: Node, space: &str) -> Node {
    let mut node = trusted(node);
    let named = |text: &str| Name { text: text.to_owned(), span: NEW };
    if space != SANDBOX {
        return Node { pin: Some(named(space)), ..node };
    }
    let value = Text { bytes: b"yes".to_vec(), quoted: false, span: NEW };
    let key = Some(named(UNTRUSTED.name));
    node.arguments.push(Argument { key, value, span: NEW });
    Node { pin: None, ..node }
}

/// The same filter, whether it runs in a process of its own or not.
fn trusted(mut node: Node) -> Node {
    let says = |argument: &Argument| argument.key.as_ref().map(|key| key.text.clone());
    node.arguments.retain(|argument| says(argument).as_deref() != Some(UNTRUSTED.name));
    node
}

/// All filters in the order of the text.
fn nodes(request: &Request) -> impl Iterator<Item = &Node> {
    fn add<'t>(term: &'t Term, to: &mut Vec<&'t Node>) {
        match term {
            Term::Missing(_) => {}
            Term::Node(node) => to.push(node),
            Term::Not(not) => add(&not.term, to),
            Term::Group(group) => group.branches.iter().for_each(|branch| add(&branch.term, to)),
            Term::Pipeline(pipeline) => {
                add(&pipeline.first, to);
                pipeline.rest.iter().for_each(|stage| add(&stage.term, to));
            }
        }
    }
    let mut all = Vec::new();
    request.pipelines.iter().for_each(|term| add(term, &mut all));
    all.into_iter()
}

pub(crate) fn each(term: &mut Term, act: &mut dyn FnMut(&mut Node)) {
    match term {
        Term::Missing(_) => {}
        Term::Node(node) => act(node),
        Term::Not(not) => each(&mut not.term, act),
        Term::Group(group) => group.branches.iter_mut().for_each(|b| each(&mut b.term, act)),
        Term::Pipeline(pipeline) => {
            each(&mut pipeline.first, act);
            pipeline.rest.iter_mut().for_each(|stage| each(&mut stage.term, act));
        }
    }
}

fn plain() -> Arc {
    Arc { label: None, span: NEW }
}

/// One behind the other.
pub(crate) fn chain(first: Term, then: Term) -> Term {
    let rest = vec![Stage { arc: plain(), term: then }];
    Term::Pipeline(Pipeline { first: Box::new(first), rest, span: NEW })
}

/// What becomes of a term when `act` has been done to the filter at this place in it; `None`:
/// nothing is left of it.
pub(crate) fn walk(
    term: Term,
    at: Span,
    act: &mut dyn FnMut(Term) -> Option<Term>,
) -> Option<Term> {
    match term {
        Term::Node(node) if node.span == at => act(Term::Node(node)),
        Term::Node(_) | Term::Missing(_) => Some(term),
        Term::Not(mut not) => {
            not.term = Box::new(walk(*not.term, at, act)?);
            Some(Term::Not(not))
        }
        Term::Group(group) => {
            let Group { operator, branches, span } = group;
            let kept = branches.into_iter().filter_map(|branch| {
                let Branch { label, term, span } = branch;
                Some(Branch { label, term: walk(term, at, act)?, span })
            });
            let mut branches: Vec<Branch> = kept.collect();
            match branches.len() {
                0 => None,
                1 if branches[0].label.is_none() => branches.pop().map(|branch| branch.term),
                _ => Some(Term::Group(Group { operator, branches, span })),
            }
        }
        Term::Pipeline(Pipeline { first, rest, span }) => {
            let mut stages: Vec<(Arc, Term)> = Vec::new();
            // The arc to a filter that goes leads to what stands behind it.
            let mut waiting = None;
            for (arc, term) in std::iter::once((plain(), *first))
                .chain(rest.into_iter().map(|stage| (stage.arc, stage.term)))
            {
                let arc = waiting.take().unwrap_or(arc);
                match walk(term, at, act) {
                    Some(term) => stages.push((arc, term)),
                    None => waiting = Some(arc),
                }
            }
            let mut stages = stages.into_iter();
            let (_, first) = stages.next()?;
            let rest: Vec<Stage> = stages.map(|(arc, term)| Stage { arc, term }).collect();
            match rest.is_empty() {
                true => Some(first),
                false => Some(Term::Pipeline(Pipeline { first: Box::new(first), rest, span })),
            }
        }
    }
}

/// Puts `filter` on a branch beside what follows the filter at this place.
fn beside(request: &mut Request, at: Span, filter: &Term) -> Result<(), Misfit> {
    fn within(term: &mut Term, at: Span, filter: &Term) -> bool {
        match term {
            Term::Node(_) | Term::Missing(_) => false,
            Term::Not(not) => within(&mut not.term, at, filter),
            Term::Group(group) => {
                group.branches.iter_mut().any(|b| within(&mut b.term, at, filter))
            }
            Term::Pipeline(pipeline) => {
                let here = |term: &Term| matches!(term, Term::Node(node) if node.span == at);
                let place = match here(&pipeline.first) {
                    true => Some(0),
                    false => pipeline.rest.iter().position(|s| here(&s.term)).map(|p| p + 1),
                };
                match place.filter(|place| *place < pipeline.rest.len()) {
                    Some(place) => {
                        fork(pipeline, place, filter.clone());
                        true
                    }
                    None => {
                        within(&mut pipeline.first, at, filter)
                            || pipeline.rest.iter_mut().any(|s| within(&mut s.term, at, filter))
                    }
                }
            }
        }
    }
    match request.pipelines.iter_mut().any(|term| within(term, at, filter)) {
        true => Ok(()),
        false => Err(Misfit("nothing follows it in its branch: insert `after` it".to_owned())),
    }
}

/// Puts a branch beside all stages from `place` on.
fn fork(pipeline: &mut Pipeline, place: usize, filter: Term) {
    let mut behind = pipeline.rest.split_off(place).into_iter();
    let Some(next) = behind.next() else { return };
    let label = next.arc.label;
    let rest: Vec<Stage> = behind.collect();
    let follows = match rest.is_empty() {
        true => next.term,
        false => Term::Pipeline(Pipeline { first: Box::new(next.term), rest, span: NEW }),
    };
    let all = Label { inverted: false, classes: Classes::All, span: NEW };
    let arc = Arc { label: label.as_ref().map(|_| all), span: NEW };
    let branches = vec![
        Branch { label: None, term: filter, span: NEW },
        Branch { label, term: follows, span: NEW },
    ];
    let term = Term::Group(Group { operator: Operator::Parallel, branches, span: NEW });
    pipeline.rest.push(Stage { arc, term });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(text: &str, words: &str) -> String {
        let words: Vec<&str> = words.split(' ').collect();
        Edit::parse(&words).and_then(|edit| edit.apply(text)).map_or_else(|e| e.0, |e| e.text)
    }

    #[test]
    fn v3_an_edit_is_the_line_that_says_it() {
        let line = "rx | dport |22 ssh |80 (count + http |1 print)";
        let cases = [
            (
                "insert inspect before dport",
                "rx | inspect | dport |22 ssh |80 (count + http |1 print)",
            ),
            (
                "insert inspect after dport",
                "rx | dport | inspect |22 ssh |80 (count + http |1 print)",
            ),
            (
                "insert pcap x after count",
                "rx | dport |22 ssh |80 ((count | pcap x) + http |1 print)",
            ),
            ("insert a | b before ssh", "rx | dport |22 a | b | ssh |80 (count + http |1 print)"),
            ("insert count at rx", "rx | (count + (dport |22 ssh |80 (count + http |1 print)))"),
            (
                "insert count at dport",
                "rx | dport |all (count + |22 (ssh |80 (count + http |1 print)))",
            ),
            ("remove dport", "rx | ssh |80 (count + http |1 print)"),
            ("remove count", "rx | dport |22 ssh |80 http |1 print"),
            ("remove print", "rx | dport |22 ssh |80 (count + http)"),
            ("remove http", "rx | dport |22 ssh |80 count |1 print"),
            (
                "replace ssh with tcp held=1M",
                "rx | dport |22 tcp held=1M |80 (count + http |1 print)",
            ),
            ("move http to thread1", "rx | dport |22 ssh |80 (count + http@thread1 |1 print)"),
            ("move dport kernel", "rx | dport@kernel |22 ssh |80 (count + http |1 print)"),
            ("move dport process", "rx | dport@thread0 |22 ssh |80 (count + http |1 print)"),
            ("upgrade http", "rx | dport |22 ssh |80 (count + http |1 print)"),
            ("move http sandbox", "rx | dport |22 ssh |80 (count + http untrusted=yes |1 print)"),
        ];
        for (words, expected) in cases {
            let normal = |text: &str| tree(text, "").map(|tree| tree.to_string()).expect(text);
            assert_eq!(edit(line, words), normal(expected), "{words}");
            let read = Edit::parse(&words.split(' ').collect::<Vec<_>>()).expect(words);
            assert_eq!(Edit::parse(&read.words()), Ok(read), "{words}: what is told is read");
        }
    }

    #[test]
    fn v18_a_filter_in_a_process_of_its_own_is_the_same_filter() {
        let line = "rx | tcp@thread1 held=1M |http http | print";
        let apart = edit(line, "move tcp to sandbox");
        assert_eq!(apart, "rx | tcp held=1M untrusted=yes |http http | print");
        assert_eq!(edit(&apart, "move tcp sandbox"), apart, "once is enough");
        let home = edit(&apart, "move tcp thread1");
        assert_eq!(home, line);
        assert_eq!(edit(&apart, "move tcp process"), line.replace("thread1", "thread0"));
        for (from, to) in [(line, &apart), (&apart, &home)] {
            let edited = Edit::Whole(to.clone()).apply(from).expect("whole");
            assert!(edited.filters.iter().all(|(_, old)| old.is_some()), "{from}: {edited:?}");
        }
    }

    #[test]
    fn v3_what_cannot_be_meant_is_refused_in_words() {
        let line = "rx | count | count ; generate | a --name=X + b --name=X";
        for (words, expected) in [
            ("remove tcp", "the request has no `tcp`"),
            ("remove count", "the request has 2 of `count`: say `count:1` to `:2`"),
            ("remove count:3", "the request has 2 of `count`: say `count:1` to `:2`"),
            ("insert count at count:2", "nothing follows it in its branch: insert `after` it"),
            ("remove", USAGE),
            ("insert count near rx", USAGE),
        ] {
            assert_eq!(edit(line, words), expected, "{words}");
        }
        assert_eq!(edit("count", "remove count"), "without `count` nothing is left");
        let broken = edit(line, "insert ( before rx");
        assert!(broken.starts_with("`(`: "), "{broken}");
    }

    #[test]
    fn v3_filters_keep_their_identity() {
        let line = "rx | count | count | print";
        let words = ["remove", "count:1"];
        let edited = Edit::parse(&words).and_then(|edit| edit.apply(line)).expect("an edit");
        let place = |word: &str, n: usize| {
            let at = line.match_indices(word).nth(n).expect("it is there").0;
            Some(Span::new(at, at + word.len()))
        };
        let old: Vec<_> = edited.filters.iter().map(|(_, old)| *old).collect();
        assert_eq!(old, [place("rx", 0), place("count", 1), place("print", 0)]);
        for (new, _) in &edited.filters {
            assert!(["rx", "count", "print"].contains(&&edited.text[new.start..new.end]));
        }
        let whole = Edit::Whole("rx | count | tcp | print".to_owned()).apply(line).expect("whole");
        let old: Vec<_> = whole.filters.iter().map(|(_, old)| *old).collect();
        assert_eq!(old, [place("rx", 0), place("count", 0), None, place("print", 0)]);
    }
}
