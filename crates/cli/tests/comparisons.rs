//! Tests of the book's comparisons with other programs: the requests in the tables are valid.

#![allow(clippy::unwrap_used, reason = "a test may end by a panic")]

mod common;

use common::Folder;
use std::path::Path;

/// Returns the requests in the last column of a page's tables. For a command such as `streamline
/// run REQUEST`, returns only the request. Skips other `streamline` commands, and `jq` commands.
fn table_requests(text: &str) -> Vec<String> {
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let rows = rows.map(|line| line.replace("\\|", "\0"));
    let cells = rows
        .filter_map(|row| row.trim_end_matches(" |").rsplit_once(" | ").map(|c| c.1.to_owned()));
    let mut found = Vec::new();
    for cell in cells {
        for code in cell.split('`').skip(1).step_by(2).map(|code| code.replace('\0', "|")) {
            let verb = code.strip_prefix("streamline ").map(|rest| rest.split(' ').next());
            match verb {
                Some(Some("tap" | "set" | "top" | "state" | "doctor")) => {}
                Some(_) => found.extend(code.split('\'').nth(1).map(str::to_owned)),
                None if code.starts_with("jq ") => {}
                None => found.push(code),
            }
        }
    }
    found
}

/// Checks each request in the tables that compare this program with other programs.
#[test]
fn requests_in_comparison_tables_are_valid() {
    let book = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/book");
    let folder = Folder::new();
    assert_eq!(folder.run(&["examples", "--write", "."]).status, Some(0));
    let (mut count, mut wrong) = (0, Vec::new());
    for name in ["bpftrace", "click", "suricata", "tcpdump", "tshark", "vector"] {
        let file = book.join(format!("from-{name}.md"));
        let text = std::fs::read_to_string(file).unwrap();
        let requests = table_requests(&text);
        assert!(requests.len() > 5, "{name}: {requests:?}");
        for request in requests {
            let checked = folder.run(&["check", &request]);
            if checked.status != Some(0) || checked.err.contains("warning") {
                wrong.push(format!("{name}: {}", checked.err));
            }
            count += 1;
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {count} requests are wrong:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}
