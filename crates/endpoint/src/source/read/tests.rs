//! Tests of `read` on files and pipes, in blocks and in lines.

use super::*;
use crate::testing::{
    EmittedBlock, TempDir, checked_arguments, expect_failure, produce_all, produce_once,
    sink_opening, small_segment_pool,
};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

fn read_source(path: &str, block: &str, lines: &str) -> Result<Box<dyn Source>, Failure> {
    let mut words = vec![("file", path), ("lines", lines)];
    words.extend((!block.is_empty()).then_some(("block", block)));
    open(&sink_opening(&checked_arguments(&READ, &words), &[]))
}

fn emitted_blocks(bytes: &[u8], block: &str, lines: &str, segment: usize) -> Vec<EmittedBlock> {
    let dir = TempDir::new();
    let path = dir.path("in");
    std::fs::write(&path, bytes).unwrap();
    let mut pool = small_segment_pool(segment);
    let (emitted, end) = produce_all(&mut *read_source(&path, block, lines).unwrap(), &mut pool);
    end.unwrap();
    assert_eq!((pool.usage().pinned, pool.invalid_unpin_count()), (0, 0));
    emitted
}

fn bytes_of(emitted: &[EmittedBlock]) -> Vec<&[u8]> {
    emitted.iter().map(|block| &block.bytes[..]).collect()
}

/// Returns the flags of each block: `(` for the first of a line, `)` for the last, `()` for both,
/// and `.` for neither.
fn format_flags(emitted: &[EmittedBlock]) -> String {
    let flag = |block: &EmittedBlock| match block.entry.context.flags.0 {
        0 => ".",
        1 => "(",
        2 => ")",
        _ => "()",
    };
    emitted.iter().map(flag).collect()
}

#[test]
fn blocks_have_fixed_size_except_the_last() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    let sizes = [("1000", 1000, 1 << 12), ("3k", 3072, 1 << 16), ("64k", 65_536, 1 << 17)];
    for (block, size, segment) in sizes {
        let emitted = emitted_blocks(&bytes, block, "no", segment);
        let expected: Vec<&[u8]> = bytes.chunks(size).collect();
        assert_eq!(bytes_of(&emitted), expected, "{block}");
        assert_eq!(emitted[0].entry.marks, Marks::for_plain_block(u32::try_from(size).unwrap()));
        assert_eq!(emitted[0].entry.context.time, 1000);
    }
    assert_eq!(emitted_blocks(b"", "64k", "no", 1 << 16), []);
}

#[test]
fn lines_are_emitted_without_terminators() {
    let lines = emitted_blocks(b"one\r\n\nthree\nfour", "64k", "yes", 1 << 16);
    assert_eq!(bytes_of(&lines), [&b"one"[..], b"", b"three", b"four"]);
    assert_eq!(format_flags(&lines), "()()()()");
    assert_eq!(bytes_of(&emitted_blocks(b"\n\n", "1", "yes", 1 << 16)), [b"", b""]);
    assert_eq!(emitted_blocks(b"", "64k", "yes", 1 << 16), []);
}

#[test]
fn long_lines_are_split_into_fragments() {
    let lines = emitted_blocks(b"1234\n12345\n123456789\n12345678", "4", "yes", 1 << 16);
    let expected: [&[u8]; 8] = [b"1234", b"1234", b"5", b"1234", b"5678", b"9", b"1234", b"5678"];
    assert_eq!(bytes_of(&lines), expected);
    assert_eq!(format_flags(&lines), "()()".replacen("()()", "()(", 1) + ")(.)()");
}

#[test]
fn terminator_behind_the_largest_block_adds_no_fragment() {
    for segment in [6, 7, 1 << 16] {
        let lines = emitted_blocks(b"1234\r\n12345\r\n1234\r5\n1234\r", "4", "yes", segment);
        let expected: [&[u8]; 7] = [b"1234", b"1234", b"5", b"1234", b"\r5", b"1234", b"\r"];
        assert_eq!(bytes_of(&lines), expected, "{segment}");
        assert_eq!(format_flags(&lines), "()()()()", "{segment}");
    }
    let long = [&[b'x'; 1_048_574][..], b"\r\ny"].concat();
    let lines = emitted_blocks(&long, "", "yes", 1 << 20);
    let lengths: Vec<usize> = lines.iter().map(|block| block.bytes.len()).collect();
    assert_eq!(lengths, [1_048_573, 1, 1], "there is no room for the byte that decides");
}

