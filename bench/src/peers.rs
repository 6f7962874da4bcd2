//! Peers that are small programs in C or C++: compiled when a bench begins, where there is a
//! compiler.

use crate::folder::Folder;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The parts that peers share.
const COMMON: &str = include_str!("../peers/common.h");

/// A program in a folder of its own that goes away.
pub(crate) struct Compiled {
    folder: Folder,
    program: PathBuf,
}

impl Compiled {
    /// Compiles a program of this name in C; why not, if it cannot be had.
    pub(crate) fn new(name: &str, source: &str) -> Result<Self, String> {
        Self::by("cc", (name, "c"), source, &[])
    }

    /// As [`Compiled::new`], with these words more for the compiler.
    pub(crate) fn with(name: &str, source: &str, words: &[String]) -> Result<Self, String> {
        Self::by("cc", (name, "c"), source, words)
    }

    /// As [`Compiled::with`], in C++ with threads.
    pub(crate) fn in_cpp(name: &str, source: &str, words: &[String]) -> Result<Self, String> {
        let always = ["-std=c++20", "-pthread", "-Wno-interference-size"].map(str::to_owned);
        Self::by("c++", (name, "cpp"), source, &[&always, words].concat())
    }

    /// Compiles by this compiler, with these words more; the text is one of this kind.
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
        // The words come last: a library is asked for what was found missing before it.
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
