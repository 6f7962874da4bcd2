//! Arrows between the files of a crate: the ratchets of cycles, and of arrows that point up.
//!
//! In: the arrows of [`super::modules`], and the table [`LAYERS`]. Out: what counts against the
//! ratchets `cycles` and `upward`.

use super::cycles::{CYCLE_MAX, components, shortest};
use super::findings::{Counted, Findings};
use super::modules::{FileArrows, arrows};
use super::rules;
use super::tree::Tree;
use std::fmt::Write as _;

/// Counts the cycles and upward arrows of every crate.
pub(super) fn check(tree: &Tree, found: &mut Findings) {
    for (name, manifest) in tree.manifests() {
        let base = manifest.path.trim_end_matches("Cargo.toml");
        let arrows = arrows(tree, base);
        cycles(&name, base, &arrows, found);
        if let Some((_, layers)) = rules::LAYERS.iter().find(|(known, _)| *known == name) {
            upward(&name, base, &arrows, layers, found);
        }
    }
}

fn cycles(name: &str, base: &str, arrows: &FileArrows, found: &mut Findings) {
    for component in components(arrows).iter().filter(|c| c.files.len() > CYCLE_MAX) {
        let size = component.files.len();
        let cycle = shortest(arrows, component);
        found.counted.push(Counted {
            rule: "cycles",
            key: name.to_owned(),
            path: format!("{base}src"),
            line: None,
            weight: size,
            what: format!(
                "{size} files need each other, more than {CYCLE_MAX}; a shortest cycle of them: \
                 {cycle}; `cargo xtask tidy --arrows {name}` shows the others"
            ),
        });
    }
}

fn upward(name: &str, base: &str, arrows: &FileArrows, layers: &[&[&str]], found: &mut Findings) {
    for (from, edges) in arrows.edges.iter().enumerate() {
        for (to, (path, line)) in edges {
            let (from, to) = (&arrows.files[from], &arrows.files[*to]);
            let (Some(low), Some(high)) = (layer(layers, from), layer(layers, to)) else {
                continue;
            };
            if low < high {
                found.counted.push(Counted {
                    rule: "upward",
                    key: name.to_owned(),
                    path: format!("{base}src/{from}"),
                    line: Some(*line),
                    weight: 1,
                    what: format!("takes `{path}` of {to}, which is in a higher layer"),
                });
            }
        }
    }
}

/// Returns the layer of a file: that of the longest module path that contains the file; `None` if
/// the table has none.
fn layer(layers: &[&[&str]], file: &str) -> Option<usize> {
    let module = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let is_in = |room: &str| {
        module.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let rooms =
        layers.iter().enumerate().flat_map(|(at, rooms)| rooms.iter().map(move |r| (at, r)));
    rooms.filter(|(_, room)| is_in(room)).max_by_key(|(_, room)| room.len()).map(|(at, _)| at)
}

/// Lists the arrows of a crate; marks those in a cycle of more than three files with `*`. Returns
/// `None` for an unknown crate.
pub(super) fn table(tree: &Tree, name: &str) -> Option<String> {
    let (_, manifest) = tree.manifests().find(|(known, _)| known == name)?;
    let arrows = arrows(tree, manifest.path.trim_end_matches("Cargo.toml"));
    let components = components(&arrows);
    let is_within = |from: usize, to: usize| {
        let mut large = components.iter().filter(|c| c.files.len() > CYCLE_MAX);
        large.any(|c| c.files.contains(&from) && c.files.contains(&to))
    };
    let mut text = String::new();
    for (from, edges) in arrows.edges.iter().enumerate() {
        for (&to, (path, line)) in edges {
            let mark = if is_within(from, to) { '*' } else { ' ' };
            let (from, to) = (&arrows.files[from], &arrows.files[to]);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{mark} {from}:{line} → {to} ({path})");
        }
    }
    Some(text)
}
