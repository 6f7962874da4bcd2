//! The rules for dependencies between the files of a crate: no cycles, and no dependency on a file
//! in a higher layer.
//!
//! Input: the file dependencies of [`super::modules`], and the table
//! [`MODULE_LAYERS`](rules::MODULE_LAYERS). Output: the occurrences that count against the ratchets
//! `cycles` and `upward`.

use super::cycles::{CYCLE_FILES_MAX, describe_shortest_cycle, file_cycles};
use super::findings::{Findings, Occurrence};
use super::modules::{FileDependencies, file_dependencies};
use super::rules;
use super::tree::Tree;
use std::fmt::Write as _;

/// Counts the cycles and upward dependencies of every crate.
pub(super) fn check(tree: &Tree, found: &mut Findings) {
    for (name, manifest) in tree.manifests() {
        let base = manifest.path.trim_end_matches("Cargo.toml");
        let dependencies = file_dependencies(tree, base);
        count_cycles(&name, base, &dependencies, found);
        if let Some((_, layers)) = rules::MODULE_LAYERS.iter().find(|(known, _)| *known == name) {
            count_upward_dependencies(&name, base, &dependencies, layers, found);
        }
    }
}

fn count_cycles(name: &str, base: &str, dependencies: &FileDependencies, found: &mut Findings) {
    for component in file_cycles(dependencies).iter().filter(|c| c.files.len() > CYCLE_FILES_MAX) {
        let size = component.files.len();
        let cycle = describe_shortest_cycle(dependencies, component);
        found.occurrences.push(Occurrence {
            rule: "cycles",
            key: name.to_owned(),
            path: format!("{base}src"),
            line: None,
            weight: size,
            what: format!(
                "{size} files need each other, more than {CYCLE_FILES_MAX}; a shortest cycle of \
                 them: {cycle}; `cargo xtask tidy --arrows {name}` shows the others"
            ),
        });
    }
}

fn count_upward_dependencies(
    name: &str,
    base: &str,
    dependencies: &FileDependencies,
    layers: &[&[&str]],
    found: &mut Findings,
) {
    for (from, edges) in dependencies.edges.iter().enumerate() {
        for (to, (path, line)) in edges {
            let (from, to) = (&dependencies.files[from], &dependencies.files[*to]);
            let (Some(low), Some(high)) = (layer_of_file(layers, from), layer_of_file(layers, to))
            else {
                continue;
            };
            if low < high {
                found.occurrences.push(Occurrence {
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

/// Returns the errors in [`MODULE_LAYERS`](rules::LAYERS): modules that do not exist, and files of
/// listed crates that no module of the table contains. Roots are exempt, because they export items
/// of all layers.
#[cfg(test)]
pub(super) fn layer_table_errors(tree: &Tree) -> Vec<String> {
    let mut errors = Vec::new();
    for (name, manifest) in tree.manifests() {
        let Some((_, layers)) = rules::MODULE_LAYERS.iter().find(|(known, _)| *known == name)
        else {
            continue;
        };
        let files = file_dependencies(tree, manifest.path.trim_end_matches("Cargo.toml")).files;
        for module in layers.iter().copied().flatten() {
            if !files.iter().any(|file| layer_of_file(&[&[module]], file).is_some()) {
                errors.push(format!("{name}: `{module}` does not exist"));
            }
        }
        let is_missing =
            |file: &&String| *file != "lib.rs" && layer_of_file(layers, file).is_none();
        errors.extend(files.iter().filter(is_missing).map(|file| format!("{name}: {file}")));
    }
    errors
}

/// Returns the index of the layer to which a file belongs, or `None` if the table does not contain
/// it. If several module paths in the table contain the file, the longest path determines the
/// layer.
fn layer_of_file(layers: &[&[&str]], file: &str) -> Option<usize> {
    let module = file.trim_end_matches(".rs").trim_end_matches("/mod");
    let is_in = |path: &str| {
        module.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let modules = layers
        .iter()
        .enumerate()
        .flat_map(|(at, modules)| modules.iter().map(move |path| (at, path)));
    modules.filter(|(_, path)| is_in(path)).max_by_key(|(_, path)| path.len()).map(|(at, _)| at)
}

/// Returns the file dependencies of a crate, one per line; a `*` marks a dependency within a set of
/// more than three files that depend on each other. Returns `None` for an unknown crate.
pub(super) fn dependency_table(tree: &Tree, name: &str) -> Option<String> {
    let (_, manifest) = tree.manifests().find(|(known, _)| known == name)?;
    let dependencies = file_dependencies(tree, manifest.path.trim_end_matches("Cargo.toml"));
    let components = file_cycles(&dependencies);
    let is_within = |from: usize, to: usize| {
        let mut large = components.iter().filter(|c| c.files.len() > CYCLE_FILES_MAX);
        large.any(|c| c.files.contains(&from) && c.files.contains(&to))
    };
    let mut text = String::new();
    for (from, edges) in dependencies.edges.iter().enumerate() {
        for (&to, (path, line)) in edges {
            let mark = if is_within(from, to) { '*' } else { ' ' };
            let (from, to) = (&dependencies.files[from], &dependencies.files[to]);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{mark} {from}:{line} → {to} ({path})");
        }
    }
    Some(text)
}
