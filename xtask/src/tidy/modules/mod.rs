//! The modules of a crate, and the dependencies between its files.
//!
//! Input: the files under a crate's `src`. Output: for each file, the files of the same crate whose
//! items it names. A dependency is on the file that *defines* the item: re-exports, renames and
//! globs are followed. Names come from `use` trees and from paths in code. Test files, and code
//! that the default build does not compile, are ignored. A `pub use` by itself is not a dependency;
//! a use of the re-exported name is.

mod resolve;
mod scan;
#[cfg(test)]
mod tests;

use super::tokens::{product_tokens, tokenize};
use super::tree::{File, Tree};
use resolve::{ResolvedPath, Resolver};
use scan::{CodePath, Import};
use std::collections::{BTreeMap, HashMap};

/// A module: a file, or a block `mod name { … }` in a file.
#[derive(Debug, Default)]
struct Module {
    /// The index of the module's file in [`FileDependencies::files`].
    file: usize,
    parent: Option<usize>,
    children: HashMap<String, usize>,
    /// The items that the module defines, each with the index of its file.
    items: HashMap<String, usize>,
    /// Names that `use` imports, each with the path of the imported item.
    imports: HashMap<String, Vec<String>>,
    /// Paths whose names the module imports all at once, by `use path::*`.
    globs: Vec<Vec<String>>,
    references: Vec<CodePath>,
}

/// Dependencies between the files of a crate.
#[derive(Debug, Default)]
pub(super) struct FileDependencies {
    /// Paths of the crate's files, relative to `src/`.
    pub(super) files: Vec<String>,
    /// The dependencies of each file. The keys are the indices of the files on which it depends.
    /// The values are the name of one used item, and the line of that use.
    pub(super) edges: Vec<BTreeMap<usize, (String, usize)>>,
}

/// Returns the file dependencies of the crate in the directory `base` (with a trailing slash).
pub(super) fn file_dependencies(tree: &Tree, base: &str) -> FileDependencies {
    let mut dependencies = FileDependencies::default();
    for root in ["src/lib.rs", "src/main.rs"] {
        if let Some(file) = tree.file(&format!("{base}{root}")) {
            ModuleReader { tree, base, modules: Vec::new(), dependencies: &mut dependencies }
                .read(file);
        }
    }
    dependencies
}

/// A reader of all modules below one root file of a crate, which collects the file dependencies.
struct ModuleReader<'t> {
    tree: &'t Tree,
    base: &'t str,
    modules: Vec<Module>,
    dependencies: &'t mut FileDependencies,
}

impl ModuleReader<'_> {
    fn read(mut self, root: &File) {
        self.read_file(root, None);
        for at in 0..self.modules.len() {
            self.add_edges(at);
        }
    }

    /// Adds the module of a file, and its submodules; returns the module's index.
    fn read_file(&mut self, file: &File, parent: Option<usize>) -> usize {
        let index = self.dependencies.files.len();
        let path = file.path.strip_prefix(self.base).unwrap_or(&file.path);
        self.dependencies.files.push(path.strip_prefix("src/").unwrap_or(path).to_owned());
        self.dependencies.edges.push(BTreeMap::new());
        let tokens = tokenize(&file.code);
        let contents = scan::scan_module(&product_tokens(&tokens));
        self.add_module(contents, index, parent, &crate::lines::submodule_directory(&file.path))
    }

    fn add_module(
        &mut self,
        contents: scan::ModuleContents,
        file: usize,
        parent: Option<usize>,
        folder: &str,
    ) -> usize {
        let at = self.modules.len();
        self.modules.push(Module { file, parent, ..Module::default() });
        for name in contents.items {
            self.modules[at].items.insert(name, file);
        }
        for Import { path, name, line, is_public } in contents.imports {
            let module = &mut self.modules[at];
            if !is_public {
                module.references.push(CodePath { path: path.clone(), line, is_use: true });
            }
            match name.as_str() {
                "*" => module.globs.push(path),
                "_" => {}
                _ => _ = module.imports.insert(name, path),
            }
        }
        self.modules[at].references.extend(contents.references);
        for (name, inner) in contents.inline {
            let folder = format!("{folder}{name}/");
            let child = self.add_module(inner, file, Some(at), &folder);
            self.modules[at].children.insert(name, child);
        }
        for name in contents.files {
            let paths = [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")];
            if let Some(inner) = paths.iter().find_map(|path| self.tree.file(path)) {
                let child = self.read_file(inner, Some(at));
                self.modules[at].children.insert(name, child);
            }
        }
        at
    }

    /// Adds the dependencies of the module with the index `at` to those of its file.
    fn add_edges(&mut self, at: usize) {
        let from = self.modules[at].file;
        let resolver = Resolver::new(&self.modules);
        for CodePath { path, line, is_use } in &self.modules[at].references {
            let to = match resolver.resolve(at, path) {
                Some(ResolvedPath::Item(file)) => file,
                // A name that a macro defines belongs to its module. A module itself is not an
                // item.
                Some(ResolvedPath::Unknown(module)) if !is_use => self.modules[module].file,
                _ => continue,
            };
            if to != from {
                self.dependencies.edges[from].entry(to).or_insert_with(|| (path.join("::"), *line));
            }
        }
    }
}
