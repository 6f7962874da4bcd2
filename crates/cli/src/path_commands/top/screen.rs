//! Layout of the screen of one path: the nodes or the graph with rates, the rings, and the losses
//! by location. The layout fits on a screen of 80×24 characters.

use super::super::connect::{format_age, user_name};
use super::super::rates::format_rate_short;
use super::super::shared_programs::program_sentence;
use super::graph::graph_rows;
use super::snapshot::{Loss, NamedRing, NodeRates, NodeRetainedFrames, RingFill, Snapshot};
use super::view::{NodeOrder, ViewChoices};
use super::widgets::{
    color_style, highlight_row, input_line, key_lines, right_aligned, section_paragraph, title_row,
};
use crate::screen::style_graph_row;
use crate::{progress, terminal};
use member::client::mask_hidden_characters;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table};

/// Maximum number of lines in each of two sections of the screen: rings, and losses.
const SECTION_LINES_MAX: usize = 4;
/// Width of the bar that shows the fill of a ring, in columns.
const BAR_WIDTH: usize = 20;

/// Number of lines for the details of a node.
const DETAIL_LINES: usize = 5;

/// Draws the screen of a path. `view` contains the choices of the user, or is `None` if the screen
/// is not interactive.
pub(super) fn draw_screen(frame: &mut Frame<'_>, snapshot: &Snapshot, view: Option<&ViewChoices>) {
    let fixed = ViewChoices::default();
    let is_interactive = view.is_some();
    let view = view.unwrap_or(&fixed);
    let nodes = view.nodes(snapshot);
    let selected = view.list.selected_row_index(nodes.len());
    let details = nodes.get(selected).filter(|_| view.is_open);
    let rings = match details {
        Some(_) => DETAIL_LINES,
        None => detail_line_count(snapshot).min(SECTION_LINES_MAX),
    };
    let lost = snapshot.lost.len().clamp(1, SECTION_LINES_MAX);
    let rows = |n: usize| u16::try_from(n).unwrap_or(u16::MAX);
    let areas = Layout::vertical([
        Constraint::Length(3),
        Constraint::Min(3),
        Constraint::Length(if rings > 0 { rows(rings + 1) } else { 0 }),
        Constraint::Length(rows(lost + 1)),
        Constraint::Length(1),
    ]);
    let [head, nodes_area, ring, loss, foot] = areas.areas(frame.area());
    frame.render_widget(Paragraph::new(heading_lines(snapshot, head)), head);
    match view.list.shows_help {
        true => frame.render_widget(section_paragraph("keys", help_lines()), nodes_area),
        false if view.shows_graph => {
            let rows = graph_rows(snapshot);
            // The arrow keys scroll by one node at a time; each node has at least one row.
            let target_row = selected * rows.len() / nodes.len().max(1);
            let first = target_row.min(rows.len().saturating_sub(usize::from(nodes_area.height)));
            let lines: Vec<Line<'_>> = {
                let has_colour = terminal::can_color_stdout();
                rows.iter().skip(first).map(|row| style_graph_row(row, has_colour)).collect()
            };
            frame.render_widget(Paragraph::new(lines), nodes_area);
        }
        false => {
            let height = usize::from(nodes_area.height.saturating_sub(1));
            let first = view.list.first_visible_row(nodes.len(), height);
            let selected = is_interactive.then_some(selected);
            let table = node_table(&nodes, view.order, (first, selected));
            frame.render_widget(table, nodes_area);
        }
    }
    if let Some(node) = details {
        frame.render_widget(section_paragraph("node", detail_lines(snapshot, node)), ring);
    } else if rings > 0 {
        let lines = snapshot.rings.iter().map(ring_line);
        let lines = lines.chain(snapshot.reader_rings.iter().map(sink_ring_line));
        let lines = lines.chain(snapshot.writer_rings.iter().map(source_ring_line));
        let lines = lines.chain(snapshot.kept.iter().map(retained_frames_line));
        let lines: Vec<Line<'_>> = lines.take(SECTION_LINES_MAX).collect();
        frame.render_widget(section_paragraph("rings", lines), ring);
    }
    let lines = match snapshot.lost.is_empty() {
        true => vec![Line::from("  nothing")],
        false => snapshot.lost.iter().take(SECTION_LINES_MAX).map(loss_line).collect(),
    };
    frame.render_widget(section_paragraph("lost", lines), loss);
    let line = input_line(&view.list).unwrap_or_else(|| status_line(snapshot));
    frame.render_widget(Paragraph::new(line), foot);
}

