//! Writes the bundled capture to standard output: `cargo run -p streamline-testkit --example
//! make_web_capture > examples/web.pcap`.

use std::io::{self, Write};

fn main() -> io::Result<()> {
    io::stdout().lock().write_all(&streamline_testkit::web_capture().to_pcap())
}
