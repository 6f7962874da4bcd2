//! Cached Internet checksums for data that is sent repeatedly. [IOL §2.9]
//!
//! Input: an aggregate and a function that sums bytes (RFC 1071, for example that of
//! `wire::checksum`). Output: the sum over all slices. The sum of a slice is cached by content id
//! and length, which always identify the same bytes. If a cached file is sent with a new header,
//! only the header is therefore summed. The cache consists of plain numbers and keeps no pool
//! memory in use. Only slices have content ids, and the bytes of a slice never change (T6).

use super::{Aggregate, ContentId, Slice};

/// A cache of the Internet checksums of slices.
///
/// The cache is a fixed table of sets with four entries each. In a set, the least recently used
/// entry is replaced. Lookup is O(1), and nothing is allocated after [`ChecksumCache::new`].
#[derive(Debug)]
pub struct ChecksumCache {
    sets: Box<[[CachedSum; WAYS_PER_SET]]>,
    /// Number of lookups so far. Serves as a logical clock for finding the least recently used
    /// entry.
    now: u64,
    hits: u64,
    misses: u64,
}

/// A cached checksum of a slice. `used` is the number of the latest lookup that returned the
/// checksum; 0 if the entry is free.
#[derive(Clone, Copy, Debug, Default)]
struct CachedSum {
    content: Option<ContentId>,
    length: u32,
    sum: u16,
    used: u64,
}

const WAYS_PER_SET: usize = 4;

impl ChecksumCache {
    /// Creates a cache for the checksums of at least `slices` slices. Allocates about 40 bytes per
    /// slice.
    #[must_use]
    pub fn new(slices: usize) -> Self {
        let sets = slices.div_ceil(WAYS_PER_SET).max(1).next_power_of_two();
        let sets = vec![[CachedSum::default(); WAYS_PER_SET]; sets].into();
        Self { sets, now: 0, hits: 0, misses: 0 }
    }

    /// Returns the Internet checksum of the aggregate, folded to 16 bits and not complemented. `of`
    /// must return such a sum for a byte slice; it is not called for slices whose sums are cached.
    pub fn aggregate_sum(&mut self, aggregate: &Aggregate, of: impl Fn(&[u8]) -> u16) -> u16 {
        let mut total = SliceSum::default();
        for slice in aggregate.slices() {
            total.add(self.slice_sum(slice, &of), slice.len());
        }
        total.fold()
    }

    /// Returns the numbers of cache hits and misses.
    #[must_use]
    pub const fn hit_and_miss_counts(&self) -> (u64, u64) {
        (self.hits, self.misses)
    }

    fn slice_sum(&mut self, slice: &Slice, of: impl Fn(&[u8]) -> u16) -> u16 {
        let (content, length) = (Some(slice.content_id()), slice.pointer().length());
        self.now += 1;
        let index = self.set_index(slice.content_id(), length);
        let Some(set) = self.sets.get_mut(index) else { return of(slice.bytes()) };
        let known = set.iter_mut().find(|entry| entry.content == content && entry.length == length);
        if let Some(entry) = known {
            entry.used = self.now;
            self.hits += 1;
            return entry.sum;
        }
        self.misses += 1;
        let sum = of(slice.bytes());
        if let Some(oldest) = set.iter_mut().min_by_key(|entry| entry.used) {
            *oldest = CachedSum { content, length, sum, used: self.now };
        }
        sum
    }

    /// Returns the index of the set for a slice: a hash over all bits of the content id and the
    /// length.
    fn set_index(&self, content: ContentId, length: u32) -> usize {
        const HASH_MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
        let word = content.position ^ u64::from(length).rotate_left(40);
        let mixed =
            (word ^ u64::from(content.dbuf.number()).rotate_left(24)).wrapping_mul(HASH_MULTIPLIER);
        let index = (mixed ^ mixed >> 32).wrapping_mul(HASH_MULTIPLIER) >> 32;
        usize::try_from(index).unwrap_or(0) & (self.sets.len() - 1)
    }
}

/// A sum of 16-bit words that grows slice by slice. The sum of a slice at an odd offset is added
/// with its bytes swapped (RFC 1071, 2 (B)).
#[derive(Clone, Copy, Default)]
struct SliceSum {
    total: u64,
    is_odd: bool,
}

impl SliceSum {
    fn add(&mut self, part: u16, length: usize) {
        let part = if self.is_odd { part.swap_bytes() } else { part };
        self.total += u64::from(part);
        self.is_odd ^= length % 2 == 1;
    }

