//! Tests of single programs driven through their two halves: transferred bytes, drops and exits.

use super::*;
use crate::testing::{
    batch_from_blocks, checked_arguments, description_block, frameless_block, hole_block,
    produce_once, sink_opening, small_segment_pool,
};
use crate::{DropReason, Sink, SourceStatus};
use filter::Amount;
use sys::process_group::ProcessOutcome;

struct ProgramHalves {
    input: Option<Box<dyn Sink>>,
    output: Option<Box<dyn Source>>,
    process: Arc<Process>,
}

fn start_program(command: &str, role: ProcessRole) -> ProgramHalves {
    let given = checked_arguments(&EXEC, &[("command", command)]);
    let StartedProcess { input, output } = start(&sink_opening(&given, &[]), role).unwrap();
    let of_input = input.as_ref().and_then(|input| input.process().cloned());
    let of_output = output.as_ref().and_then(|output| output.properties().process);
    let process = of_input.or(of_output).unwrap();
    ProgramHalves { input, output, process }
}

impl ProgramHalves {
    fn write_blocks(&mut self, blocks: &[filter::Block<'_>]) {
        self.input.as_mut().unwrap().consume(&batch_from_blocks(blocks), 0).unwrap();
    }

    fn drops_by_reason(&self) -> Vec<(DropReason, Amount)> {
        self.input.as_ref().unwrap().drops_by_reason()
    }

    /// Closes the input of the program and returns the rest of the program's output.
    fn close_and_read_rest(&mut self) -> Vec<u8> {
        if let Some(input) = &mut self.input {
            input.finish().unwrap();
        }
        let output = self.output.as_mut().unwrap();
        let mut pool = small_segment_pool(1 << 18);
        let mut bytes = Vec::new();
        loop {
            let (given, emitted) = produce_once(output.as_mut(), &mut pool, 64, 7).unwrap();
            bytes.extend(emitted.iter().flat_map(|block| block.bytes.clone()));
            match given {
                SourceStatus::End => return bytes,
                SourceStatus::Wait { readable: true, .. } => {
                    sys::poll::wait_until_readable(&[output.descriptor().unwrap()], None);
                }
                _ => {}
            }
        }
    }

    /// Writes the same block until the program has closed its input.
    fn write_until_input_closed(&mut self, bytes: &[u8]) {
        while !self.process.has_closed_input() {
            self.write_blocks(&[frameless_block(bytes)]);
        }
    }
}

const fn amount(blocks: u64, bytes: u64) -> Amount {
    Amount { blocks, bytes }
}

#[test]
fn viewed_bytes_pass_through_program_in_order() {
    let mut cat = start_program("cat", ProcessRole::Middle);
    let bytes: Vec<u8> = (0..1000_u32).flat_map(|n| n.to_be_bytes()).collect();
    let about = vec![0; 40];
    cat.write_blocks(&[
        frameless_block(&bytes),
        description_block(&about),
        frameless_block(b""),
        frameless_block(b" and more"),
    ]);
    assert_eq!(cat.input.as_ref().unwrap().amount_written(), Some(amount(4, 4009)));
    assert_eq!(cat.close_and_read_rest(), [bytes.as_slice(), b" and more"].concat());
    assert_eq!(cat.output.as_ref().unwrap().counters().given.bytes, 4009);
    cat.process.finish().unwrap().unwrap();
}

#[test]
fn holes_are_dropped_and_counted() {
    let mut cat = start_program("cat", ProcessRole::Middle);
    cat.write_blocks(&[frameless_block(b"before"), hole_block(500), frameless_block(b"behind")]);
    assert_eq!(
        cat.drops_by_reason(),
        [(DropReason::ProgramEnded, amount(0, 0)), (DropReason::Hole, amount(1, 500))]
    );
    assert_eq!(cat.close_and_read_rest(), b"beforebehind");
}

#[test]
fn bytes_after_program_end_are_counted_as_dropped() {
    let mut head = start_program("head -c 5", ProcessRole::Middle);
    let block = vec![b'x'; 30_000];
    head.write_until_input_closed(&block);
    head.write_blocks(&[frameless_block(&block), frameless_block(&block)]);
    let written = head.input.as_ref().unwrap().amount_written().unwrap();
    let [(_, ended), (_, none)] = head.drops_by_reason()[..] else { panic!("two reasons") };
    assert_eq!(none, amount(0, 0));
    assert_eq!((written.bytes + ended.bytes) % 30_000, 0);
    assert_eq!(written.bytes + ended.bytes, (written.blocks + ended.blocks) * 30_000);
    assert!(ended.blocks >= 2 && ended.bytes >= 60_000, "{ended:?}");
    assert_eq!(head.close_and_read_rest(), b"xxxxx");
    head.process.finish().unwrap().unwrap();
}

#[test]
fn failed_program_is_reported_with_command_and_status() {
    for (command, ended, text) in [
        ("exit 3", ProcessOutcome::Status(3), "the program \"exit 3\" ended with status 3"),
        (
            "exec /no/such/program 2>&-",
            ProcessOutcome::Status(127),
            "the program \"exec /no/such/program 2>&-\" ended with status 127: the shell did not \
             find the command",
        ),
        (
            "kill -9 $$",
            ProcessOutcome::Signal(9),
            "the program \"kill -9 $$\" was ended by signal 9 (SIGKILL)",
        ),
    ] {
        let mut program = start_program(command, ProcessRole::Middle);
        assert_eq!(program.close_and_read_rest(), b"");
        let bad = program.process.finish().unwrap().unwrap_err();
        assert_eq!((bad.ended, bad.to_string().as_str(), bad.quiet), (ended, text, false));
        assert_eq!(program.process.try_wait(), Some(Err(bad)), "the result is available again");
    }
}

#[test]
fn program_failure_is_visible_without_waiting() {
    let mut program = start_program("exit 7", ProcessRole::End);
    assert!(program.output.is_none());
    program.write_until_input_closed(b"anything");
    let bad = loop {
        match program.process.try_wait() {
            Some(ended) => break ended.unwrap_err(),
            None => std::thread::yield_now(),
        }
    };
    assert_eq!(bad.ended, ProcessOutcome::Status(7));
}

#[test]
fn closed_output_ends_program_without_failure() {
    let mut yes = start_program("yes; sleep 1000", ProcessRole::Head);
    assert!(yes.input.is_none());
    let output = yes.output.as_mut().unwrap();
    let mut pool = small_segment_pool(1 << 18);
    while produce_once(output.as_mut(), &mut pool, 64, 7).unwrap().1.is_empty() {
        sys::poll::wait_until_readable(&[output.descriptor().unwrap()], None);
    }
    output.close();
    assert_eq!(
        produce_once(output.as_mut(), &mut pool, 64, 7).unwrap(),
        (SourceStatus::End, Vec::new())
    );
    yes.process.finish().unwrap().unwrap();
}

#[test]
fn stop_ends_source_program_and_drains_filter_program() {
    let mut source = start_program(
        "trap 'echo last words; exit 0' TERM; echo first; while :; do :; done",
        ProcessRole::Head,
    );
    let output = source.output.as_mut().unwrap();
    sys::poll::wait_until_readable(&[output.descriptor().unwrap()], None);
    assert!(output.stop(), "the remaining output can still be read");
    assert_eq!(source.close_and_read_rest(), b"first\nlast words\n");
    assert!(!source.output.as_mut().unwrap().stop());
    source.process.finish().unwrap().unwrap();

    let mut filter = start_program("cat; echo end", ProcessRole::Middle);
    filter.write_blocks(&[frameless_block(b"some\n")]);
    assert!(filter.output.as_mut().unwrap().stop());
    filter.write_blocks(&[frameless_block(b"more\n")]);
    assert_eq!(filter.close_and_read_rest(), b"some\nmore\nend\n");
}

#[test]
fn dropped_program_is_killed() {
    let mut program = start_program("trap '' TERM; echo here; exec sleep 1000", ProcessRole::Head);
    let output = program.output.take().unwrap();
    let descriptor = output.descriptor().unwrap().try_clone_to_owned().unwrap();
    sys::poll::wait_until_readable(&[output.descriptor().unwrap()], None);
    drop((output, program));
    testkit::wait_until_closed(&descriptor);
    let mut text = String::new();
    std::io::Read::read_to_string(&mut File::from(descriptor), &mut text).unwrap();
    assert_eq!(text, "here\n");
}

#[test]
fn empty_and_nul_commands_are_refused() {
    assert!(
        find_command_mistake(" \t").is_some()
            && find_command_mistake("a\0b").is_some()
            && find_command_mistake("true").is_none()
    );
}
