//! Tests of properties that all filters in the catalog share, each as a loop over the catalog
//! without code for individual filters.
//!
//! They check names and texts, that a filter uses only the rights of its kind, that classes and
//! reasons are those of the catalog entry, that no bytes cause a panic, that heads give the same
//! answers as whole frames, that marks give the same answers as a fresh parse, and that state saved
//! in the middle of a corpus continues in another instance.

mod corpus;

use abi::{BlockFlags, BlockMetadata};
use corpus::CaptureReader;
use filter::catalog::FILTERS;
use filter::testing::{Answer, Arena, ETHERNET, Frame, Node, Space, parse_arguments};
use filter::{
    Batch, Block, Classes, Counts, Description, Filter, FilterKind, Form, LANES, OutputForm,
    ReadDepth, StateScope, lanes,
};
use std::collections::BTreeSet;

/// Creates the filter with the arguments of the example in its catalog entry.
fn example_node(description: &'static Description) -> Node {
    let words = filter::testing::example_words(description);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    Node::new(description, &words)
        .unwrap_or_else(|mistake| panic!("the example of `{}`: {mistake}", description.name))
}

/// Runs a filter over batches. After each batch, calls `see` with the filter, its input and its
/// output.
fn run_with_observer(
    node: &mut Node,
    frames: &[Frame],
    head: usize,
    mut see: impl FnMut(&Node, &Batch<'_>, &[Batch<'_>]),
) {
    // Held blocks must outlive the pass.
    let arena = Arena::new(4 * frames.len() + LANES);
    let mut space = Space::new(&arena).with_head_limit(head);
    for batch in corpus::uneven_batches(frames) {
        let before = space.batch(batch);
        let now = batch.iter().map(|frame| frame.time).max().unwrap_or(0);
        let after = node.process_batch(before.duplicate(), &mut space, now);
        see(node, &before, &after);
    }
}

fn all_answers(node: &mut Node, frames: &[Frame], head: usize) -> Vec<Answer> {
    let mut answers = Vec::new();
    run_with_observer(node, frames, head, |_, _, after| {
        let blocks = after.iter().flat_map(|batch| batch.blocks().collect::<Vec<_>>());
        answers.extend(blocks.map(|(_, block)| Answer::from_block(&block, None)));
    });
    answers
}

fn is_name(text: &str) -> bool {
    let mut letters = text.chars();
    letters.next().is_some_and(|first| first.is_ascii_lowercase())
        && letters.all(|l| l.is_ascii_lowercase() || l.is_ascii_digit() || l == '_')
}

#[test]
fn filter_names_are_unique_and_valid() {
    for (number, d) in FILTERS.iter().enumerate() {
        assert!(is_name(d.name) && !["all", "zero"].contains(&d.name), "`{}`", d.name);
        let twice = FILTERS.iter().skip(number + 1).any(|other| other.name == d.name);
        assert!(!twice, "`{}` stands twice", d.name);
        assert_eq!(filter::catalog::find(d.name).map(|found| found.summary), Some(d.summary));
    }
    assert!(filter::catalog::find("htpp").is_none());
}

#[test]
fn summaries_and_details_fit_their_columns() {
    for d in FILTERS {
        assert!((10..=72).contains(&d.summary.len()), "summary of `{}`", d.name);
        assert!(!d.summary.ends_with('.'), "summary of `{}`: no full stop", d.name);
        assert!(d.details.lines().count() > 1, "details of `{}`", d.name);
        for line in d.details.lines() {
            assert!(line.chars().count() <= 100, "details of `{}`: {line}", d.name);
        }
        let details = d.details.replace('\n', " ");
        for reason in d.reasons {
            assert!(details.contains(&format!("`{reason}`")), "`{}` explains `{reason}`", d.name);
        }
        for text in d.reasons.iter().chain(d.counters) {
            assert!(!text.is_empty() && text.len() <= 24, "`{}`: `{text}`", d.name);
        }
    }
}

#[test]
fn parameters_match_the_help() {
    for d in FILTERS {
        for (number, p) in d.parameters.iter().enumerate() {
            assert!(is_name(p.name) && !p.help.is_empty(), "`{}` {}", d.name, p.name);
            let twice = d.parameters.iter().skip(number + 1).any(|other| other.name == p.name);
            assert!(!twice, "`{}` {} stands twice", d.name, p.name);
            if let Some(text) = p.default {
                p.parse(text).unwrap_or_else(|m| panic!("`{}` {}: {m}", d.name, p.name));
                assert!(!p.optional, "`{}` {}: a default and optional", d.name, p.name);
            }
        }
        let needed = d.parameters.iter().any(|p| p.default.is_none() && !p.optional);
        assert_eq!(parse_arguments(d, &[]).is_err(), needed, "`{}` without arguments", d.name);
        example_node(d);
    }
}

