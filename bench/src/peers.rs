//! Peers written as small programs in C or C++, compiled when a bench starts. Benches omit a peer
//! that cannot be compiled.

use crate::temp_directory::TempDirectory;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Code shared by the peers.
const COMMON: &str = include_str!("../peers/common.h");

/// A compiled program in a temporary directory.
pub(crate) struct CompiledPeer {
    folder: TempDirectory,
    program: PathBuf,
}

impl CompiledPeer {
    /// Compiles a C program. The compiler prints its messages; the error names its exit status.
    pub(crate) fn new(name: &str, source: &str) -> Result<Self, String> {
        Self::compile("cc", (name, "c"), source, &[])
    }

    /// Compiles a C program with additional compiler arguments.
    pub(crate) fn with_arguments(
        name: &str,
        source: &str,
        arguments: &[String],
    ) -> Result<Self, String> {
        Self::compile("cc", (name, "c"), source, arguments)
    }

    /// Compiles a C++ program that uses threads, with additional compiler arguments.
    pub(crate) fn new_cpp(name: &str, source: &str, arguments: &[String]) -> Result<Self, String> {
        let always = ["-std=c++20", "-pthread", "-Wno-interference-size"].map(str::to_owned);
        Self::compile("c++", (name, "cpp"), source, &[&always, arguments].concat())
    }

    /// Compiles with the given compiler and additional arguments.
    fn compile(
        compiler: &str,
        (name, extension): (&str, &str),
        source: &str,
        arguments: &[String],
    ) -> Result<Self, String> {
        let folder = TempDirectory::new(name).map_err(|why| why.to_string())?;
        let compiled = Self { program: folder.0.join(name), folder };
        let text = compiled.program.with_extension(extension);
        std::fs::write(&text, source).map_err(|why| why.to_string())?;
        let common = compiled.folder.0.join("common.h");
        std::fs::write(common, COMMON).map_err(|why| why.to_string())?;
        let mut command = Command::new(compiler);
        // The arguments come last: the linker searches a library for symbols missing before it.
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
