//! Rows of the form of libpcap's test set that are asked of the libpcap of this machine, by
//! `tcpdump -d`: what program an expression becomes, and why something is no expression.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

/// tcpdump, if it is here; says so loudly if not.
pub(crate) fn tcpdump(test: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&path).chain(usual).map(|folder| folder.join("tcpdump"));
    let found = found.into_iter().find(|path| path.is_file());
    if found.is_none() {
        println!("skipped: {test}: needs the program tcpdump");
    }
    found
}

/// What it says of an expression on Ethernet: a listing, or what is wrong.
fn ask(tcpdump: &PathBuf, options: &[&str], expression: &str) -> Result<String, String> {
    let mut command = Command::new(tcpdump);
    command.args(["-y", "EN10MB", "-d"]).args(options).arg(expression).stdin(Stdio::null());
    let output = command.output().map_err(|error| error.to_string())?;
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    match output.status.success() {
        true => Ok(text(output.stdout)),
        false => Err(text(output.stderr)),
    }
}

/// Rows like those of `accept.json`, of the expressions that this libpcap knows.
pub(crate) fn accepted(tcpdump: &PathBuf, expressions: &[&str]) -> Vec<Value> {
    let row = |expression: &&str| {
        Some(json!({
            "name": expression,
            "DLT": "EN10MB",
            "aliases": [expression],
            "opt": ask(tcpdump, &[], expression).ok()?,
            "unopt": ask(tcpdump, &["-O"], expression).ok()?,
        }))
    };
    let rows: Vec<Value> = expressions.iter().filter_map(row).collect();
    let (known, all) = (rows.len(), expressions.len());
    assert!(known * 10 >= all * 8, "tcpdump knows only {known} of {all} expressions");
    rows
}

/// Returns true if it refuses an expression.
pub(crate) fn refuses(tcpdump: &PathBuf, expression: &str) -> bool {
    ask(tcpdump, &[], expression).is_err()
}