#[test]
fn class_names_map_to_one_number_in_range() {
    for d in FILTERS {
        let Classes::Number { meaning: what, range, names } = d.classes else { continue };
        assert!(!what.is_empty() && range.low <= range.high, "`{}`", d.name);
        for (number, &(name, value)) in names.iter().enumerate() {
            assert!(is_name(name) && !["all", "zero"].contains(&name), "`{}` |{name}", d.name);
            assert!((range.low..=range.high).contains(&value), "`{}` |{name}", d.name);
            let twice = names.iter().skip(number + 1).any(|&(n, v)| n == name || v == value);
            assert!(!twice, "`{}` |{name} stands twice", d.name);
        }
    }
}

/// A class may have the name of a filter only if it selects blocks for that filter. The filter must
/// then answer most blocks of the class whose form it accepts. All filters that classify by port
/// use the same service names. For these names it is enough if the class of one of these filters
/// selects the right blocks.
#[test]
fn class_named_like_a_filter_selects_its_blocks() {
    assert_classes_lead_to_filters(corpus::generated_frames);
}

fn assert_classes_lead_to_filters(captured: CaptureReader) {
    let frames = [captured(16), corpus::header_case_frames()].concat();
    let (mut named, mut leading) = (BTreeSet::new(), BTreeSet::new());
    for d in FILTERS {
        let Classes::Number { names, .. } = d.classes else { continue };
        for (name, value) in names {
            let Some(other) = filter::catalog::find(name) else { continue };
            let form = if let OutputForm::Form(form) = d.output_form { form } else { Form::Frame };
            if !other.input_forms.contains(form) {
                continue;
            }
            // Held blocks stay in the arena until they leave.
            let arena = Arena::new(4 * frames.len());
            let mut space = Space::new(&arena);
            let (mut first, mut second, mut there) = (example_node(d), example_node(other), 0);
            for frames in corpus::uneven_batches(&frames) {
                for mut batch in first.process_batch(space.batch(frames), &mut space, 0) {
                    batch.retain_lanes(batch.lanes_with_class(|class| class.0 == *value));
                    // Blocks without bytes (ends and holes) have no contents by which a filter
                    // could classify them.
                    let bytes = batch.blocks().filter(|(_, block)| !block.bytes().is_empty());
                    let bytes = bytes.fold(0, |mask, (l, _)| mask | 1 << l);
                    batch.retain_lanes(bytes);
                    there += u64::from(batch.live_lanes().count_ones());
                    second.process_batch(batch, &mut space, 0);
                }
            }
            // In one of five captures with port 22, curl requests a page from that port.
            let unanswered: u64 = second.unanswered_reasons().map(|(_, n)| n).sum();
            named.insert(*name);
            leading.extend((there > 0).then_some(*name));
            assert!(
                there == 0 || unanswered * 4 < there,
                "`{}` |{name} does not lead to `{name}`: {unanswered} of {there} not answered",
                d.name
            );
        }
    }
    assert_eq!(named, leading, "a name to which no class leads");
}

/// The daemon's built-in policy lets users run each twin that names no right, so a twin that edits
/// frames must name one. `strip` need not, because it removes headers but changes no field.
#[test]
fn editing_twin_names_the_right_that_it_needs() {
    let editing = |d: &&Description| d.emit_twin.is_some() && d.kind == FilterKind::Editing;
    for d in FILTERS.iter().copied().filter(editing) {
        assert!(d.twin_right.is_some() || d.name == "strip", "`{}`", d.name);
    }
}

#[test]
fn m5_filters_keep_to_the_rights_of_their_kind() {
    assert_kinds_keep_rights(corpus::generated_frames);
}

