//! Tests of files of all sizes that are truncated, extended and written while they are read.

use super::*;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use sys::memory::{Memfd, Seals};
use testkit::Random;

fn dbuf_id() -> DbufId {
    DbufId::new(9).unwrap()
}

/// Creates an unlinked file with these bytes. Returns the file and its dbuf.
fn unlinked_file(bytes: &[u8]) -> (File, CachedFile) {
    let path = std::env::temp_dir().join(format!(
        "streamline-file-{}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(true);
    let mut file = options.open(&path).unwrap();
    file.write_all(bytes).unwrap();
    let cached = CachedFile::open(dbuf_id(), &path).unwrap();
    std::fs::remove_file(path).unwrap();
    (file, cached)
}

fn create_pipe() -> (File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe().unwrap();
    (File::from(read), write)
}

/// Splices an extent into a pipe, and returns the bytes read from the pipe.
fn splice_through_pipe(
    cached: &CachedFile,
    call: SpliceCall,
    place: Extent,
) -> Result<Vec<u8>, FileRefusal> {
    let (mut read, write) = create_pipe();
    let sent = cached.splice_with_call(call, place, &write)?;
    drop(write);
    let mut out = Vec::new();
    read.read_to_end(&mut out).unwrap();
    let count = if let TransferResult::Bytes(count) = sent { count } else { 0 };
    assert_eq!(out.len(), count, "{call:?}");
    Ok(out)
}

const SPLICE_CALLS: [SpliceCall; 3] =
    [SpliceCall::Write, SpliceCall::Vmsplice, SpliceCall::Sendfile];

#[test]
fn e5_g4_any_range_transfers_by_copy_and_every_splice() {
    let mut random = Random::with_replayable_seed();
    let bytes = random.bytes(50_000);
    let (_, cached) = unlinked_file(&bytes);
    for _ in 0..300 {
        let (at, length) = (random.within(0..60_000), random.within(1..20_000));
        let place = Extent::new(at as u64, length as u32);
        let expected = bytes.get(at..(at + length).min(bytes.len())).unwrap_or_default();
        for call in SPLICE_CALLS {
            assert_eq!(
                splice_through_pipe(&cached, call, place).unwrap(),
                expected,
                "{call:?} {at} {length}"
            );
        }
        let mut out = vec![0; length];
        let copied = cached.copy(place, &mut out);
        if expected.len() == length {
            assert_eq!((copied, &out[..]), (Ok(()), expected));
        } else {
            assert_eq!(copied, Err(Fault::OutOfWindow(place)));
        }
    }
    assert!(cached.copy(Extent::new(0, 4), &mut [0; 5]).is_err(), "of another length");
}

#[test]
fn empty_file_is_an_empty_dbuf_that_may_grow() {
    let (file, cached) = unlinked_file(b"");
    let mut reader = cached.reader();
    let mut out = [0; 8];
    assert_eq!((cached.size(), reader.next_pointer(100)), (Ok(0), Ok(None)));
    assert_eq!(reader.read(&mut out).unwrap(), 0);
    assert_eq!(reader.splice(100, create_pipe().1).unwrap(), TransferResult::End);
    for call in SPLICE_CALLS {
        assert_eq!(splice_through_pipe(&cached, call, Extent::new(0, 8)).unwrap(), b"");
    }
    for round in 0..40_u64 {
        file.write_all_at(&[round as u8; 5000], round * 5000).unwrap();
        let next = reader.next_pointer(1 << 20).unwrap().unwrap();
        assert_eq!((next.place.position(), next.length()), (round * 5000, 5000), "as it grows");
        let (mut read, write) = create_pipe();
        assert_eq!(reader.splice(5000, &write).unwrap(), TransferResult::Bytes(5000));
        read.read_exact(&mut out).unwrap();
        assert_eq!(out, [round as u8; 8]);
        assert_eq!(reader.next_pointer(1).unwrap(), None, "the end, for now");
    }
}

/// Truncation of a mapped file raises no signal, and every missing byte is reported.
#[test]
fn truncated_file_is_reported_and_never_faults() {
    let (file, cached) = unlinked_file(&[7; 10 * 4096]);
    let all = Extent::new(0, 10 * 4096);
    let whole = splice_through_pipe(&cached, SpliceCall::Write, all).unwrap();
    assert_eq!(whole, [7; 10 * 4096]);
    cached.populate(all).unwrap();
    for call in [SpliceCall::Write, SpliceCall::Vmsplice] {
        file.set_len(10 * 4096).unwrap();
        cached.refresh_view().unwrap();
        file.set_len(5 * 4096 + 100).unwrap();
        // The page that contains the end exists, with zeros beyond the end.
        let (_read, write) = create_pipe();
        let cut = cached.splice_with_call(call, all, &write);
        assert_eq!(
            cut,
            Err(FileRefusal::Truncated { sent: 6 * 4096, valid: 5 * 4096 + 100 }),
            "{call:?}"
        );
        assert_eq!(
            splice_through_pipe(&cached, call, all).unwrap().len(),
            5 * 4096 + 100,
            "it was noticed"
        );
    }
    let behind = Extent::new(6 * 4096, 10);
    assert_eq!(cached.copy(behind, &mut [0; 10]), Err(Fault::OutOfWindow(behind)));
    cached.populate(all).unwrap();
    file.set_len(0).unwrap();
    assert_eq!(
        cached.splice_with_call(SpliceCall::Write, all, create_pipe().1),
        Ok(TransferResult::End)
    );
    assert_eq!(cached.size(), Ok(0));
}

/// Memory sealed against truncation needs no size check; it may grow.
#[test]
fn sealed_file_is_sent_completely_and_may_grow() {
    let mut random = Random::with_replayable_seed();
    let bytes = random.bytes(30_000);
    let memory = Memfd::create("uncut", 20_000).unwrap();
    memory.seal(Seals::SHRINK).unwrap();
    let file = File::from(OwnedFd::from(memory));
    file.write_all_at(&bytes[..20_000], 0).unwrap();
    let cached = CachedFile::from_descriptor(dbuf_id(), file.try_clone().unwrap().into()).unwrap();
    assert!(
        cached.inner.cannot_be_truncated && file.set_len(19_999).is_err(),
        "the kernel holds the seal"
    );
    let all = Extent::new(0, 30_000);
    for call in SPLICE_CALLS {
        assert_eq!(splice_through_pipe(&cached, call, all).unwrap(), bytes[..20_000], "{call:?}");
    }
    file.write_all_at(&bytes[20_000..], 20_000).unwrap();
    for call in SPLICE_CALLS {
        assert_eq!(splice_through_pipe(&cached, call, all).unwrap(), bytes, "{call:?}");
        assert_eq!(
            splice_through_pipe(&cached, call, Extent::new(30_000, 1)).unwrap(),
            b"",
            "{call:?}"
        );
    }
    let unsealed = Memfd::create("cut", 10).unwrap();
    assert!(
        !CachedFile::from_descriptor(dbuf_id(), unsealed.into()).unwrap().inner.cannot_be_truncated
    );
}

/// Positions beyond 4 GB do not wrap.
#[test]
fn sparse_file_beyond_4_gb_is_addressed_to_the_byte() {
    let (file, cached) = unlinked_file(b"begin");
    let (far, text) = (5_000_000_123_u64, b"far away");
    file.write_all_at(text, far).unwrap();
    assert_eq!(cached.size(), Ok(far + 8));
    let pointer = cached.pointer(far, 8);
    let pointer = RichPointer::from_words(pointer.words());
    let mut out = [0; 8];
    cached.copy(pointer.place, &mut out).unwrap();
    assert_eq!(&out, text);
    for call in SPLICE_CALLS {
        assert_eq!(splice_through_pipe(&cached, call, pointer.place).unwrap(), text, "{call:?}");
        let hole = splice_through_pipe(&cached, call, Extent::new(1 << 32, 5000)).unwrap();
        assert_eq!(hole, [0; 5000], "a hole is zeros");
    }
    let mut reader = cached.reader();
    reader.seek(SeekFrom::End(-8)).unwrap();
    let mut end = String::new();
    reader.read_to_string(&mut end).unwrap();
    assert_eq!(end, "far away");
}

#[test]
fn several_extents_are_spliced_by_one_call() {
    let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at % 251) as u8).collect();
    let (_, cached) = unlinked_file(&bytes);
    let (mut read, write) = create_pipe();
    let other = RichPointer::new(DbufId::new(1).unwrap(), Extent::new(0, 5), Class::YES);
    let pointers = [cached.pointer(10, 100), cached.pointer(19_000, 900), other];
    assert_eq!(cached.splice_all(&pointers, &write).unwrap(), TransferResult::Bytes(1000));
    let mut out = vec![0; 1000];
    read.read_exact(&mut out).unwrap();
    assert_eq!((&out[..100], &out[100..]), (&bytes[10..110], &bytes[19_000..19_900]));
    let beyond = [cached.pointer(19_990, 100), cached.pointer(0, 100)];
    assert_eq!(
        cached.splice_all(&beyond, &write).unwrap(),
        TransferResult::Bytes(10),
        "no gap is closed"
    );
    assert_eq!(cached.splice_all(&[other], &write).unwrap(), TransferResult::End);
    assert_eq!(cached.splice_all(&[], &write).unwrap(), TransferResult::End);
}

