//! Tests of the rules: each rule finds its violation in an otherwise clean tree, and the real tree
//! is clean.

use super::check;
use super::findings::Findings;
use super::rules::{SLEEP_EXCEPTIONS, TIME_EXCEPTIONS};
use super::tree::Tree;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A workspace tree in a temporary directory, in which a test plants violations of rules. It is
/// removed on drop.
pub(crate) struct PlantedTree(PathBuf);

impl Drop for PlantedTree {
    fn drop(&mut self) {
        // Files that remain in the temporary directory do no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl PlantedTree {
    /// Creates a tree that violates no rule: the crates `abi`, `endpoint`, `buffer`, `filter`,
    /// `engine`, `web` and `cli`, each with a root.
    pub(crate) fn new_clean() -> Self {
        static NEXT_TREE_NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NEXT_TREE_NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("streamline-tidy-{}-{number}", std::process::id());
        let tree = Self(std::env::temp_dir().join(name));
        let crates: [(&str, &[&str]); 7] = [
            ("abi", &[]),
            ("endpoint", &["abi"]),
            ("buffer", &["abi"]),
            ("filter", &["abi"]),
            ("engine", &["filter", "buffer"]),
            ("web", &["engine"]),
            ("cli", &["engine"]),
        ];
        let mut workspace = String::from("[workspace]\n[workspace.dependencies]\n");
        for (name, to) in crates {
            workspace += &format!(
                "{name} = {{ package = \"streamline-{name}\", path = \"crates/{name}\" }}\n"
            );
            tree.add_crate(name, to);
        }
        tree.write_file("Cargo.toml", workspace.as_bytes());
        for (path, _) in SLEEP_EXCEPTIONS {
            tree.write_file(path, b"//! Sleeps, as it may.\nfn f() { std::thread::sleep(T) }\n");
        }
        let sleeps = |path: &str| SLEEP_EXCEPTIONS.iter().any(|(other, _)| *other == path);
        for (path, _) in TIME_EXCEPTIONS.iter().filter(|(path, _)| !sleeps(path)) {
            tree.write_file(path, b"//! Waits, for all others.\n");
        }
        tree
    }

    fn add_crate(&self, name: &str, to: &[&str]) {
        let to: String = to.iter().map(|to| format!("{to}.workspace = true\n")).collect();
        self.write_file(
            &format!("crates/{name}/Cargo.toml"),
            format!(
                "[package]\nname = \"streamline-{name}\"\n\n[lints]\nworkspace = true\n\n\
                 [dependencies]\n{to}"
            )
            .as_bytes(),
        );
        let word = if name == "buffer" { "deny" } else { "forbid" };
        self.write_file(
            &format!("crates/{name}/src/lib.rs"),
            format!("//! The room.\n#![{word}(unsafe_code)]\n").as_bytes(),
        );
    }

    pub(crate) fn write_file(&self, path: &str, bytes: &[u8]) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    pub(crate) fn append_text(&self, path: &str, text: &str) {
        let old = fs::read_to_string(self.0.join(path)).unwrap();
        self.write_file(path, (old + text).as_bytes());
    }

    pub(crate) fn read_tree(&self) -> Tree {
        Tree::read(&self.0).unwrap()
    }

    pub(super) fn check(&self) -> Findings {
        check(&self.read_tree())
    }

    /// Runs all rules, and asserts that they find exactly one error. The error must be by the rule
    /// `rule`, begin with the path and line `place`, and contain the text `words`.
    pub(crate) fn assert_found(&self, rule: &str, place: &str, words: &str) {
        let found = self.check();
        assert_eq!(found.errors.len(), 1, "{found:#?}");
        let line = found.errors[0].to_string();
        assert_eq!(found.errors[0].rule, rule, "{line}");
        assert!(line.starts_with(place) && line.contains(words), "{line}");
    }
}

#[test]
fn workspace_has_no_finding() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let found = check(&Tree::read(root).unwrap());
    let lines: Vec<String> = found.errors.iter().map(ToString::to_string).collect();
    assert!(lines.is_empty(), "{}", lines.join("\n"));
}

#[test]
fn layer_table_covers_every_file_of_its_crates() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let errors = super::layers::layer_table_errors(&Tree::read(root).unwrap());
    assert!(errors.is_empty(), "{errors:#?}");
}

