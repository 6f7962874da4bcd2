//! Tests of self-sizing streams.

use crate::OverflowPolicy;
use crate::scale::ScalingParameters;
use crate::stream::{Config, Input, Output, stream};
use abi::DbufId;

const SIZE_MIN: usize = 16 << 10;
const SIZE_MAX: usize = 1 << 20;

fn test_scaling() -> ScalingParameters {
    ScalingParameters {
        same_processor: (SIZE_MIN, SIZE_MAX),
        shared_cache: (SIZE_MIN, SIZE_MAX),
        remote: SIZE_MAX,
        low: 25,
        high: 75,
    }
}

fn open_stream(capacity: usize, is_cut: bool, policy: OverflowPolicy) -> (Output, Input) {
    let config = Config::new(DbufId::new(3).unwrap()).capacity(capacity).policy(policy);
    let config = config.scaling(test_scaling());
    let config = if is_cut { config.in_place_capacity_max(SIZE_MAX) } else { config };
    let (output, mut offers) = stream(&config).unwrap();
    (output, offers.remove(0).open_trusting().unwrap())
}

/// If the reader takes each block immediately, the ring shrinks to its minimum, halving once per
/// lap, both by reallocation and in place.
#[test]
fn f1_f5_f6_nearly_empty_ring_shrinks_to_its_minimum() {
    for is_cut in [false, true] {
        let (mut output, mut input) = open_stream(SIZE_MAX, is_cut, OverflowPolicy::Block);
        let (block, mut out) = ([7; 1000], [0; 1000]);
        let mut bytes = 0;
        while output.sizing_state().unwrap().rounds < 20 {
            assert!(output.write(&block).unwrap());
            output.flush();
            assert_eq!(input.read(&mut out), Ok(1000));
            bytes += 1000;
        }
        let scale = output.sizing_state().unwrap().clone();
        assert_eq!((output.capacity(), scale.shrunk, scale.grown), (SIZE_MIN, 6, 0), "{scale}");
        assert!(bytes < 3 * SIZE_MAX + 20 * SIZE_MIN, "a halving a round: {bytes}");
        let resident = output.resident_bytes();
        assert_eq!(resident, is_cut.then_some(4096 + SIZE_MIN as u64), "cut memory is released");
    }
}

/// If the reader is always late, the ring grows to its maximum.
#[test]
fn f1_f5_f6_always_full_ring_grows_to_its_maximum() {
    for is_cut in [false, true] {
        let (mut output, mut input) = open_stream(SIZE_MIN, is_cut, OverflowPolicy::DropNew);
        let mut out = vec![0; SIZE_MAX];
        while output.sizing_state().unwrap().rounds < 40 {
            while output.write(&[7; 1000]).unwrap() {}
            output.flush();
            let mut left = output.capacity() / 2;
            while left > 0 {
                match input.try_read(&mut out[..left]).unwrap() {
                    Some(count) => left -= count,
                    None => break,
                }
            }
            input.release();
        }
        assert_eq!(output.capacity(), SIZE_MAX, "{}", output.sizing_state().unwrap());
    }
}
