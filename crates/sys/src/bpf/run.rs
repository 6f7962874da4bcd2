//! Test runs: a program over a packet, without a device.

use std::os::fd::AsRawFd as _;

use super::{Attributes, Program, call, command};
use crate::error::Result;

/// What a test run came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// The return value.
    pub value: u32,
    /// Nanoseconds per packet, on average.
    pub duration_ns: u32,
}

impl Program {
    /// Runs the program `repeat` times over this packet. Traffic control and XDP take frames of at
    /// least 14 bytes and (traffic control) no IP packet shorter than its header: EINVAL. A socket
    /// filter sees the packet without its first 14 bytes, which the kernel takes for the Ethernet
    /// header.
    pub fn test_run(&self, packet: &[u8], repeat: u32) -> Result<TestRun> {
        let mut attr = TestRunAttributes {
            fd: self.fd.as_raw_fd().cast_unsigned(),
            value: 0,
            input_size: u32::try_from(packet.len()).unwrap_or(u32::MAX),
            output_size: 0,
            input: packet.as_ptr().expose_provenance() as u64,
            output: 0,
            repeat,
            duration: 0,
            context_input_size: 0,
            context_output_size: 0,
            context_input: 0,
            context_output: 0,
            flags: 0,
            cpu: 0,
            batch: 0,
            pad: 0,
        };
        call(command::PROG_TEST_RUN, "PROG_TEST_RUN", &self.name, &mut attr)?;
        Ok(TestRun { value: attr.value, duration_ns: attr.duration })
    }
}

#[repr(C)]
struct TestRunAttributes {
    fd: u32,
    value: u32,
    input_size: u32,
    output_size: u32,
    input: u64,
    output: u64,
    repeat: u32,
    duration: u32,
    context_input_size: u32,
    context_output_size: u32,
    context_input: u64,
    context_output: u64,
    flags: u32,
    cpu: u32,
    batch: u32,
    pad: u32,
}

// SAFETY: the fields of PROG_TEST_RUN with the padding at its end spelled out (1); `input` is a
// slice that outlives the call, the other addresses are zero (2).
unsafe impl Attributes for TestRunAttributes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_structure_has_the_kernels_size() {
        assert_eq!(size_of::<TestRunAttributes>(), 80);
    }
}
