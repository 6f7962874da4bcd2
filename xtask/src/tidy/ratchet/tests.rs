//! Tests of the ratchets: each rule with a ceiling counts the right occurrences, and a ceiling
//! never rises.

use super::super::check;
use super::super::tests::PlantedTree;
use super::{
    CEILINGS_PATH, format_report, list_occurrences, lowered_ceilings, product_size_ceiling,
};

const PLANTED_FILE: &str = "crates/engine/src/a.rs";

/// Plants a file in a clean tree. Asserts that the rules find exactly one error, which is by the
/// rule `rule` and contains `words`.
fn assert_found(rule: &str, path: &str, text: &str, words: &str) {
    let tree = PlantedTree::new_clean();
    tree.write_file("xtask/retired", b"# Words.\ntold report !cli\nOrders queue\n=kept adopted\n");
    tree.write_file(path, text.as_bytes());
    tree.assert_found(rule, path, words);
}

/// Plants a file in a clean tree, and asserts that the rules find no error.
fn assert_no_finding(path: &str, text: &str) {
    let tree = PlantedTree::new_clean();
    tree.write_file("xtask/retired", b"# Words.\ntold report !cli\nOrders queue\n=kept adopted\n");
    tree.write_file(path, text.as_bytes());
    let found = tree.check();
    assert!(found.errors.is_empty(), "{text}: {found:#?}");
}

#[test]
fn doc_comment_that_opens_with_a_question_word_is_counted() {
    for text in [
        "//! What it does.\n",
        "//! A.\n\n/// Whether it holds.\nfn f() {}\n",
        "//! A.\n/** Who reads. */\nfn f() {}\n",
        "//! A.\n/// The thing that\n/// reads.\nfn f() {}\n",
        "//! A.\n/// That which reads.\nfn f() {}\n",
        "//! A.\nstruct S {\n    /// By then it ends.\n    a: u8,\n}\n",
        "//! A file.\n//!\n//! What follows is text.\n",
        "//! A.\n/// Reads.\n///\n/// ```\n/// a();\n/// ```\n///\n/// Where it ends.\nfn f() {}\n",
    ] {
        assert_found("openers", PLANTED_FILE, text, "a doc comment opens with");
    }
    assert_no_finding(
        PLANTED_FILE,
        "//! A file.\n//! What follows is text.\n\n// What a comment says.\nfn f() {}\n",
    );
    assert_no_finding(
        PLANTED_FILE,
        "//! A file.\n//!\n//! ```text\n//!\n//! What a block shows.\n//! ```\nfn f() {}\n",
    );
    assert_no_finding(
        PLANTED_FILE,
        "//! A file.\n/// `which` of them.\nfn f() {}\n/// Off-hand.\nfn g() {}\n",
    );
}

#[test]
fn second_type_of_one_name_is_counted() {
    let text = "//! A.\npub struct S;\nmod m {\n    type S = u8;\n}\n";
    assert_found("doubles", PLANTED_FILE, text, "`S` is also a type at crates/engine/src/a.rs:2");
    let local = "//! A.\nstruct S;\nimpl T for S {\n    fn f() {\n        struct S;\n    }\n}\n";
    assert_found("doubles", PLANTED_FILE, local, "`S` is also a type");
    assert_no_finding(
        PLANTED_FILE,
        "//! A.\nimpl T for A {\n    type S = u8;\n}\nimpl T for B {\n    type S = u8;\n}\n",
    );
    assert_no_finding(
        PLANTED_FILE,
        "//! A.\nstruct S;\n#[cfg(test)]\nmod tests {\n    struct S;\n}\n",
    );
}

#[test]
fn type_named_like_std_or_vaguely_is_counted() {
    assert_found("types", PLANTED_FILE, "//! A.\nstruct Arc;\n", "a name of the standard library");
    assert_found("types", PLANTED_FILE, "//! A.\nenum State {}\n", "does not say of what");
    assert_no_finding(PLANTED_FILE, "//! A.\ntype Result<T> = std::result::Result<T, Error>;\n");
}

