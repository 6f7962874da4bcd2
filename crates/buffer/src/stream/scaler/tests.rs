//! Streams that find their size.

use crate::Policy;
use crate::scale::Scaling;
use crate::stream::{Config, Input, Output, stream};
use abi::DbufId;

const LEAST: usize = 16 << 10;
const MOST: usize = 1 << 20;

fn scaling() -> Scaling {
    Scaling { together: (LEAST, MOST), apart: (LEAST, MOST), far: MOST, low: 25, high: 75 }
}

fn open(capacity: usize, is_cut: bool, policy: Policy) -> (Output, Input) {
    let config = Config::new(DbufId::new(3).unwrap()).capacity(capacity).policy(policy);
    let config = config.scaling(scaling());
    let config = if is_cut { config.cut(MOST) } else { config };
    let (output, mut offers) = stream(&config).unwrap();
    (output, offers.remove(0).open_trusting().unwrap())
}

/// A reader that takes each block at once makes the ring as small as it may be, one
/// halving a round; by new memory and in place.
#[test]
fn f1_f5_f6_a_ring_that_is_always_nearly_empty_becomes_small() {
    for is_cut in [false, true] {
        let (mut output, mut input) = open(MOST, is_cut, Policy::Block);
        let (block, mut out) = ([7; 1000], [0; 1000]);
        let mut bytes = 0;
        while output.scale().unwrap().rounds < 20 {
            assert!(output.write(&block).unwrap());
            output.flush();
            assert_eq!(input.read(&mut out), Ok(1000));
            bytes += 1000;
        }
        let scale = output.scale().unwrap().clone();
        assert_eq!((output.capacity(), scale.shrunk, scale.grown), (LEAST, 6, 0), "{scale}");
        assert!(bytes < 3 * MOST + 20 * LEAST, "a halving a round: {bytes}");
        let resident = output.resident();
        assert_eq!(resident, is_cut.then_some(4096 + LEAST as u64), "what is cut is given back");
    }
}

/// A reader that is always late makes it large.
#[test]
fn f1_f5_f6_a_ring_that_is_always_full_becomes_large() {
    for is_cut in [false, true] {
        let (mut output, mut input) = open(LEAST, is_cut, Policy::DropNew);
        let mut out = vec![0; MOST];
        while output.scale().unwrap().rounds < 40 {
            while output.write(&[7; 1000]).unwrap() {}
            output.flush();
            let mut left = output.capacity() / 2;
            while left > 0 {
                match input.try_read(&mut out[..left]).unwrap() {
                    Some(count) => left -= count,
                    None => break,
                }
            }
            input.give_back();
        }
        assert_eq!(output.capacity(), MOST, "{}", output.scale().unwrap());
    }
}
