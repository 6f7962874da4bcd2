//! `streamline examples`: the lines of the folder `examples`, each with what it shows.

use crate::status::Status;
use crate::terminal;
use std::fmt::Write as _;

/// Names and texts, in the order in which they are printed.
const EXAMPLES: &[(&str, &str)] = &[
    ("packets", include_str!("../../../examples/packets.pipe")),
    ("classes", include_str!("../../../examples/classes.pipe")),
    ("count", include_str!("../../../examples/count.pipe")),
    ("branches", include_str!("../../../examples/branches.pipe")),
    ("ports", include_str!("../../../examples/ports.pipe")),
    ("either", include_str!("../../../examples/either.pipe")),
    ("payload", include_str!("../../../examples/payload.pipe")),
    ("lengths", include_str!("../../../examples/lengths.pipe")),
    ("records", include_str!("../../../examples/records.pipe")),
    ("programs", include_str!("../../../examples/programs.pipe")),
    ("extract", include_str!("../../../examples/extract.pipe")),
    ("lines", include_str!("../../../examples/lines.pipe")),
    ("live", include_str!("../../../examples/live.pipe")),
    ("names", include_str!("../../../examples/names.pipe")),
    ("numbered", include_str!("../../../examples/numbered.pipe")),
];

/// Prints all of them.
pub(crate) fn print() -> Status {
    let mut out = String::new();
    for (name, text) in EXAMPLES {
        let _ = writeln!(out, "# {name}.pipe\n{}\n", text.trim_end());
    }
    out.push_str("# They stand in the folder `examples`: streamline run -f examples/NAME.pipe\n");
    terminal::print(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_folder_is_printed() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let mut found = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "pipe") {
                let name = path.file_stem().unwrap().to_str().unwrap();
                assert!(EXAMPLES.iter().any(|(known, _)| *known == name), "{name}");
                found += 1;
            }
        }
        assert_eq!(found, EXAMPLES.len());
        for (name, text) in EXAMPLES {
            assert!(text.starts_with("# "), "{name} begins with what it shows");
        }
    }
}
