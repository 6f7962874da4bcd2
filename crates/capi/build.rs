//! Build script that sets the soname of the library, the name under which programs linked against
//! the library load it.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libstreamline.so");
}
