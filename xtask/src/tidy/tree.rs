//! Tree of the files that the rules check: all files under the root, except build output and git's
//! directory.

use super::source;
use std::fs;
use std::io;
use std::path::Path;

/// A file that the rules check, with its contents.
#[derive(Debug)]
pub(crate) struct File {
    /// Path relative to the root, with `/` as separator.
    pub(crate) path: String,
    /// Length of the file in bytes, including binary files.
    pub(crate) length: usize,
    /// Contents of a text file; empty for a binary file.
    pub(crate) text: String,
    /// True for a text file, false for a binary file.
    pub(crate) is_text: bool,
    /// Contents without comments and literals; empty for a file that is not Rust.
    pub(crate) code: String,
}

impl File {
    /// Returns true if the name ends in `.extension`.
    pub(crate) fn has_extension(&self, extension: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, last)| last == extension)
    }

    /// Returns true for text files of a kind that is written by hand. The rules for text apply to
    /// these files.
    pub(crate) fn is_handwritten(&self) -> bool {
        let known = ["rs", "toml", "md", "sh", "pipe", "yml"].iter().any(|e| self.has_extension(e));
        self.is_text && (known || self.path == ".ci/run")
    }

    /// Returns true if the file's extension is `.rs`.
    pub(crate) fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    /// Returns true if the whole file is test code: it is named `tests.rs`, or in a directory
    /// `tests`.
    pub(crate) fn is_test(&self) -> bool {
        let mut parts = self.path.split('/');
        parts.any(|part| part == "tests" || part == "tests.rs")
    }
}

/// All files that the rules check, ordered by path.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) files: Vec<File>,
}

impl Tree {
    /// Reads all files under `root`, except build output and git's directory.
    pub(crate) fn read(root: &Path) -> io::Result<Self> {
        let mut files = Vec::new();
        collect_files(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }

    /// Returns the file with the path `path`, or `None` if the tree has no such file.
    pub(crate) fn file(&self, path: &str) -> Option<&File> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns true if the tree has a file or directory with this path.
    pub(crate) fn has_path(&self, path: &str) -> bool {
        let path = path.trim_end_matches('/');
        self.files.iter().any(|file| {
            file.path
                .strip_prefix(path)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }

    /// Returns the Rust files of the tree, ordered by path.
    pub(crate) fn rust_files(&self) -> impl Iterator<Item = &File> {
        self.files.iter().filter(|file| file.is_rust())
    }

    /// Returns the manifests of crates, with names derived from their directories: `crates/abi` is
    /// `abi`, `bench/loops` is `bench-loops`. Excludes crates that are separate workspaces.
    pub(crate) fn manifests(&self) -> impl Iterator<Item = (String, &File)> {
        let ours = |file: &&File| !file.text.lines().any(|line| line == "[workspace]");
        self.files.iter().filter(ours).filter_map(|file| {
            let folder = file.path.strip_suffix("/Cargo.toml")?;
            Some((folder.strip_prefix("crates/").unwrap_or(folder).replace('/', "-"), file))
        })
    }

    /// Returns the directories of all crates, with a trailing slash, and their names as in
    /// [`Tree::manifests`]. Includes crates that are separate workspaces.
    pub(crate) fn crates(&self) -> Vec<(String, String)> {
        let manifests = self.files.iter().filter_map(|file| {
            let folder = file.path.strip_suffix("/Cargo.toml")?;
            let name = folder.strip_prefix("crates/").unwrap_or(folder).replace('/', "-");
            Some((format!("{folder}/"), name))
        });
        manifests.collect()
    }
}

/// Returns the name of the crate whose directory contains the path; empty outside all crates.
pub(crate) fn crate_of_path<'c>(crates: &'c [(String, String)], path: &str) -> &'c str {
    let within = crates.iter().filter(|(base, _)| path.starts_with(base.as_str()));
    within.max_by_key(|(base, _)| base.len()).map_or("", |(_, name)| name)
}

fn collect_files(root: &Path, folder: &str, files: &mut Vec<File>) -> io::Result<()> {
    for entry in fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type()?;
        let path = if folder.is_empty() { name.clone() } else { format!("{folder}/{name}") };
        let built = name == "target" || folder.is_empty() && name.starts_with(".target-");
        if kind.is_dir() && name != ".git" && !built {
            collect_files(root, &path, files)?;
        } else if kind.is_file() && name != ".git" {
            files.push(load_file(root, path)?);
        }
    }
    Ok(())
}

fn load_file(root: &Path, path: String) -> io::Result<File> {
    let bytes = fs::read(root.join(&path))?;
    let length = bytes.len();
    let text = String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'));
    let is_text = text.is_some();
    let mut file =
        File { path, length, text: text.unwrap_or_default(), is_text, code: String::new() };
    if file.is_rust() {
        file.code = source::blank_comments_and_literals(&file.text);
    }
    Ok(file)
}
