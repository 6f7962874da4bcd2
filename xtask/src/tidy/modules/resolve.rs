//! From a path to the file that defines what it names.

use super::Module;
use std::cell::RefCell;
use std::collections::HashSet;

/// The target of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Target {
    /// An item in this file.
    Item(usize),
    /// A module.
    Module(usize),
    /// A name in this module that the text does not show.
    Unknown(usize),
}

/// Looks names up.
pub(super) struct Resolver<'m> {
    modules: &'m [Module],
    /// The names that are being looked up, so that two globs that name each other end.
    open: RefCell<HashSet<(usize, String)>>,
}

impl<'m> Resolver<'m> {
    pub(super) fn new(modules: &'m [Module]) -> Self {
        Self { modules, open: RefCell::default() }
    }

    /// Returns what `path` names in module `at`; `None` when it is of another crate, or a variable.
    pub(super) fn resolve(&self, at: usize, path: &[String]) -> Option<Target> {
        let mut rest = path;
        let mut module = at;
        let mut is_inside = false;
        while let Some((first, behind)) = rest.split_first() {
            module = match first.as_str() {
                "crate" => self.root(module),
                "super" => self.modules[module].parent?,
                "self" => module,
                _ => break,
            };
            (rest, is_inside) = (behind, true);
        }
        while let Some((name, behind)) = rest.split_first() {
            match self.name(module, name, !behind.is_empty()) {
                Some(Target::Module(next)) => module = next,
                // An item: what follows is a variant, a method or an associated item.
                Some(found) => return Some(found),
                None if is_inside => return Some(Target::Unknown(module)),
                None => return None,
            }
            (rest, is_inside) = (behind, true);
        }
        Some(Target::Module(module))
    }

    fn root(&self, mut module: usize) -> usize {
        while let Some(parent) = self.modules[module].parent {
            module = parent;
        }
        module
    }

    /// Looks up a name in a module: as a module where a path goes on behind it, else as an item.
    fn name(&self, at: usize, name: &str, goes_on: bool) -> Option<Target> {
        if !self.open.borrow_mut().insert((at, name.to_owned())) {
            return None;
        }
        let module = &self.modules[at];
        let child = || module.children.get(name).map(|child| Target::Module(*child));
        let item = || module.items.get(name).map(|file| Target::Item(*file));
        let found = match goes_on {
            true => child().or_else(item),
            false => item().or_else(child),
        };
        let found = found.or_else(|| self.resolve(at, module.imports.get(name)?)).or_else(|| {
            let globs = module.globs.iter().filter_map(|glob| self.resolve(at, glob));
            let mut inside = globs.filter_map(|target| match target {
                Target::Module(other) if other != at => self.name(other, name, goes_on),
                _ => None,
            });
            inside.next()
        });
        self.open.borrow_mut().remove(&(at, name.to_owned()));
        found
    }
}
