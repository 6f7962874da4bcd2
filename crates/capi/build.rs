//! Names the library for the linker of C programs, as it is installed.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libstreamline.so");
}