    fn fold(self) -> u16 {
        let mut total = self.total;
        while total > u64::from(u16::MAX) {
            total = (total >> 16) + (total & 0xffff);
        }
        u16::try_from(total).unwrap_or(u16::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::super::AllocationPool;
    use super::*;
    use abi::DbufId;
    use abi::access::AccessList;
    use buffer::pool::PoolConfig;
    use std::cell::Cell;
    use sys::process::effective_ids;
    use testkit::Random;

    /// Computes the checksum of RFC 1071 word by word.
    fn reference_checksum(bytes: &[u8]) -> u16 {
        let mut sum = 0u32;
        for word in bytes.chunks(2) {
            let low = word.get(1).copied().unwrap_or(0);
            sum += u32::from(u16::from_be_bytes([word[0], low]));
            sum = (sum & 0xffff) + (sum >> 16);
        }
        u16::try_from(sum).unwrap()
    }

    fn create_pool(id: u32) -> AllocationPool {
        let config = PoolConfig { segment: 1 << 16, segments: 8 };
        AllocationPool::new(DbufId::new(id).unwrap(), config, AccessList::private(effective_ids()))
            .unwrap()
    }

    /// Returns true if two sums are equal in ones' complement, which has two zeros.
    fn equal_sums(left: u16, right: u16) -> bool {
        left % 0xffff == right % 0xffff
    }

    #[test]
    fn q11_sum_is_independent_of_division_into_slices() {
        let mut random = Random::with_replayable_seed();
        let (mut pool, mut cache) = (create_pool(1), ChecksumCache::new(64));
        for _ in 0..500 {
            let length = random.within(0..3000);
            let bytes = random.bytes(length);
            let mut rest = pool.copy(&bytes).unwrap();
            let mut aggregate = Aggregate::new();
            while !rest.is_empty() {
                let tail = rest.split_off(random.within(1..200));
                aggregate.append(rest).unwrap();
                rest = tail;
            }
            for _ in 0..2 {
                let sum = cache.aggregate_sum(&aggregate, reference_checksum);
                assert!(equal_sums(sum, reference_checksum(&bytes)), "{sum:04x} {aggregate:?}");
            }
        }
    }

    #[test]
    fn q11_cached_file_after_new_headers_is_summed_once() {
        let (mut files, mut headers) = (create_pool(1), create_pool(2));
        let mut cache = ChecksumCache::new(64);
        let file = files.copy(&[0xab; 30_001]).unwrap();
        let summed = Cell::new(0);
        let of = |bytes: &[u8]| {
            summed.set(summed.get() + bytes.len());
            reference_checksum(bytes)
        };
        for request in 0..100u8 {
            let header = [request; 77];
            let mut response = headers.copy(&header).unwrap();
            response.append(file.clone()).unwrap();
            let sum = cache.aggregate_sum(&response, of);
            assert!(equal_sums(sum, reference_checksum(&response.to_vec())));
        }
        assert_eq!(summed.get(), 100 * 77 + 30_001, "the file once");
        assert_eq!(cache.hit_and_miss_counts(), (99, 101));
    }

    #[test]
    fn q11_cache_size_is_fixed_and_hot_entries_stay() {
        let mut pool = create_pool(1);
        let mut cache = ChecksumCache::new(16);
        let hot = pool.copy(&[1; 100]).unwrap();
        cache.aggregate_sum(&hot, reference_checksum);
        for _ in 0..1000 {
            let once = pool.copy(&[2; 50]).unwrap();
            cache.aggregate_sum(&once, reference_checksum);
            cache.aggregate_sum(&hot, |_| panic!("asked for all the time, and forgotten"));
        }
        assert_eq!(cache.sets.len() * WAYS_PER_SET, 16);
    }

    /// Expects memory that is reused for other bytes to have another content id.
    #[test]
    fn q10_q11_reused_memory_has_a_new_content_id() {
        let config = PoolConfig { segment: 4096, segments: 2 };
        let id = DbufId::new(1).unwrap();
        let mut pool =
            AllocationPool::new(id, config, AccessList::private(effective_ids())).unwrap();
        let mut cache = ChecksumCache::new(1 << 12);
        let mut uses = std::collections::HashMap::new();
        for round in 0..1000u32 {
            let bytes = round.to_le_bytes().repeat(500);
            let aggregate = pool.copy(&bytes).unwrap();
            assert!(equal_sums(
                cache.aggregate_sum(&aggregate, reference_checksum),
                reference_checksum(&bytes)
            ));
            for slice in aggregate.slices() {
                let at = slice.bytes().as_ptr();
                *uses.entry(at).or_insert(0) += 1;
            }
        }
        assert!(uses.values().any(|&times| times > 100), "memory was used again");
    }
}