#[test]
fn planted_tree_is_clean_at_first() {
    let found = PlantedTree::new_clean().check();
    assert!(found.errors.is_empty() && found.occurrences.is_empty(), "{found:#?}");
}

#[test]
fn disallowed_dependency_is_found() {
    let tree = PlantedTree::new_clean();
    tree.add_crate("filter", &["abi", "buffer"]);
    tree.assert_found("arrows", "crates/filter/Cargo.toml:9", "`filter` takes `buffer`");
}

#[test]
fn disallowed_dependency_under_an_alias_is_found() {
    let tree = PlantedTree::new_clean();
    let line = "bytes = { package = \"streamline-buffer\", path = \"../buffer\" }\n";
    tree.append_text("crates/filter/Cargo.toml", line);
    tree.assert_found("arrows", "crates/filter/Cargo.toml:9", "`filter` takes `buffer`");
}

#[test]
fn disallowed_dependency_for_one_target_is_found() {
    let tree = PlantedTree::new_clean();
    let line = "[target.'cfg(unix)'.dependencies]\nengine.workspace = true\n";
    tree.append_text("crates/buffer/Cargo.toml", line);
    tree.assert_found("arrows", "crates/buffer/Cargo.toml:10", "`buffer` takes `engine`");
}

#[test]
fn dependency_of_the_lowest_layer_is_found() {
    let tree = PlantedTree::new_clean();
    tree.add_crate("abi", &["filter"]);
    tree.assert_found("arrows", "crates/abi/Cargo.toml:8", "no crate of the workspace");
}

#[test]
fn entry_point_that_depends_on_another_is_found() {
    let tree = PlantedTree::new_clean();
    tree.add_crate("web", &["engine", "cli"]);
    tree.assert_found("arrows", "crates/web/Cargo.toml:9", "the door `web` takes the door `cli`");
}

#[test]
fn tests_may_depend_on_lower_layers_only() {
    let tree = PlantedTree::new_clean();
    tree.append_text("crates/engine/Cargo.toml", "[dev-dependencies]\nabi.workspace = true\n");
    assert!(tree.check().errors.is_empty());
    tree.append_text("crates/buffer/Cargo.toml", "[dev-dependencies]\ncli.workspace = true\n");
    tree.assert_found("arrows", "crates/buffer/Cargo.toml:10", "tests of `buffer` take `cli`");
}

#[test]
fn product_dependency_on_a_test_crate_is_found() {
    let tree = PlantedTree::new_clean();
    tree.add_crate("testkit", &[]);
    tree.append_text(
        "crates/engine/Cargo.toml",
        "streamline-testkit = { path = \"../testkit\" }\n",
    );
    tree.assert_found("arrows", "crates/engine/Cargo.toml:10", "not part of the product");
}

#[test]
fn libc_outside_the_allowed_crates_is_found() {
    let tree = PlantedTree::new_clean();
    tree.append_text("crates/buffer/Cargo.toml", "libc = \"0.2\"\n");
    tree.assert_found("arrows", "crates/buffer/Cargo.toml:9", "takes libc");
}

#[test]
fn crate_missing_from_the_table_is_found() {
    let tree = PlantedTree::new_clean();
    tree.add_crate("cellar", &[]);
    tree.assert_found("arrows", "crates/cellar/Cargo.toml", "has no row");
}

#[test]
fn wrong_names_and_missing_lints_are_found() {
    let tree = PlantedTree::new_clean();
    tree.write_file(
        "crates/abi/Cargo.toml",
        b"[package]\nname = \"abi\"\n[lints]\nworkspace = true\n",
    );
    tree.assert_found("names", "crates/abi/Cargo.toml", "call it `streamline-abi`");
    tree.write_file("crates/abi/Cargo.toml", b"[package]\nname = \"streamline-abi\"\n");
    tree.assert_found("names", "crates/abi/Cargo.toml", "lints");
}

#[test]
fn root_without_the_unsafe_attribute_is_found() {
    let tree = PlantedTree::new_clean();
    tree.write_file(
        "crates/filter/src/lib.rs",
        b"//! Says #![forbid(unsafe_code)] in words only.\n",
    );
    tree.assert_found("fences", "crates/filter/src/lib.rs", "#![forbid(unsafe_code)]");
}

