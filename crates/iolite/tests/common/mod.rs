//! The test helpers of `buffer`, and adapters through which they read and write streams of
//! pointers.

#![allow(unused_imports, reason = "no test file needs all of it")]

#[path = "../../../buffer/tests/common/mod.rs"]
mod buffers;

pub(crate) use buffers::*;

use buffer::Fault;
use streamline_iolite::indirect;
use streamline_iolite::interface::{StreamReader as _, StreamWriter as _};

impl BlockSource for indirect::Input {
    fn read_some(&mut self, out: &mut [u8]) -> Result<usize, Fault> {
        self.read(out)
    }
}

impl WriteBlocks for indirect::Output {
    fn write_block(&mut self, block: &[u8]) -> Result<bool, Fault> {
        self.write(block)
    }

    fn publish(&mut self) {
        self.flush();
    }
}
