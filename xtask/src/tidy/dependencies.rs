//! Dependencies between crates, and the entries that every manifest has.

use super::findings::{Finding, Findings};
use super::manifest::{self, Dependency, DependencyUse, Manifest};
use super::rules::{
    self, AllowedDependencies, ENTRY_POINT_LAYER, LIBC_CRATES, OUTSIDE_PRODUCT_LAYER,
    PACKAGE_PREFIX, UNPREFIXED_PACKAGES, WorkspaceCrate,
};
use super::tree::{File, Tree};

pub(super) fn check(tree: &Tree, found: &mut Findings) {
    let aliases =
        tree.file("Cargo.toml").map(|f| manifest::workspace_aliases(&f.text)).unwrap_or_default();
    let alias = |name: &str| {
        let known = aliases.iter().find(|(given, _)| given == name);
        known.map_or_else(|| name.to_owned(), |(_, package)| package.clone())
    };
    for (folder, file) in tree.manifests() {
        let manifest = manifest::parse_manifest(&file.text, alias);
        check_crate_names(&folder, file, &manifest, found);
        match rules::find_crate(&folder) {
            Some(krate) => check_dependencies(krate, file, &manifest, found),
            None => found.push(Finding::in_file(
                "arrows",
                file,
                format!("the crate `{folder}` has no row in CRATES of xtask/src/tidy/rules.rs"),
            )),
        }
    }
}

fn check_crate_names(folder: &str, file: &File, manifest: &Manifest, found: &mut Findings) {
    let wanted = match folder {
        folder if UNPREFIXED_PACKAGES.contains(&folder) => folder.to_owned(),
        folder => format!("{PACKAGE_PREFIX}{folder}"),
    };
    if manifest.name != wanted {
        let what = format!("the package is called `{}`; call it `{wanted}`", manifest.name);
        found.push(Finding::in_file("names", file, what));
    }
    if !manifest.lints {
        let what = "the lints of the workspace do not hold; add `[lints]` with `workspace = true`";
        found.push(Finding::in_file("names", file, what));
    }
}

fn check_dependencies(
    krate: &WorkspaceCrate,
    file: &File,
    manifest: &Manifest,
    found: &mut Findings,
) {
    for dependency in &manifest.dependencies {
        if let Some(what) = dependency_violation(krate, dependency) {
            found.push(Finding::at_line("arrows", file, dependency.line, what));
        }
    }
}

/// Returns the reason why a crate may not have a dependency, or `None` if the dependency is
/// allowed.
fn dependency_violation(krate: &WorkspaceCrate, dependency: &Dependency) -> Option<String> {
    let from = krate.name;
    let name = dependency.name.as_str();
    if name == "libc" && !LIBC_CRATES.contains(&from) {
        return Some(format!("`{from}` takes libc; only {} may", LIBC_CRATES.join(", ")));
    }
    let to = rules::find_crate(name)?;
    match (krate.allowed, dependency.used) {
        (AllowedDependencies::Any, _) => None,
        (AllowedDependencies::Only(allowed), _) if allowed.contains(&name) => None,
        (_, DependencyUse::Tests) if name == "testkit" => None,
        (_, DependencyUse::Tests) if to.layer <= krate.layer && to.layer < ENTRY_POINT_LAYER => {
            None
        }
        (_, DependencyUse::Tests) => {
            Some(format!("tests of `{from}` take `{name}`, which is above it"))
        }
        (_, DependencyUse::Product) if to.layer == OUTSIDE_PRODUCT_LAYER => {
            Some(format!("`{from}` takes `{name}`, which is not part of the product"))
        }
        (_, DependencyUse::Product)
            if to.layer == ENTRY_POINT_LAYER && krate.layer == ENTRY_POINT_LAYER =>
        {
            Some(format!("the door `{from}` takes the door `{name}`"))
        }
        (AllowedDependencies::Only([]), DependencyUse::Product) => {
            Some(format!("`{from}` takes `{name}`; it may take no crate of the workspace"))
        }
        (AllowedDependencies::Only(allowed), DependencyUse::Product) => {
            Some(format!("`{from}` takes `{name}`; it may take {}", allowed.join(", ")))
        }
    }
}