fn assert_kinds_keep_rights(captured: CaptureReader) {
    let frames = [
        captured(2),
        corpus::header_case_frames(),
        corpus::truncate_to_every_length(&corpus::header_case_frames()),
    ]
    .concat();
    for d in FILTERS {
        let mut node = example_node(d);
        let fits = match node.filter {
            Filter::Statistics(_) => d.kind == FilterKind::Statistics,
            Filter::Lanes(_) => (FilterKind::Inspection..=FilterKind::Editing).contains(&d.kind),
            Filter::Edit(_) => d.kind == FilterKind::Editing,
            Filter::Stream(_) => (FilterKind::Reordering..=FilterKind::Editing).contains(&d.kind),
        };
        assert!(fits, "`{}` is called {} and is a {:?}", d.name, d.kind.name(), node.filter);
        if d.kind == FilterKind::Statistics {
            assert_eq!(d.reads, ReadDepth::Nothing, "`{}`", d.name);
        }
        if d.kind < FilterKind::Reordering {
            assert_eq!(d.output_form, OutputForm::Same, "`{}`", d.name);
        }
        if let Filter::Stream(_) = node.filter {
            continue;
        }
        run_with_observer(&mut node, &frames, usize::MAX, |_, before, after| {
            let [after] = after else { panic!("`{}` is not a stream", d.name) };
            for l in lanes(after.live_lanes()) {
                assert_rights(d, &before.block(l), &after.block(l));
            }
        });
    }
}

/// Asserts that the filter changed only those properties of a block that filters of its kind may
/// change.
fn assert_rights(d: &Description, before: &Block<'_>, after: &Block<'_>) {
    let name = d.name;
    // A filter that assigns sessions sets the session and direction (CONTRACT 8).
    let beside = |context: BlockMetadata| match d.state.scope {
        StateScope::Sessions => BlockMetadata {
            session: 0,
            flags: context.flags.without(BlockFlags::BACKWARD),
            ..context
        },
        _ => context,
    };
    assert_eq!(beside(before.context), beside(after.context), "`{name}`: context");
    if d.kind < FilterKind::Classification {
        assert_eq!((before.pointer, before.marks), (after.pointer, after.marks), "`{name}`");
    }
    if d.kind < FilterKind::Reordering {
        let class = after.pointer.class;
        assert_eq!(before.pointer.with_class(class), after.pointer, "`{name}`: the view moved");
        assert_eq!(before.marks.view, after.marks.view, "`{name}`: the view moved");
    }
    if d.kind < FilterKind::Editing {
        assert!(std::ptr::eq(before.frame, after.frame), "`{name}`: other bytes");
        assert_eq!(before.entry().frame().place, after.entry().frame().place, "`{name}`");
        let end = after.marks.view + after.length();
        assert!(end <= after.marks.captured, "`{name}`: the view leaves the frame");
        let (was, is) = (before.marks, after.marks);
        assert_eq!(
            (was.captured, was.wire_length, was.link),
            (is.captured, is.wire_length, is.link)
        );
    }
    if d.output_form == OutputForm::Same || d.classes != Classes::Same {
        assert_declared_class(d, before, after);
    }
}

fn assert_declared_class(d: &Description, before: &Block<'_>, after: &Block<'_>) {
    let class = after.pointer.class;
    let declared = match d.classes {
        _ if !class.is_answered() => {
            d.kind >= FilterKind::Classification || class == before.pointer.class
        }
        Classes::Same => class == before.pointer.class,
        Classes::YesNo => class == abi::Class::YES,
        Classes::Number { range, .. } => {
            let number = if class == abi::Class::ZERO { 0 } else { class.0 };
            (range.low..=range.high).contains(&number)
        }
    };
    assert!(declared, "`{}` answers {class:?}", d.name);
}

#[test]
fn every_unanswered_block_has_a_reason() {
    assert_answers_or_reasons(corpus::generated_frames);
}

fn assert_answers_or_reasons(captured: CaptureReader) {
    let frames = [
        captured(2),
        corpus::header_case_frames(),
        corpus::truncate_to_every_length(&corpus::header_case_frames()),
    ]
    .concat();
    for d in FILTERS.iter().filter(|d| d.kind >= FilterKind::Classification) {
        let mut node = example_node(d);
        let (mut unanswered, mut taken, mut passed) = (0, 0, 0);
        run_with_observer(&mut node, &frames, usize::MAX, |node, before, after| {
            taken += u64::from(before.live_lanes().count_ones());
            passed +=
                after.iter().map(|batch| u64::from(batch.live_lanes().count_ones())).sum::<u64>();
            assert_eq!(
                taken + node.counts.made.blocks,
                passed + ended_or_held_count(&node.counts),
                "`{}`",
                d.name
            );
            let blocks = after.iter().flat_map(|batch| batch.blocks().collect::<Vec<_>>());
            unanswered += blocks.filter(|(_, b)| !b.pointer.class.is_answered()).count() as u64;
        });
        let reasons: u64 = node.unanswered_reasons().map(|(_, n)| n).sum();
        assert_eq!(
            reasons,
            unanswered,
            "`{}`: {:?}",
            d.name,
            node.unanswered_reasons().collect::<Vec<_>>()
        );
    }
}