fn heading_lines(snapshot: &Snapshot, area: Rect) -> Vec<Line<'static>> {
    let path = &snapshot.path;
    let name = path
        .name
        .as_deref()
        .map_or_else(String::new, |name| format!(" {}", mask_hidden_characters(name)));
    let lost: u64 = snapshot.lost.iter().map(|loss| loss.blocks).sum();
    let first = format!(
        "path {}{name} of {}   {}   {} blocks/s   {}/s   {} blocks   lost {lost}",
        path.number,
        user_name(snapshot.uid),
        format_age(snapshot.elapsed_ns / 1_000_000_000),
        format_rate_short(snapshot.rate.blocks),
        progress::format_bytes_short(snapshot.rate.bytes as u64),
        snapshot.given.blocks,
    );
    let line: String = mask_hidden_characters(&path.line.replace('\n', " "));
    let line: String = line.chars().take(usize::from(area.width)).collect();
    let mut lines =
        vec![Line::styled(first, Style::new().add_modifier(Modifier::BOLD)), Line::from(line)];
    lines.extend(snapshot.kernel.first().map(|program| Line::from(program_sentence(program))));
    lines
}

/// Formats the nodes from index `first` on as a table. Highlights the node at index `selected`.
fn node_table(
    nodes: &[&NodeRates],
    order: NodeOrder,
    (first, selected): (usize, Option<usize>),
) -> Table<'static> {
    let head = ["filter", "runs in", "blocks/s", "bytes/s", "ns/block", "held", "lost"];
    let rows = nodes.iter().enumerate().skip(first).map(|(number, node)| {
        highlight_row(node_row(node, order == NodeOrder::Graph), selected == Some(number))
    });
    let widths = [
        Constraint::Min(20),
        Constraint::Length(14),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(9),
        Constraint::Length(6),
        Constraint::Length(6),
    ];
    let head = title_row(&head, |column| column > 1, order.column_title());
    Table::new(rows, widths).header(head).column_spacing(1)
}

/// Formats a node, indented by its depth if `is_indented` is true.
fn node_row(node_rates: &NodeRates, is_indented: bool) -> Row<'static> {
    let label = match node_rates.classes.as_str() {
        "" => String::new(),
        classes => format!("|{classes} "),
    };
    let name = format!(
        "{}{}{}",
        "  ".repeat(if is_indented { node_rates.depth.min(8) } else { 0 }),
        mask_hidden_characters(&label),
        mask_hidden_characters(&node_rates.name)
    );
    let time = node_rates.block_ns.map_or_else(|| "-".to_owned(), format_rate_short);
    let dash = |n: u64| if n == 0 { "-".to_owned() } else { format_rate_short(n as f64) };
    let lost = match node_rates.lost {
        0 => right_aligned("-".to_owned()),
        n => right_aligned(format_rate_short(n as f64)).style(color_style(Color::Red)),
    };
    Row::new([
        Cell::from(name),
        Cell::from(mask_hidden_characters(&node_rates.space)),
        right_aligned(format_rate_short(node_rates.rate.blocks)),
        right_aligned(progress::format_bytes_short(node_rates.rate.bytes as u64)),
        right_aligned(time),
        right_aligned(dash(node_rates.held)),
        lost,
    ])
}

/// Formats the fill level of a ring, such as `  rx → pcap  ████░░░░  12 % of 1024 (pressure 9 % is
/// below 25 %)`.
fn ring_line(ring: &RingFill) -> Line<'static> {
    let room = ring.room.max(1);
    let part = ring.fill.min(room) as f64 / room as f64;
    let full = (part * BAR_WIDTH as f64).round() as usize;
    let bar = format!("{}{}", "█".repeat(full), "░".repeat(BAR_WIDTH - full.min(BAR_WIDTH)));
    let (from, to) = (mask_hidden_characters(&ring.from), mask_hidden_characters(&ring.to));
    let because = format_resize_reason(&ring.because);
    let text = format!("  {from} → {to}  {bar}  {:.0} % of {}{because}", part * 100.0, ring.room);
    let colour = if part > 0.9 { color_style(Color::Red) } else { Style::new() };
    Line::styled(text, colour)
}

/// Formats the ring of a sink, such as `  user → its readers  2.1 MB (the ring was full)`.
fn sink_ring_line(sink: &NamedRing) -> Line<'static> {
    let (from, size) =
        (mask_hidden_characters(&sink.from), progress::format_bytes_short(sink.ring.bytes));
    Line::from(format!(
        "  {from} → its readers  {size}{}",
        format_resize_reason(&sink.ring.because)
    ))
}

/// Formats the rings of a source's writers, such as `  its writers → buffer  2.1 MB`.
fn source_ring_line(source: &NamedRing) -> Line<'static> {
    let (to, size) =
        (mask_hidden_characters(&source.from), progress::format_bytes_short(source.ring.bytes));
    Line::from(format!(
        "  its writers → {to}  {size}{}",
        format_resize_reason(&source.ring.because)
    ))
}

