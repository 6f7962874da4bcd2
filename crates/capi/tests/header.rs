//! Test that the committed header equals the output of cbindgen. `UPDATE=1` rewrites the header.

use std::path::Path;

#[test]
fn committed_header_equals_generated_header() {
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
    let text = String::from_utf8(text).unwrap();
    let path = root.join("include/streamline.h");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == text,
        "include/streamline.h is not what cbindgen makes of src/export.rs: run \
         `UPDATE=1 cargo test -p streamline-capi --test header`"
    );
}