/// Returns the number of blocks that have ended in a filter or are held by it, from the filter's
/// counters.
fn ended_or_held_count(counts: &Counts) -> u64 {
    let dropped: u64 = counts.dropped.iter().map(|amount| amount.blocks).sum();
    let lost = counts.evicted.blocks + counts.no_room.blocks;
    counts.consumed.blocks + counts.held.blocks + dropped + lost
}

#[test]
fn filters_never_panic_on_any_bytes_or_marks() {
    assert_no_panic(corpus::generated_frames);
}

fn assert_no_panic(captured: CaptureReader) {
    let shapes = [corpus::header_case_frames(), captured(1)].concat();
    let noise = corpus::noise_frames(&shapes, 4000);
    let mut random = testkit::Random::with_replayable_seed();
    for d in FILTERS {
        let mut node = example_node(d);
        run_with_observer(&mut node, &noise, usize::MAX, |_, _, _| {});
        for frames in corpus::uneven_batches(&noise[..1000]) {
            let arena = Arena::new(4 * LANES);
            let mut space = Space::new(&arena);
            let mut batch = space.batch(frames);
            for l in lanes(batch.live_lanes()) {
                let mut block = batch.block(l).narrow(random.next_u64() as u32 % 64, u32::MAX);
                let mut mark = || random.next_u64() as u16 % 200;
                block.marks.network = mark();
                block.marks.transport = mark();
                block.marks.payload = mark();
                batch.set_block(l, block);
            }
            node.process_batch(batch, &mut space, 0);
        }
        assert!(node.report().rows.len() <= 100, "`{}`", d.name);
    }
}

/// Checks CONTRACT 14: a space may provide only the head of a frame, and the answer must not depend
/// on this.
#[test]
fn filters_that_read_a_head_need_only_the_head() {
    assert_heads_suffice(corpus::generated_frames);
}

fn assert_heads_suffice(captured: CaptureReader) {
    let frames = [captured(2), corpus::header_case_frames()].concat();
    for d in FILTERS {
        let head = match d.reads {
            ReadDepth::Nothing => 0,
            ReadDepth::Head(head) => usize::from(head),
            ReadDepth::All => continue,
        };
        let (mut one, mut other) = (example_node(d), example_node(d));
        let whole = all_answers(&mut one, &frames, usize::MAX);
        let heads = all_answers(&mut other, &frames, head);
        for ((frame, whole), head) in frames.iter().zip(&whole).zip(&heads) {
            let same =
                (whole.class, whole.view, whole.length) == (head.class, head.view, head.length);
            assert!(same && whole.marks == head.marks, "`{}`: {frame:?}", d.name);
        }
        assert_eq!((one.report(), one.counts), (other.report(), other.counts), "`{}`", d.name);
    }
}

/// Marks left by another filter must lead to the same answer as a fresh parse.
#[test]
fn marks_and_a_fresh_parse_agree() {
    assert_marks_agree(corpus::generated_frames);
}

fn assert_marks_agree(captured: CaptureReader) {
    let frames = [
        captured(2),
        corpus::header_case_frames(),
        corpus::truncate_to_every_length(&corpus::header_case_frames()),
    ]
    .concat();
    let marking = filter::catalog::find("ipproto").expect("it is in the catalog");
    for d in FILTERS.iter().filter(|d| d.kind >= FilterKind::Classification) {
        let (mut first, mut marked, mut fresh) =
            (example_node(marking), example_node(d), example_node(d));
        // Held blocks must outlive the pass.
        let arena = Arena::new(8 * frames.len());
        let mut space = Space::new(&arena);
        for frames in corpus::uneven_batches(&frames) {
            let alone = fresh.process_batch(space.batch(frames), &mut space, 0);
            let between = first.process_batch(space.batch(frames), &mut space, 0);
            for (batch, alone) in between.into_iter().zip(alone) {
                let behind = marked.process_batch(batch, &mut space, 0).remove(0);
                for ((_, a), (_, b)) in alone.blocks().zip(behind.blocks()) {
                    let same = a.pointer.class == b.pointer.class && a.bytes() == b.bytes();
                    assert!(same || d.classes == Classes::Same, "`{}`: {:02x?}", d.name, a.frame);
                }
            }
        }
    }
}

