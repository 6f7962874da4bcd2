//! Tests of the serialization of calls and replies, and tests that the interface files match the
//! Rust types.

use super::*;
use crate::protocol;
use proptest::prelude::*;
use runtime::ledger::{RetainedFrames, RingSize, RingState};
use serde_json::json;

#[test]
fn call_serializes_as_varlink_specifies() {
    let call =
        Call::read(br#"{"method":"io.streamline.List","parameters":{},"more":true}"#).unwrap();
    assert_eq!(call.interface_and_method(), ("io.streamline", "List"));
    assert!(call.more && !call.oneway && !call.upgrade);
    let bare = Call::read(br#"{"method":"x","parameters":null,"more":null}"#).unwrap();
    assert_eq!((bare.interface_and_method(), bare.parameters.len()), (("", "x"), 0));
    let text = String::from_utf8(Call::new("a.b.C", &json!({"d": 1})).to_bytes()).unwrap();
    assert_eq!(text, r#"{"method":"a.b.C","parameters":{"d":1}}"#);
    let reply = Reply::from(&Fault::method_not_found("a.b.C"));
    let text = String::from_utf8(reply.to_bytes()).unwrap();
    let expected =
        r#"{"parameters":{"method":"a.b.C"},"error":"org.varlink.service.MethodNotFound"}"#;
    assert_eq!(text, expected);
}

#[test]
fn result_of_a_reply_is_an_object() {
    let text = br#"{"parameters":{"d":[1,null]},"continues":true}"#;
    let reply = Reply::read(text).unwrap();
    assert_eq!(reply.to_bytes(), text);
    assert_eq!(reply.deserialize_result(), Ok(json!({"d": [1, null]})));
    for (text, written) in [
        (&br#"{}"#[..], &b"{}"[..]),
        (br#"{"parameters":null}"#, b"{}"),
        (br#"{"parameters":{}}"#, b"{}"),
        (br#"{ "parameters": { } }"#, br#"{"parameters":{ }}"#),
    ] {
        let reply = Reply::read(text).unwrap();
        assert_eq!(reply.to_bytes(), written);
        assert_eq!(reply.deserialize_result(), Ok(json!({})));
    }
    assert_eq!(Reply::new(&()).to_bytes(), b"{}");
    for text in [&br#"{"parameters":[1]}"#[..], br#"{"parameters":"x"}"#, br#"{"parameters":{"x"}"#]
    {
        assert!(matches!(Reply::read(text), Err(MessageError::Invalid(_))));
    }
}

#[test]
fn malformed_call_is_refused() {
    for bytes in [
        &b""[..],
        b"{}",
        b"[]",
        b"null",
        b"{\"method\":1}",
        b"{\"method\":\"x\",\"parameters\":[]}",
        b"{\"method\":\"x\",\"more\":\"yes\"}",
        b"{\"method\":\"x\"",
        b"{\"method\":\"x\"}{}",
        b"\xff\xfe",
    ] {
        let text = String::from_utf8_lossy(bytes);
        assert!(matches!(Call::read(bytes), Err(MessageError::Invalid(_))), "{text}");
    }
    let deep = format!("{{\"method\":\"x\",\"parameters\":{}", "{\"a\":".repeat(10_000));
    assert!(Call::read(deep.as_bytes()).is_err());
    assert_eq!(Call::read(&vec![b' '; MESSAGE_BYTES_MAX + 1]), Err(MessageError::TooLong));
}

#[test]
fn invalid_parameter_is_named() {
    let take = |parameters: Value| {
        let call = Call::new("io.streamline.Connect", &parameters);
        call.deserialize_parameters::<protocol::ConnectParameters>()
            .map_err(|fault| fault.text_parameter("parameter").to_owned())
    };
    assert!(take(json!({"path": "web"})).is_ok());
    assert_eq!(take(json!({})), Err("path".to_owned()));
    assert_eq!(take(json!({"path": "web", "more": 1})), Err("more".to_owned()));
    assert!(take(json!({"path": 7})).is_err());
}

/// Returns the names of all methods, errors or types that an interface description defines. `word`
/// selects the kind: `method`, `error` or `type`.
fn definition_names(interface: interface::Interface, word: &str) -> Vec<&str> {
    let starts = format!("{word} ");
    let lines = interface.text.lines().filter_map(|line| line.strip_prefix(starts.as_str()));
    lines.filter_map(|line| line.split(['(', ' ']).next()).collect()
}

/// Returns the sorted field names of a definition in an interface description: the names in the
/// first pair of parentheses after the text `behind`.
fn field_names_after(interface: interface::Interface, behind: &str) -> Vec<String> {
    let text: String = interface
        .text
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .collect::<Vec<_>>()
        .join(" ");
    let from = text.find(behind).unwrap_or_else(|| panic!("{behind} is not described"));
    let rest = &text[from + behind.len()..];
    let open = rest.find('(').unwrap();
    let mut depth = 0;
    let mut names = Vec::new();
    let mut word = String::new();
    for c in rest[open..].chars() {
        match c {
            '(' => depth += 1,
            ')' if depth == 1 => break,
            ')' => depth -= 1,
            ':' if depth == 1 => names.push(std::mem::take(&mut word)),
            c if depth == 1 && (c.is_alphanumeric() || c == '_') => word.push(c),
            ',' => word.clear(),
            _ => {}
        }
    }
    names.sort();
    names
}

/// Returns the sorted field names of a serialized value.
fn field_names<T: Serialize>(value: &T) -> Vec<String> {
    let mut names: Vec<String> = to_parameters(value).keys().cloned().collect();
    names.sort();
    names
}

#[test]
fn interface_files_match_the_types() {
    use protocol::{
        Amount, Argument, AttachParameters, AttachReply, CarriedStep, ChangeParameters,
        ChangeReply, ChangedNodes, ConnectReply, CountParameters, CountReply, Counters,
        DaemonDescription, Edge, Filter, FollowParameters, KernelProgram, KernelPrograms,
        KernelRequest, KernelRing, KernelStep, Link, Loss, Node, NodeArc, NodeDetails, NodePatch,
        NodesParameters, NodesReply, PathCountParameters, PathDescription, PathEnd, PathEvent,
        PathReport, PathUpdate, Permissions, Quota, RegisterParameters, RegisteredPath,
        Replacement, Source, Space, Totals, UpdateForm,
    };
    let (none, amount) = (String::new, Amount::default);
    let about = DaemonDescription { version: none(), process: 0, uid: 0, started: 0, policy: None };
    let (quota, used) = (Quota::default(), Quota::default());
    let allowed = Permissions {
        everything: false,
        quota,
        used,
        filters: Vec::new(),
        interfaces: Vec::new(),
        kernel: None,
        closed: None,
    };
    let instead = Replacement { line: 0, stays: Vec::new(), taps: Some(vec![0]) };
    let (line, part, network, version) = (none(), none(), none(), none());
    let attach = AttachParameters { line, part, network, version, instead: Some(instead.clone()) };
    let register = RegisterParameters { plan: Some(none()), ..RegisterParameters::default() };
    let report = PathReport { event: PathEvent::Ended, text: none(), status: Some(0) };
    let daemon = interface::DAEMON_INTERFACE;
    for (behind, sent) in [
        ("type InKernel", field_names(&KernelRequest::default())),
        ("type Step", field_names(&KernelStep::default())),
        ("type KernelRing", field_names(&KernelRing::default())),
        ("type Program", field_names(&KernelProgram::default())),
        ("type Amount", field_names(&amount())),
        ("method Sharing() ->", field_names(&KernelPrograms::default())),
        ("method Attach", field_names(&attach)),
        ("instead: ?Instead ) ->", field_names(&AttachReply::default())),
        ("method Count", field_names(&CountParameters { number: Some(0) })),
        ("type Instead", field_names(&instead)),
        ("type Stay", field_names(&CarriedStep { was: 0, is: 0 })),
        ("type Path", field_names(&RegisteredPath::default())),
        ("type Quota", field_names(&quota)),
        ("method About() ->", field_names(&about)),
        ("method Allowed() ->", field_names(&allowed)),
        ("method Register", field_names(&register)),
        ("method Report", field_names(&report)),
        ("method Connect(path: string) ->", field_names(&ConnectReply { number: 0, uid: 0 })),
    ] {
        assert_eq!(field_names_after(daemon, behind), sent, "{behind}");
    }
    let path = interface::PATH_INTERFACE;
    let form = Some(UpdateForm::Pages);
    let follow = FollowParameters { form, every_ms: None, counters_every_ms: Some(0) };
    let lost = Loss { why: none(), blocks: None };
    let source = Source { name: none(), observed: None, given: amount(), lost: Vec::new() };
    let text = Some(none());
    let (nodes, known) = (Some(true), Some(0));
    let (running, other, patches) = (text.clone(), text, Some(true));
    let change = ChangeParameters { words: Vec::new(), running, other, nodes, known, patches };
    let (kept, patches) = (Some(Vec::new()), Some(Vec::new()));
    let nodes = ChangedNodes { kept, patches, ..ChangedNodes::default() };
    let patch = NodePatch { node: 0, name: Some(none()), arcs: Some(Vec::new()) };
    let (changed_nodes, nodes) = (field_names(&nodes), Some(nodes));
    let changed = ChangeReply { nodes, ..ChangeReply::default() };
    let link = Link { from: 0, to: 0, classes: none(), transport: none(), room: None };
    let filter = Filter {
        node: 0,
        name: none(),
        taken: amount(),
        made: amount(),
        passed: amount(),
        unselected: amount(),
        consumed: amount(),
        held: amount(),
        lost: Vec::new(),
        calls: 0,
        busy_ns: 0,
        ring: Some(RingState::default()),
        kept: Some(RetainedFrames::default()),
        operand: true,
    };
    let edge = Edge {
        edge: 0,
        from: none(),
        to: none(),
        kind: none(),
        put: amount(),
        taken: amount(),
        resident: amount(),
        lost: Vec::new(),
        size: Some(RingSize::default()),
    };
    for (behind, sent) in [
        ("type Amount", field_names(&amount())),
        ("type Lost", field_names(&lost)),
        ("type Source", field_names(&source)),
        ("type Filter", field_names(&filter)),
        ("type Edge", field_names(&edge)),
        ("type RingSize", field_names(&RingSize::default())),
        ("type ReaderRing", field_names(&RingState::default())),
        ("type RetainedFrames", field_names(&RetainedFrames::default())),
        ("type Space", field_names(&Space::default())),
        ("type Counters", field_names(&Counters::default())),
        ("type Argument", field_names(&Argument::default())),
        ("type NodeArc", field_names(&NodeArc::default())),
        ("type NodeDetails", field_names(&NodeDetails::default())),
        (
            "method Nodes",
            field_names(&NodesParameters { known: Some(0), ..NodesParameters::default() }),
        ),
        ("method Nodes(first: ?int, known: ?int) ->", field_names(&NodesReply::default())),
        ("method Count", field_names(&PathCountParameters { first: Some(0), timed: Some(true) })),
        ("method Count(first: ?int, timed: ?bool) ->", field_names(&CountReply::default())),
        ("method Change", field_names(&change)),
        ("known: ?int, patches: ?bool) ->", field_names(&changed)),
        ("type ChangedNodes", changed_nodes),
        ("type NodePatch", field_names(&patch)),
        ("type Node", field_names(&Node { name: none(), space: none(), copies: Vec::new() })),
        ("type Link", field_names(&link)),
        ("type Ended", field_names(&PathEnd::default())),
        ("method Describe() ->", field_names(&PathDescription::default())),
        ("method Follow", field_names(&follow)),
        ("counters_every_ms: ?int) ->", field_names(&PathUpdate::default())),
        ("type Totals", field_names(&Totals::default())),
    ] {
        assert_eq!(field_names_after(path, behind), sent, "{behind}");
    }
}

#[test]
fn every_daemon_error_is_declared_and_has_a_message() {
    use crate::faults;
    let all = [
        faults::no_such_path("web"),
        faults::ambiguous_path("web", &[1, 2]),
        faults::not_yours("web", 7),
        faults::name_taken("web", 3),
        faults::refused("name", "it is empty"),
        faults::quota_exceeded("paths", 3),
        faults::busy("web"),
        faults::not_in_kernel(3, "policy", "it is not open"),
        faults::needs_descriptors("io.streamline.packets"),
    ];
    let names: Vec<&str> = all.iter().map(|fault| fault.name.rsplit('.').next().unwrap()).collect();
    assert_eq!(definition_names(interface::DAEMON_INTERFACE, "error"), names);
    for fault in &all {
        let sentence = faults::format_fault(fault);
        assert!(!sentence.contains(&fault.name), "{sentence}");
        let parameters: Vec<String> = fault.parameters.keys().cloned().collect();
        let behind = format!("error {}", fault.name.rsplit('.').next().unwrap());
        assert_eq!(field_names_after(interface::DAEMON_INTERFACE, &behind), parameters, "{behind}");
    }
}

proptest! {
    /// Checks that parsing random bytes does not panic.
    #[test]
    fn random_bytes_are_parsed_without_panic(
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
    ) {
        let _ = Call::read(&bytes);
        let _ = Reply::read(&bytes);
    }

    /// Checks that a message that is truncated or has one changed byte is refused, or is parsed to
    /// a call that can be serialized.
    #[test]
    fn damaged_call_is_refused_or_serializable(
        at in 0..100usize,
        to in any::<u8>(),
        cut in any::<bool>(),
    ) {
        let call = Call::new("io.streamline.Connect", &json!({"path": "web"}));
        let call = Call { more: true, ..call };
        let mut bytes = call.to_bytes();
        let at = at % bytes.len();
        if cut { bytes.truncate(at) } else { bytes[at] = to }
        if let Ok(read) = Call::read(&bytes) {
            prop_assert_eq!(Call::read(&read.to_bytes()).unwrap(), read.clone());
            let _ = read.deserialize_parameters::<protocol::ConnectParameters>();
        }
    }

    #[test]
    fn serialized_call_parses_to_itself(method in ".{0,40}", key in ".{0,9}", text in ".{0,99}",
                                   more in any::<bool>(), oneway in any::<bool>()) {
        let parameters = json!({ key: text });
        let call = Call { more, oneway, ..Call::new(&method, &parameters) };
        prop_assert_eq!(Call::read(&call.to_bytes()).unwrap(), call);
    }
}