#[test]
fn unsafe_code_outside_allowed_files_is_found() {
    let tree = PlantedTree::new_clean();
    tree.write_file("xtask/ratchets", b"unsafe crates/buffer/src/signal.rs 1\n");
    tree.write_file("crates/buffer/src/signal.rs", b"//! A bell.\nfn f() { unsafe { g() } }\n");
    tree.assert_found("fences", "crates/buffer/src/signal.rs:2", "outside the fence");
}

#[test]
fn unsafe_code_in_a_test_of_a_safe_crate_is_found() {
    let tree = PlantedTree::new_clean();
    tree.write_file("xtask/ratchets", b"unsafe crates/filter/tests/a.rs 1\n");
    tree.write_file("crates/filter/tests/a.rs", b"//! A test.\nunsafe fn f() {}\n");
    tree.assert_found("fences", "crates/filter/tests/a.rs:2", "outside the fence");
}

#[test]
fn io_in_a_crate_without_io_is_found() {
    for line in [
        "use std::fs::File;",
        "use std::{fmt, thread};",
        "fn f(s: std::net::UdpSocket) {}",
        "fn f() { let t = std::time::Instant::now(); }",
        "fn f() { println!(); }",
    ] {
        let tree = PlantedTree::new_clean();
        tree.write_file("crates/filter/src/a.rs", format!("//! A.\n{line}\n").as_bytes());
        tree.assert_found("silence", "crates/filter/src/a.rs:2", "no I/O");
        tree.write_file("crates/engine/src/a.rs", format!("//! A.\n{line}\n").as_bytes());
        let tests = format!("//! A.\n#[cfg(test)]\nmod tests {{\n    {line}\n}}\n");
        tree.write_file("crates/filter/src/a.rs", tests.as_bytes());
        assert!(tree.check().errors.is_empty(), "{line}");
    }
}

#[test]
fn text_that_breaks_a_rule_is_found() {
    let long = format!("//! {}\n", "x".repeat(97));
    let many = "//! Lines.\n".repeat(801);
    let undone = concat!("//! A.\n// TO", "DO later\n");
    let unfinished = concat!("//! A.\nfn f() { unimplemented", "!() }\n");
    let nap = "//! A.\nfn f() { std::thread::sleep(T) }\n";
    let workplace = concat!("//! See /wo", "rk/main.\n");
    for (rule, place, text) in [
        ("first line", "crates/abi/src/a.rs:1", "fn f() {}\n"),
        ("columns", "crates/abi/src/a.rs:1", &long),
        ("length", "crates/abi/src/a.rs", &many),
        ("undone", "crates/abi/src/a.rs:2", undone),
        ("undone", "crates/abi/src/a.rs:2", unfinished),
        ("sleeps", "crates/engine/src/a.rs:2", nap),
        ("workplace", "crates/abi/src/a.rs:1", workplace),
        ("blanks", "crates/abi/src/a.rs:1", "//! A. \n"),
        ("blanks", "crates/abi/src/a.rs", "//! A."),
    ] {
        let tree = PlantedTree::new_clean();
        tree.write_file(place.split(':').next().unwrap_or(place), text.as_bytes());
        tree.assert_found(rule, place, "");
    }
}