#[test]
fn retired_word_in_an_identifier_counts_once_per_crate() {
    for text in [
        "//! A.\nfn told_by() { told_by() }\n",
        "//! A.\nstruct RowTold;\n",
        "//! A.\nconst IS_TOLD: u8 = 0;\n",
    ] {
        assert_found("retired", PLANTED_FILE, text, "says `told`; report (1 of `engine told`");
    }
    assert_found("retired", "crates/engine/src/told.rs", "//! A.\n", "the file's name says `told`");
    assert_found("retired", PLANTED_FILE, "//! A.\nstruct MyOrders;\n", "says `Orders`");
    assert_found("retired", PLANTED_FILE, "//! A.\nfn kept() {}\n", "says `=kept`");
    assert_no_finding(
        PLANTED_FILE,
        "//! A, told.\nfn f() { stolde(\"told\", byte_orders, kept_by) }\n",
    );
    assert_no_finding("crates/cli/src/told.rs", "//! A.\nfn told() {}\n");
}

#[test]
fn long_or_question_like_test_name_is_counted() {
    let test = |name: &str| format!("//! A.\n#[test]\n#[ignore = \"x\"]\nfn {name}() {{}}\n");
    assert_found("tests", PLANTED_FILE, &test("who_reads_sees_it"), "opens with \"who\"");
    assert_found("tests", PLANTED_FILE, &test("k4_t10_what_is_there"), "opens with \"what\"");
    assert_found("tests", PLANTED_FILE, &test(&format!("k4_{}", "x".repeat(61))), "61 characters");
    assert_no_finding(PLANTED_FILE, &test(&format!("k4_t10_{}", "x".repeat(60))));
}

#[test]
fn long_files_and_functions_are_counted() {
    let long = "//! Lines.\n".repeat(401);
    assert_found("files", PLANTED_FILE, &long, "401 lines without tests");
    let function = format!("//! A.\nfn f() {{\n{}}}\n", "    g();\n".repeat(69));
    assert_found("functions", PLANTED_FILE, &function, "a function of 71 lines");
    let tests = format!("//! A.\n#[cfg(test)]\nmod tests {{\n{}}}\n", "    // b\n".repeat(401));
    assert_no_finding(PLANTED_FILE, &tests);
}

#[test]
fn cycle_of_four_files_is_counted_and_named() {
    let tree = PlantedTree::new_clean();
    tree.append_text("crates/engine/src/lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\n");
    for (name, next) in [("a", "b"), ("b", "c"), ("c", "d"), ("d", "a")] {
        let next = next.to_uppercase();
        let text = format!(
            "//! A.\nuse crate::{}::{next};\nstruct {};\n",
            next.to_lowercase(),
            name.to_uppercase()
        );
        tree.write_file(&format!("crates/engine/src/{name}.rs"), text.as_bytes());
    }
    let cycle = "a.rs → b.rs (crate::b::B, line 2) → c.rs (crate::c::C, line 2) → d.rs";
    tree.assert_found("cycles", "crates/engine/src", cycle);
    tree.write_file("crates/engine/src/d.rs", b"//! A.\nstruct D;\n");
    assert!(tree.check().errors.is_empty());
}

#[test]
fn dependency_on_a_higher_layer_is_counted() {
    let tree = PlantedTree::new_clean();
    tree.append_text("crates/engine/src/lib.rs", "mod record;\nmod kernel;\nmod build;\n");
    tree.write_file("crates/engine/src/record.rs", b"//! R.\nstruct R;\n");
    tree.write_file(
        "crates/engine/src/kernel/mod.rs",
        b"//! K.\nmod load;\nuse crate::record::R;\n",
    );
    tree.write_file("crates/engine/src/kernel/load.rs", b"//! L.\nstruct L;\n");
    tree.write_file(
        "crates/engine/src/build.rs",
        b"//! B.\nuse crate::kernel::load::L;\nstruct B;\n",
    );
    assert!(tree.check().errors.is_empty(), "{:#?}", tree.check());
    tree.write_file("crates/engine/src/kernel/load.rs", b"//! L.\nfn f(_: crate::build::B) {}\n");
    let path = "crates/engine/src/kernel/load.rs:2";
    tree.assert_found("upward", path, "takes `crate::build::B` of build.rs");
}

