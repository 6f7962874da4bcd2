//! Files and pipes read in blocks and lines.

use super::*;
use crate::testing::{Gift, TempDir, all, arguments, ask, opening, pool, refused};
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;

fn on(path: &str, block: &str, lines: &str) -> Result<Box<dyn Source>, Failure> {
    let given = arguments(&READ, &[("file", path), ("block", block), ("lines", lines)]);
    open(&opening(&given, &[]))
}

fn gifts(bytes: &[u8], block: &str, lines: &str, segment: usize) -> Vec<Gift> {
    let dir = TempDir::new();
    let path = dir.path("in");
    std::fs::write(&path, bytes).unwrap();
    let mut pool = pool(segment);
    let (gifts, end) = all(&mut *on(&path, block, lines).unwrap(), &mut pool);
    end.unwrap();
    assert_eq!((pool.usage().pinned, pool.mistakes()), (0, 0));
    gifts
}

fn bytes_of(gifts: &[Gift]) -> Vec<&[u8]> {
    gifts.iter().map(|gift| &gift.bytes[..]).collect()
}

/// The flags of each block: `(` where a line begins, `)` where it ends.
fn flags_of(gifts: &[Gift]) -> String {
    let flag = |gift: &Gift| match gift.entry.context.flags.0 {
        0 => ".",
        1 => "(",
        2 => ")",
        _ => "()",
    };
    gifts.iter().map(flag).collect()
}

#[test]
fn blocks_have_one_size_and_the_last_what_is_left() {
    let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n % 251) as u8).collect();
    let sizes = [("1000", 1000, 1 << 12), ("3k", 3072, 1 << 16), ("64k", 65_536, 1 << 17)];
    for (block, size, segment) in sizes {
        let gifts = gifts(&bytes, block, "no", segment);
        let expected: Vec<&[u8]> = bytes.chunks(size).collect();
        assert_eq!(bytes_of(&gifts), expected, "{block}");
        assert_eq!(gifts[0].entry.marks, Marks::bare(u32::try_from(size).unwrap()));
        assert_eq!(gifts[0].entry.context.time, 1000);
    }
    assert_eq!(gifts(b"", "64k", "no", 1 << 16), []);
}

#[test]
fn lines_come_without_their_ends() {
    let lines = gifts(b"one\r\n\nthree\nfour", "64k", "yes", 1 << 16);
    assert_eq!(bytes_of(&lines), [&b"one"[..], b"", b"three", b"four"]);
    assert_eq!(flags_of(&lines), "()()()()");
    assert_eq!(bytes_of(&gifts(b"\n\n", "1", "yes", 1 << 16)), [b"", b""]);
    assert_eq!(gifts(b"", "64k", "yes", 1 << 16), []);
}

#[test]
fn long_lines_come_in_fragments() {
    let lines = gifts(b"1234\n12345\n123456789\n12345678", "4", "yes", 1 << 16);
    let expected: [&[u8]; 8] = [b"1234", b"1234", b"5", b"1234", b"5678", b"9", b"1234", b"5678"];
    assert_eq!(bytes_of(&lines), expected);
    assert_eq!(flags_of(&lines), "()()".replacen("()()", "()(", 1) + ")(.)()");
}

#[test]
fn lines_that_cross_pieces_come_whole() {
    let text: Vec<String> = (0..5000).map(|n| "x".repeat(n * 13 % 900) + &n.to_string()).collect();
    let gifts = gifts(text.join("\n").as_bytes(), "64k", "yes", 1 << 12);
    assert_eq!(gifts.len(), text.len());
    assert!(gifts.iter().zip(&text).all(|(gift, line)| gift.bytes == line.as_bytes()));
}

#[test]
fn lines_are_records() {
    let gives = |lines| READ.effect_of(&arguments(&READ, &[("file", "-"), ("lines", lines)])).gives;
    assert_eq!(gives("no"), Gives::Form(Form::Bytes));
    assert_eq!(gives("yes"), Gives::Form(Form::Record));
}

#[test]
fn a_pipe_gives_what_came() {
    for lines in [false, true] {
        let (reader, mut writer) = std::io::pipe().unwrap();
        let input = Input::over(File::from(OwnedFd::from(reader)), "a pipe".to_owned()).unwrap();
        let mut source = Read::new(input, 1000, lines, 0);
        let mut pool = pool(1 << 16);
        let wait = Given::Wait { until: None, readable: true };
        let mut ask = |ended: bool| {
            if ended {
                testkit::closed(source.descriptor().unwrap());
            }
            let (given, gifts) = ask(&mut source, &mut pool, 64, 0).unwrap();
            (given, gifts.into_iter().map(|gift| gift.bytes).collect::<Vec<_>>())
        };
        assert_eq!(ask(false), (wait, vec![]));
        writer.write_all(b"hel").unwrap();
        if lines {
            assert_eq!(ask(false), (wait, vec![]));
            writer.write_all(b"lo\nworld").unwrap();
            assert_eq!(ask(false), (Given::Blocks, vec![b"hello".to_vec()]));
            drop(writer);
            assert_eq!(ask(true), (Given::End, vec![b"world".to_vec()]));
        } else {
            assert_eq!(ask(false), (Given::Blocks, vec![b"hel".to_vec()]));
            drop(writer);
        }
        assert_eq!(ask(true), (Given::End, vec![]));
    }
}

#[test]
fn wrong_sizes_and_files_are_refused() {
    let block = READ.parameter("block").unwrap();
    assert!(block.parse("0").unwrap_err().what.contains("not between"));
    assert!(block.parse("1M").unwrap_err().what.contains("1048575 bytes"));
    assert!(refused(on("/no/such/file", "1", "no")).to_string().contains("no such file"));
}