#[test]
fn lines_are_whole_up_to_the_largest_block() {
    let lengths = [65_536, 65_537, 300_000, 1_048_574, 1, 0, 1_048_573];
    let text: Vec<Vec<u8>> = lengths.iter().map(|length| vec![b'x'; *length]).collect();
    let emitted = emitted_blocks(&text.join(&b'\n'), "", "yes", 1 << 20);
    assert_eq!(emitted.iter().map(|block| block.bytes.len()).collect::<Vec<_>>(), lengths);
    assert_eq!(format_flags(&emitted), "()".repeat(lengths.len()));
}

#[test]
fn lines_that_were_cut_are_counted_and_reported() {
    let run = |bytes: &[u8], block: &str| {
        let dir = TempDir::new();
        let path = dir.path("in");
        std::fs::write(&path, bytes).unwrap();
        let mut source = read_source(&path, block, "yes").unwrap();
        let mut pool = small_segment_pool(1 << 20);
        produce_all(&mut *source, &mut pool).1.unwrap();
        let counters = source.counters();
        assert_eq!(counters.warns, counters.remark.is_some());
        counters.remark
    };
    assert_eq!(run(b"1234\n12345\n123456789\n1\n", "4").unwrap(), {
        "2 lines longer than 4 bytes were cut"
    });
    assert_eq!(run(b"1234\n1", "4"), None);
    let long = vec![b'x'; 3 << 20];
    assert_eq!(run(&long, "").unwrap(), "1 line longer than 1048574 bytes was cut");
    assert_eq!(run(&long[..1_048_574], ""), None);
}

#[test]
fn lines_across_piece_boundaries_are_emitted_whole() {
    let text: Vec<String> = (0..5000).map(|n| "x".repeat(n * 13 % 900) + &n.to_string()).collect();
    let emitted = emitted_blocks(text.join("\n").as_bytes(), "64k", "yes", 1 << 12);
    assert_eq!(emitted.len(), text.len());
    assert!(emitted.iter().zip(&text).all(|(block, line)| block.bytes == line.as_bytes()));
}

#[test]
fn lines_have_record_form() {
    let form_of = |lines| {
        READ.effect_of(&checked_arguments(&READ, &[("file", "-"), ("lines", lines)])).output_form
    };
    assert_eq!(form_of("no"), OutputForm::Form(Form::Bytes));
    assert_eq!(form_of("yes"), OutputForm::Form(Form::Record));
}

#[test]
fn piped_bytes_are_emitted_as_available() {
    for lines in [false, true] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let input =
            Input::from_file(File::from(OwnedFd::from(reader)), "a pipe".to_owned()).unwrap();
        let mut source = ReadSource::new(input, 1000, lines, 0);
        let mut pool = small_segment_pool(1 << 16);
        let wait = SourceStatus::AWAITS_INPUT;
        let mut ask = |ended: bool| {
            if ended {
                testkit::wait_until_closed(source.descriptor().unwrap());
            }
            let (given, emitted) = produce_once(&mut source, &mut pool, 64, 0).unwrap();
            (given, emitted.into_iter().map(|block| block.bytes).collect::<Vec<_>>())
        };
        assert_eq!(ask(false), (wait, vec![]));
        writer.write_all(b"hel").unwrap();
        if lines {
            assert_eq!(ask(false), (wait, vec![]));
            writer.write_all(b"lo\nworld").unwrap();
            assert_eq!(ask(false), (SourceStatus::Blocks, vec![b"hello".to_vec()]));
            drop(writer);
            assert_eq!(ask(true), (SourceStatus::End, vec![b"world".to_vec()]));
        } else {
            assert_eq!(ask(false), (SourceStatus::Blocks, vec![b"hel".to_vec()]));
            drop(writer);
        }
        assert_eq!(ask(true), (SourceStatus::End, vec![]));
    }
}

#[test]
fn invalid_block_sizes_and_missing_files_are_refused() {
    let block = READ.parameter("block").unwrap();
    assert!(block.parse("0").unwrap_err().message.contains("not between"));
    assert!(block.parse("1M").unwrap_err().message.contains("1048575 bytes"));
    assert!(
        expect_failure(read_source("/no/such/file", "1", "no"))
            .to_string()
            .contains("no such file")
    );
}
