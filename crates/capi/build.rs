//! Build script that sets the soname of the library: the name that C programs linked against the
//! library load.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libstreamline.so");
}
