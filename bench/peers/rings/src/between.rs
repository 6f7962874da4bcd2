//! Code shared by the rings between two processes. The writer starts the reader, which is another
//! instance of this program.

use crate::{Transfer, pin};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(crate) fn error_text(why: impl std::fmt::Debug) -> String {
    format!("{why:?}")
}

/// Serves the requests of the writing process: reads numbers of blocks from standard input, calls
/// `take` with each number, and then replies. Returns at the end of the input.
pub(crate) fn serve_requests(
    cores: usize,
    mut take: impl FnMut(u64) -> Result<(), String>,
) -> Result<(), String> {
    pin(cores - 1)?;
    reply("ready")?;
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(error_text)?;
        take(line.trim().parse::<u64>().map_err(error_text)?)?;
        reply("done")?;
    }
    Ok(())
}

fn reply(word: &str) -> Result<(), String> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{word}").and_then(|()| out.flush()).map_err(error_text)
}

/// The writing process's handle to the process that reads the ring. The reading process exits when
/// its standard input is closed.
pub(crate) struct ReaderProcess {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl ReaderProcess {
    /// Starts the process that reads the ring, and waits until it is ready. `place` is the path or
    /// the name of the ring.
    pub(crate) fn start(
        ring: &str,
        cores: usize,
        block: usize,
        place: &str,
    ) -> Result<Self, String> {
        let itself = std::env::current_exe().map_err(error_text)?;
        let mut process = Command::new(itself)
            .args([ring, &cores.to_string(), &block.to_string(), place])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(error_text)?;
        let orders = process.stdin.take();
        let answers = BufReader::new(process.stdout.take().ok_or("no answers")?);
        let mut other = Self { process, orders, answers };
        other.wait_for_reply()?;
        Ok(other)
    }

    /// Returns a function that transfers a number of blocks: it sends them with `write`, and waits
    /// until the reading process has received them.
    pub(crate) fn into_transfer(
        mut self,
        mut write: impl FnMut(u64) -> Result<(), String> + 'static,
    ) -> Transfer {
        Box::new(move |blocks| {
            let orders = self.orders.as_mut().ok_or("no orders")?;
            writeln!(orders, "{blocks}").and_then(|()| orders.flush()).map_err(error_text)?;
            write(blocks)?;
            self.wait_for_reply()
        })
    }

    fn wait_for_reply(&mut self) -> Result<(), String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line).map_err(error_text)? {
            0 => Err("the reading process has ended".to_owned()),
            _ => Ok(()),
        }
    }
}

impl Drop for ReaderProcess {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.process.wait();
    }
}