#[test]
fn file_is_spliced_into_another_file() {
    let (_, from) = unlinked_file(&[3; 30_000]);
    let (to, copied) = unlinked_file(b"");
    let mut reader = from.reader();
    while let TransferResult::Bytes(_) = reader.splice(7000, &to).unwrap() {}
    assert_eq!(copied.size(), Ok(30_000));
    let mut out = [0; 30_000];
    copied.copy(Extent::new(0, 30_000), &mut out).unwrap();
    assert_eq!(out, [3; 30_000]);
}

/// A file that grows is spliced through the common interface into a ring of bytes.
#[test]
fn growing_file_is_read_as_a_stream() {
    use crate::interface::StreamReader;
    let bytes: Vec<u8> = (0..300_000_u32).map(|at| (at % 251) as u8).collect();
    let (file, cached) = unlinked_file(&bytes[..100_000]);
    let mut reader = cached.reader();
    assert_eq!(StreamReader::peek(&mut reader).unwrap().unwrap()[..100], bytes[..100]);
    StreamReader::take(&mut reader, 50);
    assert_eq!(StreamReader::peek(&mut reader).unwrap().unwrap()[..100], bytes[50..150]);
    reader.seek_to(0);
    let config = buffer::stream::Config::new(dbuf_id()).capacity(1 << 16);
    let (mut output, mut offers) = buffer::stream::stream(&config).unwrap();
    let input = offers.remove(0).open().unwrap();
    let reading = std::thread::spawn(move || {
        let (mut input, mut all, mut out) = (input, Vec::new(), [0; 5000]);
        while let Ok(count @ 1..) = input.read(&mut out) {
            all.extend_from_slice(&out[..count]);
        }
        all
    });
    for end in [100_000, 200_000, 300_000] {
        file.write_all_at(&bytes[..end], 0).unwrap();
        while crate::splice::splice(&mut reader, &mut output, 7777).unwrap().bytes > 0 {}
        assert_eq!(reader.position(), end as u64, "the end, for now");
    }
    drop(output);
    assert!(reading.join().unwrap() == bytes);
}

