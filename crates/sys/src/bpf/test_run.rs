//! Test runs of a program on a packet in memory.

use std::os::fd::AsRawFd as _;

use super::{Attributes, Program, call_bpf, command};
use crate::error::Result;

/// Byte offset of the field `cb` (control buffer) in `__sk_buff`.
const SKB_CB_OFFSET: usize = 48;

/// The result of running a program on a packet in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TestRun {
    /// Return value of the program in the last run.
    pub return_value: u32,
    /// Mean duration of a run of the program, in ns.
    pub duration_ns: u32,
}

impl Program {
    /// Runs the program `repeat` times on a packet.
    ///
    /// Fails with EINVAL if the packet is shorter than 14 bytes (tc, XDP) or than its IP header
    /// (tc). A socket filter sees the packet without its first 14 bytes, because the kernel assumes
    /// an Ethernet header.
    pub fn test_run(&self, packet: &[u8], repeat: u32) -> Result<TestRun> {
        self.run_test(packet, (&mut [], &mut []), repeat).map(|(run, _)| run)
    }

    /// Runs the program once on a packet. Returns the result, and the first word of `cb` in
    /// `__sk_buff`. The return value of a cgroup program only passes or drops the packet, so the
    /// program can report more in this word. A cgroup program sees the packet without its first 14
    /// bytes.
    pub fn test_run_with_cb(&self, packet: &[u8]) -> Result<(TestRun, u32)> {
        // All of `__sk_buff`, with room for its growth.
        let mut context = [0; 256];
        let (run, _) = self.run_test(packet, (&mut [], &mut context), 1)?;
        let word = context.get(SKB_CB_OFFSET..).and_then(<[u8]>::first_chunk);
        Ok((run, word.map_or(0, |word| u32::from_ne_bytes(*word))))
    }

    /// Runs the program once on a packet. Returns the result and the packet as modified by the
    /// program.
    pub fn test_run_output(&self, packet: &[u8]) -> Result<(TestRun, Vec<u8>)> {
        // Maximum headroom that a program may add.
        const PACKET_GROWTH_BYTES_MAX: usize = 256;
        let mut left = vec![0; packet.len() + PACKET_GROWTH_BYTES_MAX];
        let (run, length) = self.run_test(packet, (&mut left, &mut []), 1)?;
        left.truncate(length);
        Ok((run, left))
    }

    fn run_test(
        &self,
        packet: &[u8],
        (output, context): (&mut [u8], &mut [u8]),
        repeat: u32,
    ) -> Result<(TestRun, usize)> {
        let address = |of: &mut [u8]| match of {
            [] => 0,
            of => of.as_mut_ptr().expose_provenance() as u64,
        };
        let length = |of: &[u8]| u32::try_from(of.len()).unwrap_or(u32::MAX);
        let mut attr = TestRunAttributes {
            fd: self.fd.as_raw_fd().cast_unsigned(),
            value: 0,
            input_size: length(packet),
            output_size: length(output),
            input: packet.as_ptr().expose_provenance() as u64,
            output: address(output),
            repeat,
            duration: 0,
            context_input_size: 0,
            context_output_size: length(context),
            context_input: 0,
            context_output: address(context),
            flags: 0,
            cpu: 0,
            batch: 0,
            pad: 0,
        };
        call_bpf(command::PROG_TEST_RUN, "PROG_TEST_RUN", &self.name, &mut attr)?;
        let length = usize::try_from(attr.output_size).unwrap_or(0).min(output.len());
        Ok((TestRun { return_value: attr.value, duration_ns: attr.duration }, length))
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
// slice; `output` and `context_output` are each zero or an exclusively borrowed slice of the stated
// size; all slices outlive the call, and the other address is zero (2).
unsafe impl Attributes for TestRunAttributes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_run_attributes_have_the_kernels_size() {
        assert_eq!(size_of::<TestRunAttributes>(), 80);
    }
}
