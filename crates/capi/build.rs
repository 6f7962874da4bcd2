//! Sets the soname of the library: the name that C programs linked against it load.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libstreamline.so");
}
