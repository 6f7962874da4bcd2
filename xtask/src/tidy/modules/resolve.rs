//! Resolution of a path to the file that defines the named item.

use super::Module;
use std::cell::RefCell;
use std::collections::HashSet;

/// The item or module that a path in Rust code names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ResolvedPath {
    /// An item. The number is the index of the file that defines it.
    Item(usize),
    /// A module. The number is its index in the list of modules.
    Module(usize),
    /// A name that should be in the module with this index but is not in its text, for example
    /// because a macro generates the definition.
    Unknown(usize),
}

/// A resolver of the paths in the code of a crate, given the crate's modules.
pub(super) struct Resolver<'m> {
    modules: &'m [Module],
    /// Names whose resolution is in progress, so that resolution terminates if two modules
    /// glob-import each other.
    in_progress: RefCell<HashSet<(usize, String)>>,
}

impl<'m> Resolver<'m> {
    pub(super) fn new(modules: &'m [Module]) -> Self {
        Self { modules, in_progress: RefCell::default() }
    }

    /// Returns the target of `path` in module `at`, or `None` if the path belongs to another crate
    /// or names a variable.
    pub(super) fn resolve(&self, at: usize, path: &[String]) -> Option<ResolvedPath> {
        let mut rest = path;
        let mut module = at;
        let mut is_inside = false;
        while let Some((first, behind)) = rest.split_first() {
            module = match first.as_str() {
                "crate" => self.crate_root(module),
                "super" => self.modules[module].parent?,
                "self" => module,
                _ => break,
            };
            (rest, is_inside) = (behind, true);
        }
        while let Some((name, behind)) = rest.split_first() {
            match self.resolve_name(module, name, !behind.is_empty()) {
                Some(ResolvedPath::Module(next)) => module = next,
                // The name is an item. The rest is a variant, a method or an associated item.
                Some(found) => return Some(found),
                None if is_inside => return Some(ResolvedPath::Unknown(module)),
                None => return None,
            }
            (rest, is_inside) = (behind, true);
        }
        Some(ResolvedPath::Module(module))
    }

    fn crate_root(&self, mut module: usize) -> usize {
        while let Some(parent) = self.modules[module].parent {
            module = parent;
        }
        module
    }

    /// Returns the target of a name in a module. If the path continues after the name, prefers a
    /// module with this name, and otherwise an item.
    fn resolve_name(&self, at: usize, name: &str, goes_on: bool) -> Option<ResolvedPath> {
        if !self.in_progress.borrow_mut().insert((at, name.to_owned())) {
            return None;
        }
        let module = &self.modules[at];
        let child = || module.children.get(name).map(|child| ResolvedPath::Module(*child));
        let item = || module.items.get(name).map(|file| ResolvedPath::Item(*file));
        let found = match goes_on {
            true => child().or_else(item),
            false => item().or_else(child),
        };
        let found = found.or_else(|| self.resolve(at, module.imports.get(name)?)).or_else(|| {
            let globs = module.globs.iter().filter_map(|glob| self.resolve(at, glob));
            let mut inside = globs.filter_map(|target| match target {
                ResolvedPath::Module(other) if other != at => {
                    self.resolve_name(other, name, goes_on)
                }
                _ => None,
            });
            inside.next()
        });
        self.in_progress.borrow_mut().remove(&(at, name.to_owned()));
        found
    }
}
