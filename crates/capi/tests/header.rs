//! Tests that the committed header and the book's pages on the header and on the Python module
//! equal the text generated from the code, and that they name every symbol. `UPDATE=1` rewrites the
//! files.

#![expect(clippy::unwrap_used, reason = "a test ends where something is not as it must be")]

mod page;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use testkit::need;

/// Compares a committed file with its generated text. `UPDATE=1` rewrites the file first.
fn check_generated_file(path: &Path, text: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, text).unwrap();
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        committed == text,
        "{} is not what the comments of the code give: run \
         `UPDATE=1 cargo test -p streamline-capi --test header`",
        path.display()
    );
}

fn generated_header() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new()
        .with_src(root.join("src/config.rs"))
        .with_src(root.join("src/export.rs"))
        .with_config(config)
        .generate()
        .unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    String::from_utf8(text).unwrap()
}

#[test]
fn committed_header_equals_generated_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    check_generated_file(&root.join("include/streamline.h"), &generated_header());
}

#[test]
fn page_of_c_equals_page_generated_from_the_header() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = page::Header::parse(&generated_header());
    check_generated_file(&root.join("../../docs/book/api-c.md"), &header.to_markdown());
}

#[test]
fn page_of_python_equals_page_generated_from_the_module() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let module = std::fs::read_to_string(root.join("python/streamline.py")).unwrap();
    let page = page::python::to_markdown(&module).unwrap();
    check_generated_file(&root.join("../../docs/book/api-python.md"), &page);
    let silent = module.replacen("\"\"\"The failure of a call", "#", 1);
    assert_eq!(page::python::to_markdown(&silent).unwrap_err(), "`Error` has no docstring");
}

#[test]
fn header_describes_every_constant_field_function_and_symbol() {
    let header = page::Header::parse(&generated_header());
    assert_eq!(header.undocumented_items(), Vec::<String>::new());
    // Cargo puts the library beside this test.
    let test = std::env::current_exe().unwrap();
    let library = test.parent().unwrap().join("libstreamline_c.so");
    let list = Command::new("nm").args(["-D", "--defined-only"]).arg(&library).output();
    let Ok(list) = list else {
        let left_out: Option<()> = need::report_skip("no `nm`: the symbols of libstreamline");
        assert!(left_out.is_none());
        return;
    };
    assert!(list.status.success(), "{}", String::from_utf8_lossy(&list.stderr));
    let list = String::from_utf8(list.stdout).unwrap();
    let symbols = list.lines().filter_map(|line| line.rsplit(' ').next());
    let symbols: BTreeSet<&str> =
        symbols.filter(|symbol| symbol.starts_with("streamline_")).collect();
    let functions: BTreeSet<&str> = header.functions.iter().map(|f| f.name.as_str()).collect();
    assert_eq!(symbols, functions);
}