#[test]
fn lowering_never_raises_a_ceiling() {
    let tree = PlantedTree::new_clean();
    let path = "crates/buffer/src/region.rs";
    let ratchet = || {
        let tree = tree.read_tree();
        lowered_ceilings(&tree, &check(&tree).occurrences)
    };
    tree.write_file(
        path,
        b"//! Bytes.\nfn f() { unsafe { g() } }\n// unsafe in words does not count\n",
    );
    tree.assert_found("unsafe", path, "where the ceiling is 0");
    assert!(ratchet().ends_with(&format!("unsafe {path} 1\n")), "a new rule starts as it is");
    tree.write_file(CEILINGS_PATH, format!("unsafe {path} 1\n").as_bytes());
    assert!(tree.check().errors.is_empty());
    tree.append_text(path, "fn h() { unsafe { g() } }\n");
    tree.assert_found(
        "unsafe",
        path,
        "(2 of `crates/buffer/src/region.rs`, where the ceiling is 1)",
    );
    assert!(ratchet().ends_with(&format!("unsafe {path} 1\n")), "a ratchet does not raise");
    tree.write_file(path, b"//! Bytes.\n");
    assert!(tree.check().errors.is_empty(), "nobody has to touch the file");
    assert!(!ratchet().contains(path));
}

#[test]
fn moved_code_keeps_its_ceiling() {
    let tree = PlantedTree::new_clean();
    let (old, new) = ("crates/buffer/src/region.rs", "crates/buffer/src/pool.rs");
    tree.write_file(CEILINGS_PATH, format!("unsafe {old} 3\n").as_bytes());
    tree.write_file(old, b"//! A.\nfn f() { unsafe { g() } }\n");
    tree.write_file(new, b"//! A.\nfn f() { unsafe { g() }; unsafe { g() } }\n");
    assert!(tree.check().errors.is_empty());
    let read = tree.read_tree();
    let text = lowered_ceilings(&read, &check(&read).occurrences);
    assert!(text.ends_with(&format!("unsafe {new} 2\nunsafe {old} 1\n")), "{text}");
    tree.append_text(new, "fn h() { unsafe { g() } }\n");
    tree.assert_found("unsafe", new, "(3 of `crates/buffer/src/pool.rs`, where the ceiling is 2)");
}

#[test]
fn report_sums_by_crate_and_list_names_occurrences() {
    let tree = PlantedTree::new_clean();
    tree.write_file(PLANTED_FILE, b"//! What it is.\nstruct State;\n");
    let read = tree.read_tree();
    let counted = check(&read).occurrences;
    let text = format_report(&read, &counted);
    let row = text.lines().find(|line| line.starts_with("engine")).unwrap();
    let cells: Vec<&str> = row.split_whitespace().collect();
    // Two lines of code: the root, and the type.
    assert_eq!(cells, ["engine", "2", "0", "0", "1", "0", "1", "0", "0", "0", "0", "0"]);
    assert!(
        list_occurrences(&counted, "types", "engine")
            .starts_with("crates/engine/src/a.rs:2: `State`")
    );
    assert_eq!(list_occurrences(&counted, "types", "cli"), "");
}

#[test]
fn lowering_keeps_the_baseline_of_the_product() {
    let tree = PlantedTree::new_clean();
    tree.write_file(CEILINGS_PATH, b"lines product 9999\n");
    let read = tree.read_tree();
    assert_eq!(product_size_ceiling(&read), Some(9999));
    assert!(lowered_ceilings(&read, &check(&read).occurrences).ends_with("\nlines product 9999\n"));
}
