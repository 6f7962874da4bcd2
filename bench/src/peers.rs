//! Peers written as small programs in C or C++, compiled when a bench starts if there is a
//! compiler.

use crate::folder::Folder;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Code shared by the peers.
const COMMON: &str = include_str!("../peers/common.h");

/// A compiled program in a temporary directory.
pub(crate) struct Compiled {
    folder: Folder,
    program: PathBuf,
}

impl Compiled {
    /// Compiles a C program; the error is the compiler's message.
    pub(crate) fn new(name: &str, source: &str) -> Result<Self, String> {
        Self::by("cc", (name, "c"), source, &[])
    }

    /// Compiles a C program with additional compiler arguments.
    pub(crate) fn with(name: &str, source: &str, words: &[String]) -> Result<Self, String> {
        Self::by("cc", (name, "c"), source, words)
    }

    /// Compiles a C++ program that uses threads, with additional compiler arguments.
    pub(crate) fn in_cpp(name: &str, source: &str, words: &[String]) -> Result<Self, String> {
        let always = ["-std=c++20", "-pthread", "-Wno-interference-size"].map(str::to_owned);
        Self::by("c++", (name, "cpp"), source, &[&always, words].concat())
    }

    /// Compiles with the given compiler and additional arguments; `kind` is the extension of the
    /// source file.
    fn by(
        compiler: &str,
        (name, kind): (&str, &str),
        source: &str,
        words: &[String],
    ) -> Result<Self, String> {
        let folder = Folder::new(name).map_err(|why| why.to_string())?;
        let compiled = Self { program: folder.0.join(name), folder };
        let text = compiled.program.with_extension(kind);
        std::fs::write(&text, source).map_err(|why| why.to_string())?;
        let common = compiled.folder.0.join("common.h");
        std::fs::write(common, COMMON).map_err(|why| why.to_string())?;
        let mut command = Command::new(compiler);
        // The arguments come last: the linker searches a library for symbols missing before it.
        command.arg("-O3").arg("-o").arg(compiled.program()).arg(&text).args(words);
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
