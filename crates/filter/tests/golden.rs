//! Tests that the generated code of every twin equals its golden file, so that changes in code
//! generation are reviewed as a diff. `UPDATE=1` rewrites the golden files.

use std::fs;
use std::path::Path;

use ebpf::Hook;
use ebpf::disasm::list_program;
use filter::testing::twins::{emit_program, request_text, twin_chains};

#[test]
fn generated_code_matches_golden_files() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let (mut names, mut different) = (Vec::new(), Vec::new());
    for chain in twin_chains(1) {
        // Twins that traffic control cannot run are emitted for XDP.
        let (program, place) = match emit_program(&chain, Hook::Tc) {
            Ok(program) => (program, "tc"),
            Err(_) => (emit_program(&chain, Hook::Xdp).unwrap(), "xdp"),
        };
        let filter = chain[0].description.name;
        let variants = names.iter().filter(|(other, _)| *other == filter).count();
        let number = if variants > 0 { format!("-{}", variants + 1) } else { String::new() };
        let name = format!("{filter}{number}.{place}.bpf");
        names.push((filter, name.clone()));
        let counters: Vec<&str> = program.counters.iter().map(|c| c.name.as_str()).collect();
        let maps: Vec<String> = program
            .maps
            .iter()
            .map(|map| format!("{} of {} bytes", map.name, map.value_size))
            .collect();
        let text = format!(
            "# {}\n# {} instructions, looks {} bytes deep\n# maps: {}; counters: {}\n{}",
            request_text(&chain),
            program.code.len(),
            program.read_end,
            maps.join(", "),
            counters.join(", "),
            list_program(&program)
        );
        let file = folder.join(&name);
        if std::env::var_os("UPDATE").is_some() {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&file, &text).unwrap();
        }
        if fs::read_to_string(&file).unwrap_or_default() != text {
            different.push((name, text));
        }
    }
    let files = fs::read_dir(&folder).unwrap().count();
    assert_eq!(files, names.len(), "one file for each twin: {names:?}");
    assert!(different.is_empty(), "UPDATE=1 rewrites. Now: {different:#?}");
}
