//! Tests of edits of arcs. A table lists the text of a request before and after each edit. Random
//! edits of random requests are compared with the same edits applied to a list of arcs.

mod common;

use common::Random;
use common::planner_registry::planner_registry;
use pipeline::edit::{Edit, EditResult, NodeOutput};
use pipeline::graph::{Graph, NodeId};
use std::collections::BTreeSet;

fn edited_text(text: &str, words: &str) -> Result<String, String> {
    let words: Vec<&str> = words.split(' ').collect();
    let edit = Edit::parse(&words).map_err(|why| why.0)?;
    assert_eq!(
        Edit::parse(&edit.to_words()),
        Ok(edit.clone()),
        "{words:?}: printed words parse to the same edit"
    );
    let edited = edit.apply(text, &planner_registry()).map_err(|why| why.0)?;
    let (_, mistakes) = pipeline::read_request(&edited.text, &planner_registry());
    assert!(mistakes.is_empty(), "{}", pipeline::render(&edited.text, &mistakes, false));
    Ok(edited.text)
}

const HTTP_GET_REQUEST: &str = "rx eth0 | tcp | http |get pcap get.pcap";

#[test]
fn v3_edits_of_arcs_change_the_text() {
    let mut wrong = false;
    for (text, words, expected) in [
        (
            HTTP_GET_REQUEST,
            "add count below http",
            "rx eth0 | tcp | http | (|get pcap get.pcap + count)",
        ),
        (
            HTTP_GET_REQUEST,
            "add hist | print below http/head",
            "rx eth0 | tcp | http | (|get pcap get.pcap + |head (hist | print))",
        ),
        ("rx eth0 | discard", "add udp | count below rx/all", "rx eth0 |all udp | count"),
        ("rx eth0", "add count below rx", "rx eth0 | count"),
        (
            "rx eth0 | udp | count",
            "add sample 3 below udp",
            "rx eth0 | udp | count + (sample 3 | discard)",
        ),
        ("rx eth0 | discard", "add ip | udp below rx", "rx eth0 | ip | udp | discard"),
        ("rx eth0", "add ip | udp below rx", "rx eth0 | ip | udp"),
        (
            "rx eth0 | tcp + udp | count",
            "add print below tcp",
            "rx eth0 | tcp --name=tcp + udp | count ; tcp --name=tcp | print",
        ),
        (
            "rx eth0 | count --name=count ; rx eth1 | (udp | count --name=count) + ip | print",
            "remove rx:2 all",
            "rx eth0 | count | print",
        ),
        (
            "rx eth0 | count --name=X ; rx eth1 | (udp | count --name=X) + (ip | print)",
            "remove rx:2 all",
            "rx eth0 | count --name=X",
        ),
        (HTTP_GET_REQUEST, "remove pcap leaf", "rx eth0 | tcp | http | discard"),
        (HTTP_GET_REQUEST, "remove tcp all", "rx eth0 | discard"),
        (
            "rx eth0 | tcp | udp | print",
            "move udp below rx",
            "rx eth0 | (tcp | discard) + (udp | print)",
        ),
        (
            "rx eth0 | dport | (|22 (count | print) + |80 (hist | print))",
            "remove hist all",
            "rx eth0 | dport |22 count | print",
        ),
    ] {
        let edited = edited_text(text, words);
        if edited.as_deref() != Ok(expected) {
            eprintln!("{words}: {edited:?}");
            wrong = true;
        }
    }
    assert!(!wrong);
}

#[test]
fn v3_impossible_edits_of_arcs_name_the_reason() {
    for (text, words, why) in [
        (HTTP_GET_REQUEST, "move tcp below http", "`http` is below `tcp`: it would lead to itself"),
        (HTTP_GET_REQUEST, "move tcp below tcp", "`tcp` cannot be below itself"),
        (HTTP_GET_REQUEST, "move rx below tcp", "`rx` is a source: it is below nothing"),
        (
            HTTP_GET_REQUEST,
            "remove http leaf",
            "`http` is not empty: `pcap` is below it (`remove http all` removes both)",
        ),
        (HTTP_GET_REQUEST, "remove rx all", "nothing of the request would be left"),
        (HTTP_GET_REQUEST, "join http below tcp", "`http` is below `tcp` already"),
        (
            HTTP_GET_REQUEST,
            "sever http from tcp",
            "`tcp` is the only parent of `http`: remove it, or move it below another node",
        ),
        (HTTP_GET_REQUEST, "sever http from rx", "`http` is not below `rx`"),
        (
            HTTP_GET_REQUEST,
            "add count below http/|x",
            "`|x` is not a class: write `NODE/80` or `NODE/!80`",
        ),
        (
            "rx | !dport | count",
            "move dport below rx",
            "`dport` is an operand of `++`, `+*` or `!`: write the whole new request",
        ),
        (
            "rx | split_rr | count + count | print",
            "move count:1 below rx",
            "`split_rr` distributes blocks to its branches, which meet again: write the whole new \
             request",
        ),
        (
            "rx | split_rr | count + count | print",
            "add count below split_rr",
            "`split_rr` distributes blocks to its branches: write the whole new request",
        ),
    ] {
        assert_eq!(edited_text(text, words), Err(why.to_owned()), "{text}: {words}");
    }
}

