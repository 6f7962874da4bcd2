//! Peers that are small programs in C or C++, compiled when a bench starts. If a peer cannot be
//! compiled, benches omit it.

use crate::temp_directory::TempDirectory;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Header that all peers in C include, with their common code.
const COMMON_HEADER: &str = include_str!("../peers/common.h");
/// Public header of Streamline's C library, which peers include.
const LIBRARY_HEADER: &str = include_str!("../../crates/capi/include/streamline.h");
/// The file name of the C library as built by cargo.
const LIBRARY_FILE: &str = "libstreamline_c.so";

/// A program in C or C++ that a bench measures, compiled into a temporary directory.
pub(crate) struct CompiledPeer {
    folder: TempDirectory,
    program: PathBuf,
    /// The directory with the C library under its installed name, if the program uses it.
    _library: Option<TempDirectory>,
}

impl CompiledPeer {
    /// Compiles a C program. The compiler prints its messages; the error contains its exit status.
    pub(crate) fn new(name: &str, source: &str) -> Result<Self, String> {
        Self::compile("cc", (name, "c"), source, &[])
    }

    /// Compiles a C program with additional compiler arguments.
    pub(crate) fn compile_c(
        name: &str,
        source: &str,
        arguments: &[String],
    ) -> Result<Self, String> {
        Self::compile("cc", (name, "c"), source, arguments)
    }

    /// Compiles a program in C that uses Streamline's C library, which must be in the directory of
    /// the benchmark program.
    pub(crate) fn compile_with_library(name: &str, source: &str) -> Result<Self, String> {
        let own = std::env::current_exe().map_err(|why| why.to_string())?;
        let built = own.with_file_name(LIBRARY_FILE);
        if !built.is_file() {
            return Err(format!(
                "`{LIBRARY_FILE}` is not beside this program: `cargo build --release -p \
                 streamline-capi` builds it"
            ));
        }
        // The program loads the library by its installed name.
        let folder = TempDirectory::new("library").map_err(|why| why.to_string())?;
        let link = std::os::unix::fs::symlink(built, folder.0.join("libstreamline.so"));
        link.map_err(|why| why.to_string())?;
        let at = folder.0.display();
        let rpath = format!("-Wl,--disable-new-dtags,-rpath,{at}");
        let arguments = [format!("-L{at}"), rpath, "-lstreamline".to_owned()];
        let compiled = Self::compile("cc", (name, "c"), source, &arguments)?;
        Ok(Self { _library: Some(folder), ..compiled })
    }

    /// Compiles a C++ program that uses threads, with additional compiler arguments.
    pub(crate) fn compile_cpp(
        name: &str,
        source: &str,
        arguments: &[String],
    ) -> Result<Self, String> {
        let always = ["-std=c++20", "-pthread", "-Wno-interference-size"].map(str::to_owned);
        Self::compile("c++", (name, "cpp"), source, &[&always, arguments].concat())
    }

    /// Compiles a program with the given compiler and additional arguments. `name` and `extension`
    /// determine the name of the source file.
    fn compile(
        compiler: &str,
        (name, extension): (&str, &str),
        source: &str,
        arguments: &[String],
    ) -> Result<Self, String> {
        let folder = TempDirectory::new(name).map_err(|why| why.to_string())?;
        let compiled = Self { program: folder.0.join(name), folder, _library: None };
        let text = compiled.program.with_extension(extension);
        std::fs::write(&text, source).map_err(|why| why.to_string())?;
        let common = compiled.folder.0.join("common.h");
        std::fs::write(common, COMMON_HEADER).map_err(|why| why.to_string())?;
        let header = compiled.folder.0.join("streamline.h");
        std::fs::write(header, LIBRARY_HEADER).map_err(|why| why.to_string())?;
        let mut command = Command::new(compiler);
        // The linker searches a library only for symbols that are undefined so far, so the
        // arguments come last.
        command.arg("-O3").arg("-o").arg(compiled.program()).arg(&text).args(arguments);
        match command.status() {
            Ok(status) if status.success() => Ok(compiled),
            Ok(status) => Err(format!("{compiler} ended with {status}")),
            Err(why) => Err(format!("{compiler}: {why}")),
        }
    }

    pub(crate) fn program(&self) -> &Path {
        &self.program
    }
}