/// A file with a reported size of 0 that cannot be mapped is still readable.
#[test]
fn unmappable_file_is_copied() {
    let cached = CachedFile::open(dbuf_id(), "/proc/self/status").unwrap();
    let mut text = String::new();
    cached.reader().read_to_string(&mut text).unwrap();
    assert!(text.starts_with("Name:"), "{text}");
}

#[test]
fn non_regular_files_are_refused() {
    assert_eq!(CachedFile::open(dbuf_id(), "/tmp").unwrap_err(), FileRefusal::NotRegularFile);
    assert_eq!(CachedFile::open(dbuf_id(), "/dev/null").unwrap_err(), FileRefusal::NotRegularFile);
    assert_eq!(
        CachedFile::from_descriptor(dbuf_id(), create_pipe().1).unwrap_err(),
        FileRefusal::NotRegularFile
    );
    let (file, _) = unlinked_file(b"x");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let write_only = File::options().write(true).open(path).unwrap();
    assert_eq!(
        CachedFile::from_descriptor(dbuf_id(), write_only.into()).unwrap_err(),
        FileRefusal::NotReadable
    );
}

#[test]
fn grant_is_read_only_and_follows_file_mode() {
    let (file, _) = unlinked_file(b"secret");
    let cached = CachedFile::from_descriptor(dbuf_id(), file.try_clone().unwrap().into()).unwrap();
    let owner = Credentials::new(cached_uid(&file), 1);
    let other = Credentials::new(4711, 4711);
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(cached.grant(&other).unwrap_err(), FileRefusal::Forbidden { uid: 4711 });
    let granted = File::from(cached.grant(&owner).unwrap());
    assert!(granted.write_at(b"x", 0).is_err() && granted.set_len(0).is_err());
    file.set_permissions(std::fs::Permissions::from_mode(0o604)).unwrap();
    let received =
        CachedFile::from_untrusted_descriptor(dbuf_id(), cached.grant(&other).unwrap()).unwrap();
    let mut out = [0; 6];
    received.copy(Extent::new(0, 6), &mut out).unwrap();
    assert_eq!(&out, b"secret");
}