#[test]
fn v3_subtree_is_the_text_that_another_path_would_get() {
    let subtree = |text: &str, node: &str| {
        let found = pipeline::edit::extract_subtree(text, node).map_err(|why| why.0)?;
        let of = |span: &pipeline::language::Span| text[span.start..span.end].to_owned();
        Ok::<_, String>((
            found.text.clone(),
            found.filters.iter().flatten().map(of).collect::<Vec<_>>(),
        ))
    };
    let expected = ("http |get pcap get.pcap".to_owned(), vec!["http", "pcap get.pcap"]);
    let found = subtree(HTTP_GET_REQUEST, "http").expect("a subtree");
    assert_eq!((found.0, found.1.iter().map(String::as_str).collect()), expected);
    let why = |text, node| subtree(text, node).expect_err("refused");
    assert_eq!(why(HTTP_GET_REQUEST, "rx"), "`rx` is a source: it is below nothing");
    let joined = "rx | dport | (|22 count + |80 hist) | print";
    assert_eq!(why(joined, "count"), "`print` has a mark: it may have another parent in its path");
    let words = ["move", "http", "into", "other", "below", "tcp/all"];
    let found = pipeline::edit::PathMove::parse(&words).expect("a move");
    assert_eq!(found.to_words(), words);
    assert_eq!((found.path.as_str(), found.below.to_string().as_str()), ("other", "tcp/all"));
}

/// An end of an arc in an edited request: a node of the request before the edit, or a new node by
/// name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum ArcEnd {
    Old(usize),
    New(String),
}

type ArcSet = BTreeSet<(ArcEnd, ArcEnd, Vec<(u32, u32)>)>;

fn parse_graph(text: &str) -> Option<Graph> {
    let (graph, mistakes) = pipeline::read_request(text, &planner_registry());
    let wrong = mistakes.iter().any(|m| m.severity == pipeline::language::Severity::Error);
    (!wrong).then_some(graph)
}

/// Returns the arcs of a graph, except arcs to placeholder sinks (`discard`). `id` returns the
/// identity of a node.
fn graph_arcs(graph: &Graph, id: impl Fn(NodeId) -> ArcEnd) -> ArcSet {
    let kept = graph.edges.iter().filter(|edge| graph.node(edge.to).name() != "discard");
    kept.map(|edge| (id(edge.from), id(edge.to), edge.classes.ranges().to_vec())).collect()
}

fn edited_arcs(edited: &EditResult, old: &Graph, new: &Graph) -> ArcSet {
    graph_arcs(new, |id| {
        let node = new.node(id);
        let found = edited.filters.iter().find(|(span, _)| span.start == node.span.start);
        let before = found.and_then(|(_, before)| *before);
        let before = before.and_then(|span| old.nodes_with_ids().find(|(_, n)| n.span == span));
        before.map_or_else(|| ArcEnd::New(node.name().to_owned()), |(id, _)| ArcEnd::Old(id.0))
    })
}