#[test]
fn test_that_may_fail_by_chance_is_found() {
    let module = |code: &str| format!("//! A.\n#[cfg(test)]\nmod tests {{\n{code}\n}}\n");
    for (code, what) in [
        ("assert!(begin.elapsed() < PATIENCE, \"late\");", "how long"),
        ("assert!(spent < Duration::from_secs(90));", "how long"),
        ("const LIMIT: Duration = Duration::from_secs(5);", "5 s are too short"),
        ("std::fs::copy(built, &program).unwrap();", "copy_program"),
        (
            "let open = std::fs::read_dir(\"/proc/self/fd\").unwrap().count();",
            "the process's resources",
        ),
    ] {
        let tree = PlantedTree::new_clean();
        tree.write_file("crates/engine/src/a.rs", module(code).as_bytes());
        tree.assert_found("chance", "crates/engine/src/a.rs:4", what);
        tree.write_file("crates/engine/src/a.rs", b"//! A.\n");
        tree.write_file("crates/engine/tests/b.rs", format!("//! B.\n{code}\n").as_bytes());
        tree.assert_found("chance", "crates/engine/tests/b.rs:2", what);
    }
    for fine in [
        "#[test]\n#[ignore = \"a measurement\"]\nassert!(begin.elapsed() < PATIENCE);",
        "assert!(begin.elapsed() >= PATIENCE);",
        "const LIMIT: Duration = Duration::from_secs(20);",
        "let limit = Some(Duration::from_millis(1));",
        "testkit::run_in_separate_process(\"a\");\n\
         let open = read_dir(\"/proc/self/fd\").unwrap().count();",
    ] {
        let tree = PlantedTree::new_clean();
        tree.write_file("crates/engine/src/a.rs", module(fine).as_bytes());
        let found = tree.check();
        assert!(found.errors.is_empty(), "{fine}: {found:#?}");
    }
    let tree = PlantedTree::new_clean();
    let product = b"//! A.\nfn f() { assert!(begin.elapsed() < Duration::from_secs(1)) }\n";
    tree.write_file("crates/engine/src/a.rs", product);
    assert!(tree.check().errors.is_empty(), "the product may be in a hurry");
}

#[test]
fn large_binary_is_found() {
    let tree = PlantedTree::new_clean();
    tree.write_file("examples/a.pcap", &[0; 99_000]);
    assert!(tree.check().errors.is_empty());
    tree.write_file("examples/a.pcap", &[0; 101_000]);
    tree.assert_found("binaries", "examples/a.pcap", "101000 bytes");
}

#[test]
fn dangling_reference_in_a_document_is_found() {
    for (path, text, words) in [
        ("README.md", "See `crates/abi/src/gone.rs`.\n", "gone.rs"),
        ("README.md", "See `abi/src/{lib,gone}.rs`.\n", "abi/src/gone.rs"),
        ("README.md", "See `LICENCE.md`.\n", "LICENCE.md"),
        ("docs/notes.md", "- Where: `crates/abi/src/gone.rs`\n", "gone.rs"),
        ("docs/notes.md", "See [this](../crates/gone/).\n", "crates/gone"),
        ("docs/notes.md", "# Use\nSee [this](#usage).\n", "no heading with the anchor `#usage`"),
        ("README.md", "See [this](docs/notes.md#usage).\n", "docs/notes.md"),
        ("crates/abi/src/a.rs", "//! Reason: docs/book/decisions/0009-gone.md.\n", "0009-gone"),
    ] {
        let tree = PlantedTree::new_clean();
        tree.write_file(path, text.as_bytes());
        tree.assert_found("paths", path, words);
    }
    let tree = PlantedTree::new_clean();
    tree.write_file("docs/book/SUMMARY.md", b"- [Tour](01-tour.md)\n");
    tree.write_file("docs/book/01-tour.md", b"See [this](../../Cargo.toml).\n");
    tree.assert_found("paths", "docs/book/01-tour.md", "out of the book");
    let tree = PlantedTree::new_clean();
    tree.write_file("docs/notes.md", b"The capture `tests/a.rs` is a file of the user.\n");
    assert!(tree.check().errors.is_empty(), "{:#?}", tree.check());
    let tree = PlantedTree::new_clean();
    let text = "`crates/abi/src/lib.rs`, `abi/src`, `tcp/udp`, `crates/<name>`, `a.rs`\n\
                ```\n`crates/gone`\n```\n";
    tree.write_file("README.md", text.as_bytes());
    assert!(tree.check().errors.is_empty(), "{:#?}", tree.check());
}

#[test]
fn heading_anchors_match_the_published_book() {
    let text = "# The `sh` verb, *again*\n```\n# a comment\n```\n## [JSON](#limits) & text\n\
                ### Name_of-a thing?\n## Limits\n## Limits\n#no heading\n";
    let anchors = ["the-sh-verb-again", "json--text", "name_of-a-thing", "limits", "limits-1"];
    assert_eq!(super::links::heading_anchors(text), anchors);
    let tree = PlantedTree::new_clean();
    tree.write_file("docs/notes.md", text.as_bytes());
    tree.write_file("README.md", b"See [this](docs/notes.md#limits-1), [that](#here).\n# Here\n");
    assert!(tree.check().errors.is_empty(), "{:#?}", tree.check());
}