/// Formats the amount of past frames that a node retains, and the memory that they occupy, such as
/// ` freeze keeps 312 MB in 64 MB, 240000 frames`.
fn retained_frames_line(past: &NodeRetainedFrames) -> Line<'static> {
    let NodeRetainedFrames { node, kept } = past;
    let (bytes, stored) =
        (progress::format_bytes_short(kept.bytes), progress::format_bytes_short(kept.stored));
    let node = mask_hidden_characters(node);
    Line::from(format!("  {node} keeps {bytes} in {stored}, {} frames", kept.blocks))
}

/// Returns the number of lines that the screen needs for rings and past frames.
fn detail_line_count(snapshot: &Snapshot) -> usize {
    let named = snapshot.reader_rings.len() + snapshot.writer_rings.len();
    snapshot.rings.len() + named + snapshot.kept.len()
}

/// Formats the reason for the last change of a ring's size. Returns an empty string if the size has
/// never changed.
fn format_resize_reason(because: &str) -> String {
    match because {
        "" => String::new(),
        because => format!(" ({})", mask_hidden_characters(because)),
    }
}

fn loss_line(loss: &Loss) -> Line<'static> {
    let fresh = if loss.fresh > 0 { format!("  +{}", loss.fresh) } else { String::new() };
    let text = format!("  {} {}{fresh}", loss.blocks, mask_hidden_characters(&loss.place));
    Line::styled(text, color_style(Color::Red))
}

/// Summary of the keys, at the bottom of an interactive screen.
pub(super) const KEY_HELP: &str =
    "? help, q quits, arrows move, g graph, s sorts, / filters, Enter opens";

/// Returns lines that list all keys of the screen of a path, with their effects.
fn help_lines() -> Vec<Line<'static>> {
    key_lines(&[
        ("arrows, j k", "select a node; Home and End, the first and the last"),
        ("Enter", "open the selected node: its counters, and the arcs that lead to it"),
        ("g", "show the graph with its rates, by space, or the table; arrows scroll"),
        ("s", "sort by the next column: graph, blocks/s, bytes/s, ns/block, held, lost"),
        ("/", "show only nodes whose name or space contains a text; Enter ends it"),
        ("Esc", "close the help, node or graph, then clear the filter, then quit"),
        ("?", "open and close this help"),
        ("q, ^C", "quit; the path runs on"),
    ])
}

/// Formats all counters of a node, and its incoming and outgoing arcs.
fn detail_lines(snapshot: &Snapshot, node: &NodeRates) -> Vec<Line<'static>> {
    let at = snapshot.path.nodes.iter().position(|known| known.name == node.name);
    let name = |node: usize| {
        snapshot
            .path
            .nodes
            .get(node)
            .map_or_else(String::new, |node| mask_hidden_characters(&node.name))
    };
    let links = |of: fn(&member::protocol::Link) -> (usize, usize)| -> String {
        let ends = snapshot.path.links.iter().filter_map(|link| {
            let (own, other) = of(link);
            let classes = if link.classes.is_empty() { "" } else { " |" };
            (Some(own) == at).then(|| format!("{}{classes}{}", name(other), link.classes))
        });
        let ends: Vec<String> = ends.collect();
        if ends.is_empty() { "-".to_owned() } else { mask_hidden_characters(&ends.join(", ")) }
    };
    let time = node.block_ns.map_or_else(|| "not measured".to_owned(), |ns| format!("{ns:.1} ns"));
    vec![
        Line::from(format!(
            "  {} in {}: {} blocks, {} bytes in all",
            mask_hidden_characters(&node.name),
            mask_hidden_characters(&node.space),
            node.taken.blocks,
            node.taken.bytes
        )),
        Line::from(format!("  time per block {time}, held {}, lost {}", node.held, node.lost)),
        Line::from(format!("  from {}", links(|link| (link.to, link.from)))),
        Line::from(format!("  to   {}", links(|link| (link.from, link.to)))),
    ]
}

fn status_line(snapshot: &Snapshot) -> Line<'static> {
    let dim = Style::new().add_modifier(Modifier::DIM);
    match (snapshot.silent_space.first(), &snapshot.latency_note, &snapshot.adapted) {
        (Some(late), ..) => Line::styled(
            format!("late: {}", mask_hidden_characters(late)),
            color_style(Color::Yellow),
        ),
        (None, Some(behind), _) => {
            Line::styled(mask_hidden_characters(behind), color_style(Color::Red))
        }
        (None, None, Some(adapted)) => {
            Line::styled(format!("adapted: {}", mask_hidden_characters(adapted)), dim)
        }
        (None, None, None) => Line::styled(KEY_HELP, dim),
    }
}
