//! The system's libpcap, loaded with dlopen(3) on first use. The library compiles pcap-filter
//! expressions that our compiler does not support (CONTRACT 27) and serves as a reference in tests.
//!
//! No binary links against libpcap. On a machine without libpcap, [`Libpcap::load`] returns an
//! error.

use crate::error::{Error, Result};
use crate::packet::ClassicBpfInstruction;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// Shared object names of libpcap, in the order in which they are tried.
const SONAMES: [&CStr; 2] = [c"libpcap.so.0.8", c"libpcap.so.1"];

/// The system's libpcap, which stays loaded until the process ends.
#[derive(Clone, Copy, Debug)]
pub struct Libpcap {
    open_dead: OpenDeadFn,
    compile: CompileFn,
    error: GetErrorFn,
    free: FreeCodeFn,
    close: CloseFn,
}

type SymbolAddress = NonNull<c_void>;
type OpenDeadFn = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type CompileFn =
    unsafe extern "C" fn(*mut c_void, *mut CompiledProgram, *const c_char, c_int, c_uint) -> c_int;
type GetErrorFn = unsafe extern "C" fn(*mut c_void) -> *mut c_char;
type FreeCodeFn = unsafe extern "C" fn(*mut CompiledProgram);
type CloseFn = unsafe extern "C" fn(*mut c_void);

/// libpcap's `struct bpf_program`: a compiled filter.
#[repr(C)]
struct CompiledProgram {
    length: c_uint,
    instructions: *mut RawInstruction,
}

/// libpcap's `struct bpf_insn`: a classic BPF instruction.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawInstruction {
    code: u16,
    jt: u8,
    jf: u8,
    k: u32,
}

/// Serializes compilation, because libpcap before 1.8 kept its state in globals (pcap_compile(3)).
static COMPILE_LOCK: Mutex<()> = Mutex::new(());

/// `PCAP_NETMASK_UNKNOWN`: the netmask that stands for an unknown one.
const NETMASK_UNKNOWN: u32 = 0xffff_ffff;

impl Libpcap {
    /// Loads libpcap.
    ///
    /// Fails with ENOENT if libpcap is not installed.
    pub fn load() -> Result<Self> {
        let library = SONAMES
            .iter()
            .find_map(|name| {
                // SAFETY: the name is a C string; libpcap's constructors do not affect this
                // process.
                NonNull::new(unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) })
            })
            .ok_or_else(|| Error::new("dlopen", "libpcap.so.0.8, libpcap.so.1", libc::ENOENT))?;
        let (open_dead, compile) =
            (find_symbol(library, c"pcap_open_dead")?, find_symbol(library, c"pcap_compile")?);
        let (error, free) =
            (find_symbol(library, c"pcap_geterr")?, find_symbol(library, c"pcap_freecode")?);
        let close = find_symbol(library, c"pcap_close")?;
        Ok(Self {
            // SAFETY: pcap(3): `pcap_t *pcap_open_dead(int linktype, int snaplen)`.
            open_dead: unsafe { std::mem::transmute::<SymbolAddress, OpenDeadFn>(open_dead) },
            // SAFETY: pcap(3): `int pcap_compile(pcap_t *, struct bpf_program *, const char *, int,
            // bpf_u_int32)`.
            compile: unsafe { std::mem::transmute::<SymbolAddress, CompileFn>(compile) },
            // SAFETY: pcap(3): `char *pcap_geterr(pcap_t *)`.
            error: unsafe { std::mem::transmute::<SymbolAddress, GetErrorFn>(error) },
            // SAFETY: pcap(3): `void pcap_freecode(struct bpf_program *)`.
            free: unsafe { std::mem::transmute::<SymbolAddress, FreeCodeFn>(free) },
            // SAFETY: pcap(3): `void pcap_close(pcap_t *)`.
            close: unsafe { std::mem::transmute::<SymbolAddress, CloseFn>(close) },
        })
    }

    /// Compiles an expression for a link type (`DLT_*`) and a snapshot length in bytes, with
    /// libpcap's optimizer if `optimize` is true. On failure, returns libpcap's error message.
    /// Blocks while host names are resolved.
    pub fn compile(
        &self,
        expression: &str,
        link: i32,
        snap: i32,
        optimize: bool,
    ) -> std::result::Result<Vec<ClassicBpfInstruction>, String> {
        let text = CString::new(expression).map_err(|_| "the text has a zero byte".to_owned())?;
        // SAFETY: pcap_open_dead(3) accepts any two numbers and returns null on failure.
        let handle = unsafe { (self.open_dead)(link, snap) };
        let handle = NonNull::new(handle).ok_or_else(|| "pcap_open_dead failed".to_owned())?;
        let mut program = CompiledProgram { length: 0, instructions: std::ptr::null_mut() };
        let optimize = c_int::from(optimize);
        let one_at_a_time = COMPILE_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
        let (at, text) = (&raw mut program, text.as_ptr());
        // SAFETY: the handle is open, `program` and `text` outlive the call (pcap_compile(3)).
        let status =
            unsafe { (self.compile)(handle.as_ptr(), at, text, optimize, NETMASK_UNKNOWN) };
        let result = if status == 0 {
            let instructions = copy_instructions(&program);
            // SAFETY: pcap_freecode(3) frees the memory that pcap_compile allocated; it is called
            // once.
            unsafe { (self.free)(&raw mut program) };
            Ok(instructions)
        } else {
            Err(self.error_message(handle))
        };
        // SAFETY: the handle is open and not used any more.
        unsafe { (self.close)(handle.as_ptr()) };
        drop(one_at_a_time);
        result
    }

    fn error_message(&self, handle: NonNull<c_void>) -> String {
        // SAFETY: the handle is open; the text is part of it (pcap_geterr(3)).
        let text = unsafe { (self.error)(handle.as_ptr()) };
        if text.is_null() {
            return String::new();
        }
        // SAFETY: the text ends with a zero byte and is copied before the handle is closed.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

fn find_symbol(library: NonNull<c_void>, name: &'static CStr) -> Result<NonNull<c_void>> {
    // SAFETY: the library is loaded and the name is a C string.
    let address = unsafe { libc::dlsym(library.as_ptr(), name.as_ptr()) };
    let missing = || Error::new("dlsym", name.to_string_lossy().into_owned(), libc::ENOENT);
    NonNull::new(address).ok_or_else(missing)
}

fn copy_instructions(program: &CompiledProgram) -> Vec<ClassicBpfInstruction> {
    if program.instructions.is_null() {
        return Vec::new();
    }
    // SAFETY: pcap_compile succeeded, so `instructions` points to `length` instructions.
    let raw = unsafe { std::slice::from_raw_parts(program.instructions, program.length as usize) };
    raw.iter().map(|i| (i.code, i.jt, i.jf, i.k)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libpcap_compiles_and_reports_errors() {
        let pcap = match Libpcap::load() {
            Ok(pcap) => pcap,
            Err(error) => {
                println!("skipped: libpcap_compiles_and_reports_errors: {error}");
                assert_eq!(error.call, "dlopen");
                return;
            }
        };
        let program = pcap.compile("ip", 1, 65535, true).unwrap();
        // ldh [12]; jeq 0x800; ret snap; ret 0.
        assert_eq!(program[0], (0x28, 0, 0, 12));
        assert_eq!(program.last(), Some(&(0x06, 0, 0, 0)));
        let error = pcap.compile("port nonsense-port", 1, 65535, true).unwrap_err();
        assert!(error.contains("nonsense-port"), "{error}");
        assert!(pcap.compile("a\0b", 1, 65535, true).is_err());
    }
}
