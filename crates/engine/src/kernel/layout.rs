//! Sizes of the rings through which a kernel program passes frames and pointers to its reader.

use crate::error::BuildError;
use ebpf::emit::user_sockets;
use pipeline::plan::Program as Planned;
use std::ops::RangeInclusive;
use sys::bpf::RingsLayout;

/// Maximum number of pointers in a ring, per exit and processor.
const POINTERS_MAX: u32 = 1 << 16;
/// Maximum size of the copied frames (records) in a ring, per processor, in bytes.
const REGION_BYTES_MAX: u64 = 1 << 27;

/// Maximum size of the copied frames (records) over all processors in bytes, unless the request
/// sets a size. It is half of the daemon's default quota for a user.
const RECORDS_BYTES_MAX: u64 = 128 << 20;
/// Divisor that yields a second maximum size of the copied frames (records) over all processors:
/// the machine's memory divided by this number. Does not apply if the request sets a size.
const RECORDS_MEMORY_DIVISOR: u64 = 64;

/// Returns the layout of the rings in which a program passes frames and pointers to its reader.
/// `sinks` is the number of pointer sequences per ring ([`TreeExit::sink`](super::tree::TreeExit)).
/// `asked` is the total size of the copied frames over all processors in bytes, if the request sets
/// one.
///
/// The number of pointers is the number of frames of 256 bytes that fit into the memory for copied
/// frames. It is at most [`POINTERS_MAX`], but never less than the number in the plan. For a
/// program at sockets, each processor has several regions, of which usually only the first two are
/// used.
pub(super) fn rings_layout(
    planned: &Planned,
    sinks: usize,
    asked: Option<u64>,
) -> Result<RingsLayout, BuildError> {
    let ring = &planned.ring;
    let processors = sys::machine::count_possible_processors().map_err(BuildError::Machine)?;
    let (regions_per_cpu, part) =
        if planned.attach.own_sockets { (user_sockets::REGIONS_PER_CPU, 2) } else { (1, 1) };
    let cpus = u32::try_from(processors).unwrap_or(u32::MAX).saturating_mul(regions_per_cpu);
    let least = 2 * ring.record_max.next_power_of_two();
    let memory = sys::machine::Machine::detect().memory_bytes.unwrap_or(u64::MAX);
    let bytes = region_size(asked, cpus, least..=(ring.bytes / part).max(least), memory);
    Ok(RingsLayout {
        cpus,
        sinks: u32::try_from(sinks).unwrap_or(u32::MAX).max(1),
        pointers: (bytes / 256).clamp(ring.pointers, POINTERS_MAX.max(ring.pointers)),
        bytes,
        record_max: ring.record_max,
    })
}

/// Returns the size in bytes of the copied frames (records) of one region, which is a power of two.
/// If the request sets a total size (`asked`), each region gets an equal share of it, but at most
/// [`REGION_BYTES_MAX`]. Otherwise, a region gets the upper bound of `planned`. It gets less if all
/// regions together would exceed [`RECORDS_BYTES_MAX`], or `memory` divided by
/// [`RECORDS_MEMORY_DIVISOR`]. The result is never less than the lower bound of `planned`.
fn region_size(asked: Option<u64>, regions: u32, planned: RangeInclusive<u32>, memory: u64) -> u32 {
    let (all, most) = match asked {
        Some(all) => (all, REGION_BYTES_MAX),
        None => (RECORDS_BYTES_MAX.min(memory / RECORDS_MEMORY_DIVISOR), u64::from(*planned.end())),
    };
    let least = u64::from(*planned.start());
    1 << (all / u64::from(regions.max(1))).clamp(least, most.max(least)).ilog2()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u32 = 1 << 20;

    #[test]
    fn rings_fit_into_memory_and_the_quota_of_a_user() {
        let size =
            |regions, gigabytes: u64| region_size(None, regions, MB..=8 * MB, gigabytes << 30);
        assert_eq!([size(2, 24), size(16, 24), size(16, 4)], [8 * MB, 8 * MB, 4 * MB]);
        assert_eq!([size(64, 256), size(1024, 256)], [2 * MB, MB], "at least the smallest size");
    }

    #[test]
    fn requested_ring_size_is_divided_among_processors() {
        let size = |asked, regions| region_size(Some(asked), regions, MB..=8 * MB, 1 << 30);
        assert_eq!([size(64 << 20, 2), size(100 << 20, 3)], [32 * MB, 32 * MB]);
        assert_eq!([size(1, 2), size(u64::MAX, 2)], [MB, 128 * MB]);
    }
}
