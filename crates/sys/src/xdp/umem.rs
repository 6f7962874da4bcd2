//! The memory of AF_XDP sockets: a memfd divided into frames of equal size.

use crate::error::{Error, Result};
use crate::memory::{Mapping, Memfd, Seals};

/// Number and size of the frames in a UMEM, and the headroom in each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UmemSizes {
    /// Size of a frame in bytes: a power of two between 2048 and the page size.
    pub frame: u32,
    /// Number of frames in the UMEM.
    pub frames: u32,
    /// Number of free bytes before received data, in addition to the kernel's 256.
    pub headroom: u32,
}

/// The memory of AF_XDP sockets (UMEM). Another process can map [`Umem::file`] and access the same
/// bytes.
#[derive(Debug)]
pub struct Umem {
    memory: Mapping,
    file: Memfd,
    shape: UmemSizes,
}

impl Umem {
    /// Creates a UMEM and allocates all its pages.
    pub fn create(name: &str, shape: UmemSizes) -> Result<Self> {
        let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
        let whole = shape.frame.is_power_of_two()
            && (2048..=page).contains(&shape.frame)
            && shape.frames > 0;
        let bytes = (shape.frame as usize).checked_mul(shape.frames as usize).filter(|_| whole);
        let Some(bytes) = bytes.and_then(|bytes| bytes.checked_next_multiple_of(page as usize))
        else {
            return Err(Error::new("setsockopt", format!("a umem of {shape:?}"), libc::EINVAL));
        };
        let file = Memfd::create(name, bytes)?;
        file.allocate(0, bytes)?;
        file.seal(Seals::SIZE)?;
        Ok(Self { memory: file.map()?, file, shape })
    }

    /// Returns the size and number of the frames, and the headroom.
    #[must_use]
    pub const fn sizes(&self) -> UmemSizes {
        self.shape
    }

    /// Returns the file of the memory, for processes that may write to all of it.
    #[must_use]
    pub const fn file(&self) -> &Memfd {
        &self.file
    }

    /// Returns the mapping of all frames.
    #[must_use]
    pub const fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// Returns the total size of all frames in bytes.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.shape.frame as u64 * self.shape.frames as u64
    }

    /// Returns the address of the frame with this number.
    #[must_use]
    pub const fn address(&self, frame: u32) -> u64 {
        frame as u64 * self.shape.frame as u64
    }

    /// Returns the number of the frame that contains an address; `None` if the address is outside
    /// of the memory.
    #[must_use]
    pub fn frame_at_address(&self, address: u64) -> Option<u32> {
        let number = u32::try_from(address / u64::from(self.shape.frame)).ok()?;
        (number < self.shape.frames).then_some(number)
    }

    /// Returns true if the `length` bytes at `address` are in one frame.
    #[must_use]
    pub fn is_in_one_frame(&self, address: u64, length: u32) -> bool {
        let within = address % u64::from(self.shape.frame) + u64::from(length);
        self.frame_at_address(address).is_some() && within <= u64::from(self.shape.frame)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn umem_addresses_map_to_frames() {
        let shape = UmemSizes { frame: 2048, frames: 3, headroom: 0 };
        let umem = Umem::create("sys-test", shape).unwrap();
        assert_eq!((umem.bytes(), umem.memory().len()), (6144, 8192));
        assert_eq!((umem.address(2), umem.frame_at_address(4097)), (4096, Some(2)));
        assert!(umem.is_in_one_frame(4096 + 48, 2000) && !umem.is_in_one_frame(4096 + 49, 2000));
        assert!(!umem.is_in_one_frame(6144, 0) && !umem.is_in_one_frame(u64::MAX, u32::MAX));
        for frame in [0, 1024, 3000, 1 << 20] {
            let refused = Umem::create("sys-test", UmemSizes { frame, ..shape });
            assert_eq!(refused.unwrap_err().errno, libc::EINVAL);
        }
    }
}
