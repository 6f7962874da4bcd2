//! `streamline examples`: prints or writes the example requests, and the capture that they read.
//! They are embedded in the program, so no source tree is necessary.

use crate::arguments::examples::ExamplesArguments;
use crate::status::Status;
use crate::terminal;
use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use streamline::report::{json_line, to_object};

/// Version of the output format of `examples --json`.
const JSON_VERSION: u32 = 1;

/// Name and contents of the capture that the examples and the book read.
const EXAMPLE_CAPTURE: (&str, &[u8]) = ("web.pcap", include_bytes!("../../../examples/web.pcap"));

/// Names and texts of the examples, in printing order.
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

/// Prints all examples, or writes them and their capture into a directory.
pub(crate) fn examples(arguments: &ExamplesArguments) -> Status {
    let written = arguments.write.as_deref().map(write_examples);
    match written {
        Some(Err(status)) => status,
        Some(Ok(())) | None if arguments.json => print_examples_as_json(arguments.write.as_deref()),
        Some(Ok(())) => arguments.write.as_deref().map_or(Status::Done, print_examples_location),
        None => print_examples(),
    }
}

/// Prints all examples as one JSON object. `directory` is the directory to which the examples were
/// written, if any.
fn print_examples_as_json(directory: Option<&Path>) -> Status {
    let example = |(name, text): &(&str, &str)| {
        let (comments, request): (Vec<&str>, Vec<&str>) =
            text.lines().partition(|line| line.starts_with('#'));
        let comments: Vec<&str> =
            comments.iter().map(|line| line.trim_start_matches(['#', ' '])).collect();
        to_object(&[
            ("name", name),
            ("description", &comments.join(" ")),
            ("request", &request.join("\n").trim()),
            ("file", &directory.map(|folder| folder.join(format!("{name}.pipe")))),
        ])
    };
    let object = to_object(&[
        ("version", &JSON_VERSION),
        ("capture", &directory.map(|folder| folder.join(EXAMPLE_CAPTURE.0))),
        ("examples", &EXAMPLES.iter().map(example).collect::<Vec<_>>()),
    ]);
    terminal::print_text(&json_line(&object))
}

/// Writes all examples into a directory, and creates the directory if necessary. Does not overwrite
/// existing files. If writing fails, or if an existing file has different contents, prints an error
/// and returns the exit status.
fn write_examples(folder: &Path) -> Result<(), Status> {
    let lines = EXAMPLES.iter().map(|(name, text)| (format!("{name}.pipe"), text.as_bytes()));
    let capture = (EXAMPLE_CAPTURE.0.to_owned(), EXAMPLE_CAPTURE.1);
    let mut kept = Vec::new();
    for (name, bytes) in [capture].into_iter().chain(lines) {
        let path = folder.join(&name);
        match fs::create_dir_all(folder).and_then(|()| create_file(&path, bytes)) {
            Ok(true) => {}
            Ok(false) => kept.push(name),
            Err(error) => {
                let reason = terminal::describe_io_error(&error);
                terminal::print_error(&format!("cannot write {}: {reason}", path.display()));
                return Err(Status::Failed);
            }
        }
    }
    if !kept.is_empty() {
        let names = kept.join(", ");
        terminal::print_error(&format!(
            "{} has other files with these names, which were not changed: {names}",
            folder.display()
        ));
        terminal::print_note("remove them, or name another folder");
        return Err(Status::Failed);
    }
    Ok(())
}

/// Prints the location of the written examples, and a command to try first.
fn print_examples_location(folder: &Path) -> Status {
    let capture = folder.join(EXAMPLE_CAPTURE.0);
    let number = EXAMPLES.len();
    terminal::print_text(&format!(
        "{} and {number} requests are in {}; for a start:\n\n    streamline 'replay {} | bpf \"tcp \
         port 80\" | print'\n",
        EXAMPLE_CAPTURE.0,
        folder.display(),
        capture.display()
    ))
}

/// Creates a file with the given contents. If the file already exists, leaves it unchanged and
/// returns true only if it is a regular file with the same contents.
fn create_file(path: &Path, bytes: &[u8]) -> io::Result<bool> {
    match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(mut file) => file.write_all(bytes).map(|()| true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            // Only a regular file is read, because opening a pipe or device could block.
            let same = fs::symlink_metadata(path)?.is_file() && fs::read(path)? == bytes;
            Ok(same)
        }
        Err(error) => Err(error),
    }
}

fn print_examples() -> Status {
    let mut out = String::new();
    for (name, text) in EXAMPLES {
        let _ = writeln!(out, "# {name}.pipe\n{}\n", text.trim_end());
    }
    out.push_str(
        "# `streamline examples --write examples` writes them, and the capture that they read:\n\
         # then streamline run -f examples/NAME.pipe\n",
    );
    terminal::print_text(&out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_file_is_embedded() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");
        let mut found = 0;
        for entry in fs::read_dir(folder).unwrap() {
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