fn cached_uid(file: &File) -> u32 {
    sys::file::status(file).unwrap().uid
}

#[test]
fn splice_call_depends_on_mapping_target_and_length() {
    assert_eq!(SpliceCall::choose(true, FileKind::Regular, 1 << 20), SpliceCall::Write);
    assert_eq!(SpliceCall::choose(true, FileKind::Other, 1 << 20), SpliceCall::Write);
    assert_eq!(SpliceCall::choose(true, FileKind::Pipe, 100), SpliceCall::Write);
    assert_eq!(SpliceCall::choose(true, FileKind::Pipe, 1 << 20), SpliceCall::Vmsplice);
    assert_eq!(SpliceCall::choose(false, FileKind::Pipe, 1 << 20), SpliceCall::Sendfile);
}

/// One thread truncates and extends the file while another transfers it.
#[test]
fn file_resized_during_splice_reports_exact_bytes() {
    let (file, cached) = unlinked_file(&[b'x'; 64 << 10]);
    let cutter = std::thread::spawn(move || {
        let mut random = Random::new(5);
        for _ in 0..2000 {
            let size = random.below(64 << 10);
            file.set_len(size).unwrap();
            file.write_all_at(&[b'x'; 64 << 10], 0).unwrap();
        }
    });
    let (mut read, write) = create_pipe();
    let (mut good, mut cut) = (0_u64, 0);
    while !cutter.is_finished() {
        let sent =
            match cached.splice_with_call(SpliceCall::Write, Extent::new(1000, 60_000), &write) {
                Ok(TransferResult::Bytes(count)) => count,
                Ok(TransferResult::End) => 0,
                Err(FileRefusal::Truncated { sent, .. }) => {
                    cut += 1;
                    read.read_exact(&mut vec![0; sent]).unwrap();
                    continue;
                }
                Err(other) => panic!("{other}"),
            };
        read.read_exact(&mut vec![0; sent]).unwrap();
        good += sent as u64;
    }
    cutter.join().unwrap();
    drop(write);
    assert_eq!(read.read(&mut [0]).unwrap(), 0, "nothing that was not counted");
    println!("{good} bytes sent, cut {cut} times");
    assert!(good > 0);
}