/// Returns the arcs that a graph must have after an edit, computed from the arcs of the old graph.
/// Returns `None` if the edit must be refused.
fn expected_arcs(edit: &Edit, old: &Graph, (node, parent): (NodeId, NodeId)) -> Option<ArcSet> {
    let mut all = graph_arcs(old, |id| match old.node(id).filter() {
        Some(_) => ArcEnd::Old(id.0),
        None => ArcEnd::New(old.node(id).name().to_owned()),
    });
    let classes = |below: &NodeOutput| match below.class.as_deref() {
        None => pipeline::ClassSet::plain_pipe().ranges().to_vec(),
        Some("all") => pipeline::ClassSet::all().ranges().to_vec(),
        Some(class) => {
            let class = class.parse().expect("a number");
            vec![(class, class)]
        }
    };
    let (at, to) = (ArcEnd::Old(node.0), ArcEnd::Old(parent.0));
    match edit {
        Edit::Add { below: Some(below), .. } => {
            all.insert((to, ArcEnd::New("hist".to_owned()), classes(below)));
        }
        Edit::Reattach { from, below, .. } => {
            let names = pipeline::explain::unique_names(old);
            let from = |arc: &&(ArcEnd, ArcEnd, _)| match (from, &arc.0) {
                (Some(from), ArcEnd::Old(id)) => names[*id] == from.node,
                (None, _) => true,
                _ => false,
            };
            let arcs = all.iter().filter(|arc| arc.1 == at && from(arc));
            let found: Vec<_> = arcs.cloned().collect();
            let [arc] = found.as_slice() else { return None };
            all.remove(arc);
            all.insert((to, at, classes(below)));
        }
        Edit::Join { below, .. } => {
            all.insert((to, at, classes(below)));
        }
        Edit::Sever { .. } => all.retain(|(from, other, _)| (from, other) != (&to, &at)),
        Edit::RemoveBelow { .. } => {
            all.retain(|(from, to, _)| *from != at && *to != at);
            let heads = old.heads().into_iter().map(|id| ArcEnd::Old(id.0));
            let mut live: Vec<ArcEnd> = heads.filter(|head| *head != at).collect();
            let mut next = 0;
            while let Some(from) = live.get(next).cloned() {
                let below = all.iter().filter(|arc| arc.0 == from).map(|arc| arc.1.clone());
                let new: Vec<ArcEnd> = below.filter(|to| !live.contains(to)).collect();
                live.extend(new);
                next += 1;
            }
            all.retain(|(from, ..)| live.contains(from));
        }
        _ => return None,
    }
    Some(all)
}

fn random_edit(random: &mut Random, graph: &Graph) -> (Edit, (NodeId, NodeId)) {
    let names = pipeline::explain::unique_names(graph);
    let pick = |random: &mut Random| NodeId(random.next_below(graph.nodes.len()));
    let (node, parent) = (pick(random), pick(random));
    let name = |id: NodeId| names[id.0].clone();
    let classes: &[Option<&str>] = match graph.node(parent).name() {
        "dport" | "sport" => &[None, Some("all"), Some("7"), Some("80")],
        _ => &[None, Some("all")],
    };
    let class = classes[random.next_below(classes.len())].map(str::to_owned);
    let below = NodeOutput { node: name(parent), class };
    let edit = match random.next_below(6) {
        0 => Edit::Add { filter: "hist".to_owned(), below: Some(below) },
        1 => Edit::RemoveBelow { node: name(node), all: true },
        2 => Edit::Reattach { node: name(node), from: None, below },
        3 => {
            let parents: Vec<NodeId> = graph.inputs(node).map(|edge| edge.from).collect();
            let from = parents.get(random.next_below(parents.len()));
            let from = from.map(|from| NodeOutput { node: name(*from), class: None });
            Edit::Reattach { node: name(node), from, below }
        }
        4 => Edit::Join { node: name(node), below },
        _ => {
            let from = NodeOutput { class: None, ..below };
            Edit::Sever { node: name(node), from }
        }
    };
    (edit, (node, parent))
}

const EDITED_REQUESTS: &[&str] = &[
    "rx eth0 | dport | (|22 count + |80 hist) | print",
    "rx eth0 | dport | (|1:99 ipproto + sport) | count + hist | (pcap x + print)",
    "rx eth0 | dport | ((sport | count) + ipproto + hist) | inspect | print",
    "(rx eth0 | dport) + (rx eth1 | sport) | count | (ipproto | print + hist)",
    "rx eth0 | dport --name=x | (count + ipproto) | print ; dport --name=x |7 sport | hist",
    "rx eth0 | dport |80 (|80 (count + hist) + sport | inspect) | print",
    "rx eth0 | dport | !sport | count ; rx eth1 | count",
];

#[test]
fn v3_random_edits_change_exactly_the_arcs_they_name() {
    let (mut random, mut made, mut refused) = (Random::from_environment(), 0, BTreeSet::new());
    for _ in 0..1500 {
        let mut text = random.pick(EDITED_REQUESTS).to_owned();
        for _ in 0..4 {
            let Some(old) = parse_graph(&text) else { panic!("{text}") };
            let (edit, nodes) = random_edit(&mut random, &old);
            if [nodes.0, nodes.1].iter().any(|id| old.node(*id).name() == "discard") {
                continue;
            }
            let edited = match edit.apply(&text, &planner_registry()) {
                Ok(edited) => edited,
                Err(why) => {
                    refused.insert(why.0);
                    continue;
                }
            };
            // The checks refuse edits that the language does not permit, such as arcs out of sinks.
            let Some(new) = parse_graph(&edited.text) else { continue };
            let Some(expected) = expected_arcs(&edit, &old, nodes) else { continue };
            let got = edited_arcs(&edited, &old, &new);
            assert_eq!(got, expected, "{text}\n{edit}\n{}", edited.text);
            made += 1;
            text = edited.text;
        }
    }
    assert!(made > 1000, "{made}");
    eprintln!("{made} made; refused: {refused:#?}");
}
