//! BTF type information for programs' functions and source lines.
//!
//! [`BtfBuilder`] encodes the few kinds that generated programs need, and loads them into the
//! kernel, which returns a descriptor. Kind numbers follow the kernel's `btf.rst`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::{Attributes, command, open_object};
use crate::error::{Error, Result};

const BTF_MAGIC: u16 = 0xeb9f;
const BTF_HEADER_SIZE: u32 = 24;

/// BTF kinds (`BTF_KIND_*`).
mod kind {
    pub(super) const INT: u32 = 1;
    pub(super) const FUNC: u32 = 12;
    pub(super) const FUNC_PROTO: u32 = 13;
}

/// BTF type information that has been loaded into the kernel and verified.
#[derive(Debug)]
pub struct Btf {
    fd: OwnedFd,
}

/// A BTF section under construction. Types are numbered from 1; 0 is `void`.
#[derive(Clone, Debug)]
pub struct BtfBuilder {
    types: Vec<u8>,
    texts: Vec<u8>,
    count: u32,
}

impl Default for BtfBuilder {
    fn default() -> Self {
        // Offset 0 is the empty string.
        Self { types: Vec::new(), texts: vec![0], count: 0 }
    }
}

impl BtfBuilder {
    /// Creates a BTF section without types.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a string, truncated at its first zero byte, and returns its offset in the string
    /// section.
    pub fn add_string(&mut self, text: &str) -> u32 {
        let at = self.texts.len();
        self.texts.extend(text.bytes().take_while(|byte| *byte != 0));
        self.texts.push(0);
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// Adds an unsigned integer type of `bytes` bytes and returns its type id.
    pub fn add_int(&mut self, name: &str, bytes: u32) -> u32 {
        let name = self.add_string(name);
        self.push_type(name, kind::INT << 24, bytes, &[bytes * 8])
    }

    /// Adds a function that returns the type with id `answer`, and returns the type id of the
    /// function. `parameters` contains the name and the type id of each parameter. The function has
    /// global linkage, so the verifier checks it independently of its callers.
    pub fn add_function(&mut self, name: &str, answer: u32, parameters: &[(&str, u32)]) -> u32 {
        const BTF_FUNC_GLOBAL: u32 = 1;
        let list: Vec<u32> =
            parameters.iter().flat_map(|(name, of)| [self.add_string(name), *of]).collect();
        let count = u32::try_from(parameters.len()).unwrap_or(u32::MAX);
        let prototype = self.push_type(0, kind::FUNC_PROTO << 24 | count & 0xffff, answer, &list);
        let name = self.add_string(name);
        self.push_type(name, kind::FUNC << 24 | BTF_FUNC_GLOBAL, prototype, &[])
    }

    /// Loads the section into the kernel, and returns the verified type information.
    pub fn load(&self) -> Result<Btf> {
        let bytes = self
            .encode()
            .ok_or_else(|| Error::new("bpf", "BTF_LOAD of more than 4 GB of types", libc::E2BIG))?;
        let mut attr = BtfAttributes {
            bytes: bytes.as_ptr().expose_provenance() as u64,
            log: 0,
            size: u32::try_from(bytes.len()).unwrap_or(u32::MAX),
            log_size: 0,
            log_level: 0,
            pad: 0,
        };
        Ok(Btf { fd: open_object(command::BTF_LOAD, "BTF_LOAD", "types", &mut attr)? })
    }

    fn push_type(&mut self, name: u32, info: u32, size_or_type: u32, rest: &[u32]) -> u32 {
        let words = [name, info, size_or_type];
        self.types.extend(words.iter().chain(rest).flat_map(|word| word.to_ne_bytes()));
        self.count += 1;
        self.count
    }

    fn encode(&self) -> Option<Vec<u8>> {
        let types = u32::try_from(self.types.len()).ok()?;
        let texts = u32::try_from(self.texts.len()).ok()?;
        let mut bytes =
            Vec::with_capacity(self.types.len() + self.texts.len() + BTF_HEADER_SIZE as usize);
        bytes.extend(BTF_MAGIC.to_ne_bytes());
        bytes.extend([1, 0]);
        let words = [BTF_HEADER_SIZE, 0, types, types, texts];
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        bytes.extend(&self.types);
        bytes.extend(&self.texts);
        Some(bytes)
    }
}

impl AsFd for Btf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[repr(C)]
struct BtfAttributes {
    bytes: u64,
    log: u64,
    size: u32,
    log_size: u32,
    log_level: u32,
    pad: u32,
}

// SAFETY: the fields of BTF_LOAD with the padding at its end spelled out (1); `bytes` is a vector
// that outlives the call, and there is no log (2).
unsafe impl Attributes for BtfAttributes {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn btf_encoding_matches_the_kernels_layout() {
        let mut types = BtfBuilder::new();
        let number = types.add_int("int", 4);
        assert_eq!((number, types.add_function("main", number, &[("ctx", number)])), (1, 3));
        let bytes = types.encode().unwrap();
        assert_eq!(bytes[..8], [0x9f, 0xeb, 1, 0, 24, 0, 0, 0]);
        assert_eq!(bytes.len(), 24 + 16 + (12 + 8) + 12 + "\0int\0ctx\0main\0".len());
        assert!(bytes.ends_with(b"\0int\0ctx\0main\0"));
    }
}