/// A source that parses whole frames must record the same marks as a filter that parses only the
/// head of a frame.
#[test]
fn marks_of_a_source_agree_with_those_of_a_filter() {
    assert_recorded_layers_agree(corpus::generated_frames);
}

fn assert_recorded_layers_agree(captured: CaptureReader) {
    let shapes = corpus::header_case_frames();
    // Options of 248 bytes, repeated, before the transport header.
    let options = [&[30][..], &[0; 246]].concat();
    let deep = |times: usize| {
        let frame = testkit::Frame::ethernet().ipv6("fc00::1", "fc00::2");
        let frame = (0..times).fold(frame, |frame, _| frame.ipv6_extension(60, &options));
        Frame::new(ETHERNET, &frame.udp(1, 2, &[7; 300]))
    };
    let long = [deep(0), deep(1), deep(2), deep(4)];
    let frames =
        [captured(2), corpus::truncate_to_every_length(&shapes), shapes, long.to_vec()].concat();
    let (mut beyond, mut found) = (0, 0);
    for one in &frames {
        let arena = Arena::new(4);
        let mut block = Space::new(&arena).batch(std::slice::from_ref(one)).block(0);
        let fresh = block.marks;
        let layers = wire::layers(wire::LinkType(fresh.link), block.frame);
        let mut marks = fresh;
        filter::layers::record_layers(&mut marks, &layers);
        filter::layers::parse(&mut block);
        assert_eq!(marks, block.marks, "{one:?}");
        beyond += usize::from(layers.l4.is_some_and(|at| at > filter::layers::HEAD_SIZE));
        found += usize::from(marks.payload != abi::Marks::UNKNOWN_OFFSET);
    }
    assert!(beyond > 0 && found > 100, "{beyond} {found}");
}

#[test]
fn reports_exist_exactly_where_declared() {
    for d in FILTERS {
        let mut node = example_node(d);
        run_with_observer(&mut node, &corpus::header_case_frames(), usize::MAX, |_, _, _| {});
        assert_eq!(!node.report().rows.is_empty(), d.has_report, "`{}`", d.name);
    }
}

#[test]
fn filters_with_writable_parameters_accept_new_values() {
    for d in FILTERS {
        let words = filter::testing::example_words(d);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let given = parse_arguments(d, &words).unwrap();
        let writable = d.parameters.iter().any(|parameter| parameter.writable);
        assert_eq!(example_node(d).filter.set(&given).is_ok(), writable, "`{}`", d.name);
    }
}

#[test]
fn m1_m4_saved_state_continues_in_another_instance() {
    assert_saved_state_continues(corpus::generated_frames);
}

fn assert_saved_state_continues(captured: CaptureReader) {
    // The header cases precede and follow the move, so that every filter has state.
    let (shapes, captured) = (corpus::header_case_frames(), captured(1));
    let (early, late) = captured.split_at(captured.len() / 2);
    let mut frames = [&shapes, early, &shapes, late].concat();
    for (number, frame) in frames.iter_mut().enumerate() {
        frame.time = (number * number) as u64 * 1000;
    }
    let (before, behind) = frames.split_at(shapes.len() + early.len());
    let all_answers = |node: &mut Node, frames: &[Frame]| {
        let mut answers = Vec::new();
        for (number, frame) in frames.iter().enumerate() {
            let arena = Arena::new(64);
            let mut space = Space::new(&arena);
            let mut batch = space.batch(std::slice::from_ref(frame));
            let mut block = batch.block(0);
            // Some blocks have sessions, as after a filter that assigns sessions.
            block.context.session = number as u32 % 5;
            batch.set_block(0, block);
            for batch in node.process_batch(batch, &mut space, frame.time) {
                answers.extend(batch.blocks().map(|(_, block)| Answer::from_block(&block, None)));
            }
        }
        answers
    };
    for d in FILTERS {
        let mut stays = example_node(d);
        let mut wanted = all_answers(&mut stays, before);
        wanted.extend(all_answers(&mut stays, behind));

        let mut leaves = example_node(d);
        let mut found = all_answers(&mut leaves, before);
        let keeps = leaves.filter.state().map(|state| state.session_keys());
        match d.state.scope {
            StateScope::Nothing => assert_eq!(keeps, None, "`{}`", d.name),
            StateScope::Private => {
                assert_eq!(keeps, Some(vec![filter::PRIVATE_SESSION_KEY]), "`{}`", d.name)
            }
            StateScope::Sessions => {
                assert!(keeps.is_some_and(|keys| !keys.is_empty()), "`{}`", d.name)
            }
            StateScope::Pinned(_) => continue,
        }
        let saved = leaves.take_sessions();
        drop(leaves);
        let mut comes = example_node(d);
        comes.restore_sessions(saved).unwrap_or_else(|mistake| panic!("`{}`: {mistake}", d.name));
        found.extend(all_answers(&mut comes, behind));

        assert_eq!(comes.report(), stays.report(), "`{}`", d.name);
        assert!(found == wanted, "`{}` answers otherwise after it has moved", d.name);
    }
}

