//! Tests of aggregates that are read and written through the file traits.

use super::*;

#[test]
fn aggregate_is_read_through_the_file_traits() {
    let mut random = Random::with_replayable_seed();
    let mut pool = create_test_pool(1, 64);
    for _ in 0..100 {
        let bytes = {
            let length = random.within(0..5000);
            random.bytes(length)
        };
        let whole = pool.copy(&bytes).unwrap();
        let aggregate = divide_randomly(&mut random, whole);
        let mut out = Vec::new();
        aggregate.reader().read_to_end(&mut out).unwrap();
        assert_eq!(out, bytes);
        let lines: Vec<_> = aggregate.reader().split(b'\n').map(Result::unwrap).collect();
        let model: Vec<_> = bytes.split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
        let ends = bytes.is_empty() || bytes.ends_with(b"\n");
        assert_eq!(lines, model[..model.len() - usize::from(ends)]);
        let (mut reader, mut at) = (aggregate.reader(), 0);
        while at < bytes.len() {
            let mut parts = [IoSlice::new(&[]); 3];
            let count = reader.io_slices(&mut parts);
            let read = join_slices(&parts[..count]);
            assert!(count > 0 && bytes[at..].starts_with(&read));
            let taken = random.within(1..read.len() + 1);
            reader.consume(taken);
            at += taken;
        }
        assert_eq!(reader.io_slices(&mut [IoSlice::new(&[])]), 0);
        reader.consume(9);
        assert_eq!(reader.read(&mut [0; 9]).unwrap(), 0);
    }
}

fn join_slices(parts: &[IoSlice<'_>]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.iter().copied()).collect()
}

/// A writer that accepts random amounts and is interrupted at random.
struct ShortWriter(Vec<u8>, Random);

impl io::Write for ShortWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.1.one_in(5) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let all = join_slices(parts);
        let taken = self.1.within(1..all.len() + 1);
        self.0.extend(&all[..taken]);
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn q3_short_writes_are_completed() {
    let mut random = Random::with_replayable_seed();
    let mut pool = create_test_pool(1, 64);
    let bytes = random.bytes(30_000);
    let whole = pool.copy(&bytes).unwrap();
    let aggregate = divide_randomly(&mut random, whole);
    assert!(aggregate.slices().count() > 64, "more than one call takes");
    let mut slow = ShortWriter(Vec::new(), random);
    aggregate.write_to(&mut slow).unwrap();
    assert_eq!(slow.0, bytes);
    let closed = aggregate.write_to(&mut [0; 100][..]).unwrap_err();
    assert_eq!(closed.kind(), io::ErrorKind::WriteZero);
    Aggregate::new().write_to(&mut [0; 0][..]).unwrap();
}

#[test]
fn q3_q4_file_is_read_into_the_chosen_pool() {
    let mut pool = create_test_pool(1, 8);
    let bytes: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
    let mut file = &bytes[..];
    let mut aggregate = Aggregate::new();
    loop {
        let piece = pool.read(&mut file, 3000).unwrap();
        if piece.is_empty() {
            break;
        }
        assert!(piece.len() <= 3000);
        aggregate.append(piece).unwrap();
    }
    assert_eq!(aggregate.to_vec(), bytes);
    assert!(pool.read(&bytes[..], 0).unwrap().is_empty());
    struct BrokenReader;
    impl Read for BrokenReader {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::ErrorKind::ConnectionReset.into())
        }
    }
    assert_eq!(pool.read(BrokenReader, 10).unwrap_err().kind(), io::ErrorKind::ConnectionReset);
    let mut writer = pool.writer();
    io::copy(&mut &bytes[..], &mut writer).unwrap();
    for byte in 0..100 {
        writer.write_all(&[byte]).unwrap();
    }
    let written = writer.finish();
    assert_eq!(written.len(), 10_100);
    assert!(written.slices().count() <= 4, "small writes join: {written:?}");
}