#[test]
fn page_missing_from_its_index_is_found() {
    let tree = PlantedTree::new_clean();
    tree.write_file("docs/book/SUMMARY.md", b"- [Tour](01-tour.md)\n");
    tree.write_file("docs/book/01-tour.md", b"# Tour\n");
    assert!(tree.check().errors.is_empty(), "{:#?}", tree.check());
    tree.write_file("docs/book/02-lost.md", b"# Lost\n");
    tree.assert_found("index", "docs/book/02-lost.md", "does not list");
    tree.write_file("docs/book/SUMMARY.md", b"[Tour](01-tour.md) [Lost](02-lost.md)\n");
    tree.write_file("docs/book/jobs/lost.md", b"# Lost\n");
    tree.assert_found("index", "docs/book/jobs/lost.md", "does not list");
}

#[test]
fn filter_missing_from_the_catalog_is_found() {
    let tree = PlantedTree::new_clean();
    let filter = b"//! `dport`.\npub const DPORT: Description = Description { ..EMPTY };\n";
    tree.write_file("crates/filter/src/transport/dport.rs", filter);
    tree.write_file("crates/filter/src/catalog.rs", b"//! The list.\n// transport::dport::DPORT\n");
    tree.assert_found("catalog", "crates/filter/src/transport/dport.rs:2", "`dport::DPORT`");
    tree.append_text(
        "crates/filter/src/catalog.rs",
        "const F: &[D] = &[&transport::dport::DPORT];\n",
    );
    assert!(tree.check().errors.is_empty());
}

#[test]
fn example_without_a_comment_is_found() {
    let tree = PlantedTree::new_clean();
    tree.write_file("examples/a.pipe", b"replay a.pcap | count\n");
    tree.assert_found("examples", "examples/a.pipe:1", "say what the example shows");
    tree.write_file("examples/a.pipe", b"# Counts.\n");
    tree.assert_found("examples", "examples/a.pipe", "no request");
}

#[test]
fn capability_without_a_test_is_found() {
    const PAGE_PATH: &str = "docs/book/capabilities.md";
    let page = |rows: &str| {
        let tree = PlantedTree::new_clean();
        tree.write_file("docs/book/SUMMARY.md", b"- [Capabilities](capabilities.md)\n");
        tree.write_file("crates/abi/tests/a.rs", b"//! Shows: FEATURES D9, E1; and more.\n");
        tree.write_file("crates/abi/tests/b.rs", b"//! Tests.\nfn k4_t10_it_counts() {}\n");
        tree.write_file(
            PAGE_PATH,
            format!("| # | what | state | where |\n|---|---|---|---|\n{rows}").as_bytes(),
        );
        tree
    };
    const CAPABILITY_ROWS: &str = "| D9 | pipes | yes | `crates/abi/tests/a.rs` |\n\
                       | E1 | splices | in part: no more | `crates/abi/tests/a.rs` |\n\
                       | K4 | counts | yes | `crates/abi/tests/b.rs`: it counts |\n";
    let whole = page(&format!("{CAPABILITY_ROWS}| K5 | bounds | no | |\n"));
    assert!(whole.check().errors.is_empty(), "{:#?}", whole.check());
    for (row, words) in [
        ("| K5 | bounds | yes | |", "K5: a state other than `no` has paths"),
        ("| K5 | bounds | no | `crates/abi/tests/a.rs` |", "`no` has none"),
        ("| K5 | bounds | soon | |", "the state is `yes`"),
        ("| K5 | bounds | yes | `crates/abi/tests/b.rs` |", "nothing in `crates/abi/tests/b.rs`"),
        ("| K5 | bounds | yes | `crates/abi/tests/gone.rs` |", "gone.rs` bears this number"),
        ("| K4 | counts | no | |", "K4 stands here twice"),
    ] {
        page(&format!("{CAPABILITY_ROWS}{row}\n")).assert_found("capabilities", PAGE_PATH, words);
    }
    let tree = page(
        &CAPABILITY_ROWS
            .replace("| E1 | splices | in part: no more | `crates/abi/tests/a.rs` |\n", ""),
    );
    tree.assert_found("capabilities", "crates/abi/tests/a.rs", "E1 is named here");
}