#[test]
fn corpus_filters_pass_all_checks_on_external_captures() {
    let Some(_) = testkit::corpus_captures() else { return };
    for exam in [
        assert_classes_lead_to_filters,
        assert_kinds_keep_rights,
        assert_answers_or_reasons,
        assert_no_panic,
        assert_heads_suffice,
        assert_marks_agree,
        assert_recorded_layers_agree,
        assert_saved_state_continues,
    ] {
        exam(corpus::external_frames);
    }
}

#[test]
fn check_detects_a_filter_that_exceeds_its_rights() {
    let arena = Arena::new(2);
    let space = Space::new(&arena);
    let before = space.batch(&[Frame::new(ETHERNET, b"abcdef")]).block(0);
    let count = filter::catalog::find("count").unwrap();
    let moved = before.narrow(1, 2);
    let breaks = std::panic::catch_unwind(|| assert_rights(count, &before, &moved));
    assert!(breaks.is_err(), "a statistics filter moved the view");
}

#[test]
fn class_groups_are_within_the_class_range() {
    for d in FILTERS {
        let Classes::Number { range, names, .. } = d.classes else {
            assert!(d.class_groups.is_empty(), "`{}` has groups and no classes", d.name);
            continue;
        };
        for (number, (name, group)) in d.class_groups.iter().enumerate() {
            assert!(is_name(name) && !["all", "zero"].contains(name), "`{}` |{name}", d.name);
            let within = range.low <= group.low && group.low < group.high;
            assert!(within && group.high <= range.high, "`{}` |{name}", d.name);
            let twice = d.class_groups.iter().skip(number + 1).any(|(other, _)| other == name);
            assert!(!twice && !names.iter().any(|(other, _)| other == name), "`{}` {name}", d.name);
        }
    }
}

/// The published columns of a filter must be those of its catalog entry, with unique names. Every
/// row that the filter publishes must have as many numbers as there are columns.
#[test]
fn m3_published_state_has_the_described_columns() {
    let frames = corpus::header_case_frames();
    let mut showing = 0;
    for d in FILTERS {
        let Some((whose, columns)) = d.published_state() else { continue };
        let names: Vec<String> = columns.iter().flat_map(|column| column.names()).collect();
        for (number, column) in columns.iter().enumerate() {
            assert!(is_name(column.name) && !column.help.is_empty(), "`{}` {column:?}", d.name);
            let twice = columns.iter().skip(number + 1).any(|other| other.name == column.name);
            assert!(!twice, "`{}` shows {} twice", d.name, column.name);
        }
        assert_ne!(d.state.scope, StateScope::Nothing, "`{}` shows what it does not keep", d.name);
        let mut node = example_node(d);
        run_with_observer(&mut node, &frames, usize::MAX, |_, _, _| {});
        let (mut rows, mut sessions) = (0, Vec::new());
        let state = node.filter.state().expect("what shows keeps");
        sessions.extend(state.session_keys());
        state.publish(whose, true, &mut |_, row| {
            let Some(row) = row else { return };
            assert_eq!(row.len(), names.len(), "`{}`", d.name);
            rows += 1;
        });
        let private = sessions.contains(&filter::PRIVATE_SESSION_KEY);
        let wanted = match whose {
            filter::PublishedSessions::Private => 1,
            filter::PublishedSessions::Sessions => sessions.len() - usize::from(private),
        };
        assert_eq!(rows, wanted, "`{}`: a row for each session", d.name);
        state.publish(whose, false, &mut |_, _| panic!("`{}` shows what did not change", d.name));
        showing += 1;
    }
    assert!(showing >= 10, "{showing}");
}
