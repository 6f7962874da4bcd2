//! Tests of the dependencies between files. A dependency is on the file that defines the item, in
//! whatever form the code names the item.

use super::super::tests::PlantedTree;
use super::file_dependencies;

/// Returns the dependencies of a crate with the given files under `src`, as lines `from → to`.
fn edges(files: &[(&str, &str)]) -> Vec<String> {
    let tree = PlantedTree::new_clean();
    for (path, text) in files {
        tree.write_file(&format!("crates/engine/src/{path}"), text.as_bytes());
    }
    let dependencies = file_dependencies(&tree.read_tree(), "crates/engine/");
    let mut found = Vec::new();
    for (from, edges) in dependencies.edges.iter().enumerate() {
        for to in edges.keys() {
            found.push(format!("{} → {}", dependencies.files[from], dependencies.files[*to]));
        }
    }
    found.sort();
    found
}

#[test]
fn every_form_of_a_name_is_followed_to_its_definition() {
    let root = "mod a; mod b; pub use b::inner::Deep; pub mod prelude { pub use crate::b::*; }";
    let b = "pub mod inner; pub use inner::Deep as Renamed; pub struct Plain; pub fn f() {}";
    let inner = "pub struct Deep; impl Deep { pub fn new() {} } pub enum E { X }";
    for (a, to) in [
        ("use crate::Deep;", "b/inner.rs"),
        ("use crate::b::{self, Renamed};", "b/inner.rs"),
        ("use super::b::Plain as P;", "b.rs"),
        ("use crate::b; fn g() { b::f() }", "b.rs"),
        ("use crate::b; fn g() { b::inner::Deep::new() }", "b/inner.rs"),
        ("fn g() { crate::b::f() }", "b.rs"),
        ("fn g() -> super::b::inner::E { super::b::inner::E::X }", "b/inner.rs"),
        ("use crate::prelude::*; fn g(_: Plain) {}", "b.rs"),
        ("use crate::prelude::*; fn g(_: Renamed) {}", "b/inner.rs"),
        ("use crate::b::inner::E::*; fn g() {}", "b/inner.rs"),
        ("fn g() { use crate::b::Plain; }", "b.rs"),
        ("fn g() { println!(\"{}\", crate::b::f()) }", "b.rs"),
        ("mod x { use super::super::b::Plain; }", "b.rs"),
    ] {
        let found = edges(&[("lib.rs", root), ("a.rs", a), ("b.rs", b), ("b/inner.rs", inner)]);
        assert_eq!(found, [format!("a.rs → {to}")], "{a}");
    }
}

#[test]
fn tests_comments_other_crates_and_variables_are_ignored() {
    let root = "mod a; mod b;";
    let b = "pub struct Plain; pub fn f() {}";
    for a in [
        "#[cfg(test)] mod tests { use crate::b::Plain; }",
        "#[cfg(test)] use crate::b::Plain;",
        "/// See [`crate::b::Plain`].\nfn g() {}",
        "use std::fmt; use ::b::Plain; fn g() { fmt::f() }",
        "use crate::b; fn g(b: u8) { let f = b; x.f(); }",
        "pub use crate::b::Plain;",
    ] {
        assert!(edges(&[("lib.rs", root), ("a.rs", a), ("b.rs", b)]).is_empty(), "{a}");
    }
}
