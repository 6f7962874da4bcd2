//! `streamline cat`: reads from named sinks, and writes to named sources, of running paths. Works
//! without a daemon.

use crate::arguments::CatArguments;
use crate::status::Status;
use crate::terminal;
use std::io::{self, BufRead as _, Read as _, Write as _};
use streamline::named_endpoints::{NameError, NamedReader, NamedWriter};

/// Maximum number of bytes that one call reads from standard input.
const READ_BYTES_MAX: usize = 64 << 10;

/// Copies blocks from a named sink to standard output, or from standard input to a named source.
pub(crate) fn cat(arguments: &CatArguments) -> Status {
    let outcome =
        if arguments.write { write_named_source(arguments) } else { copy_named_sink(arguments) };
    outcome.unwrap_or_else(|status| status)
}

/// Copies blocks from a named sink to standard output.
fn copy_named_sink(arguments: &CatArguments) -> Result<Status, Status> {
    let mut reader =
        NamedReader::open(&arguments.name).map_err(|error| report_open_error(&error))?;
    let mut out = io::stdout().lock();
    let mut left = arguments.count.unwrap_or(u64::MAX);
    while left > 0
        && let Some(block) =
            reader.next_block().map_err(|error| report_stream_error(&arguments.name, &error))?
    {
        out.write_all(block).map_err(|error| report_output_error(&error))?;
        left -= 1;
        if left == 0
            || !reader.is_ready().map_err(|error| report_stream_error(&arguments.name, &error))?
        {
            out.flush().map_err(|error| report_output_error(&error))?;
        }
    }
    out.flush().map_err(|error| report_output_error(&error))?;
    if reader.lost_block_count() > 0 {
        let blocks = streamline::report::format_count(reader.lost_block_count(), "block");
        terminal::print_warning(&format!(
            "{blocks} of `{}` were overwritten before they were read",
            arguments.name
        ));
    }
    Ok(Status::Done)
}

/// Copies blocks from standard input to a named source.
fn write_named_source(arguments: &CatArguments) -> Result<Status, Status> {
    let mut writer =
        NamedWriter::open(&arguments.name).map_err(|error| report_open_error(&error))?;
    let mut put = |block: &[u8]| {
        writer.write(block).map_err(|error| report_stream_error(&arguments.name, &error))
    };
    let mut input = io::stdin().lock();
    let unreadable = |error: io::Error| {
        terminal::print_error(&format!("cannot read standard input: {error}"));
        Status::Failed
    };
    if arguments.pcap {
        let mut capture = Vec::new();
        input.read_to_end(&mut capture).map_err(unreadable)?;
        for packet in streamline::named_endpoints::capture_packets(&capture) {
            put(packet.map_err(|why| unreadable(io::Error::other(why)))?)?;
        }
        return Ok(Status::Done);
    }
    let mut block = vec![0; READ_BYTES_MAX];
    loop {
        let length = match arguments.lines {
            true => {
                block.clear();
                input.read_until(b'\n', &mut block).map_err(unreadable)?
            }
            false => input.read(&mut block).map_err(unreadable)?,
        };
        if length == 0 {
            return Ok(Status::Done);
        }
        put(block.get(..length).unwrap_or_default())?;
    }
}

fn report_open_error(error: &NameError) -> Status {
    terminal::print_error(&error.to_string());
    match error {
        NameError::Unknown(_) => Status::NotFound,
        NameError::Name { .. } => Status::Usage,
        _ => Status::Failed,
    }
}

fn report_stream_error(name: &str, error: &io::Error) -> Status {
    let why = match error.kind() {
        io::ErrorKind::BrokenPipe => "its path has ended".to_owned(),
        _ => error.to_string(),
    };
    terminal::print_error(&format!("`{name}` can no longer be used: {why}"));
    Status::Failed
}

fn report_output_error(error: &io::Error) -> Status {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Status::OutputClosed,
        _ => {
            terminal::print_error(&format!("cannot write standard output: {error}"));
            Status::Failed
        }
    }
}
