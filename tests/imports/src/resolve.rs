//! From a path to the module that defines what it names.

use crate::names::Import;
use crate::tree::{ModuleId, Tree};

/// What a path of this crate names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A module.
    Module(ModuleId),
    /// An item that this module defines, or one of another crate that it alone re-exports.
    Item(ModuleId),
}

/// Resolves a path that a module writes; `None` for other crates' and for local variables.
///
/// A name that a module does not visibly define counts as its own: macros define items as well.
pub(crate) fn resolve(tree: &Tree, from: ModuleId, path: &[String]) -> Option<Target> {
    Search { tree, visited: Vec::new() }.path(from, path)
}

struct Search<'t> {
    tree: &'t Tree,
    /// Names that are being looked up: imports may be circular, too.
    visited: Vec<(ModuleId, String)>,
}

impl Search<'_> {
    fn path(&mut self, from: ModuleId, path: &[String]) -> Option<Target> {
        let (first, rest) = path.split_first()?;
        let start = match first.as_str() {
            "crate" => Target::Module(0),
            "self" => Target::Module(from),
            "super" => Target::Module(self.tree.modules[from].parent?),
            name => self.name(from, name, rest.is_empty())?,
        };
        let mut target = start;
        for (at, name) in rest.iter().enumerate() {
            let Target::Module(module) = target else { break };
            target = match name.as_str() {
                "super" => Target::Module(self.tree.modules[module].parent?),
                name => {
                    self.name(module, name, at + 1 == rest.len()).unwrap_or(Target::Item(module))
                }
            };
        }
        Some(target)
    }

    /// What a name means within a module. The last name of a path is an item rather than a module.
    fn name(&mut self, module: ModuleId, name: &str, is_last: bool) -> Option<Target> {
        let key = (module, name.to_owned());
        if self.visited.contains(&key) {
            return None;
        }
        self.visited.push(key);
        let child = self.tree.child(module, name).map(Target::Module);
        let found = if is_last {
            self.item(module, name).or(child)
        } else {
            child.or_else(|| self.item(module, name))
        };
        let found = found.or_else(|| self.glob(module, name, is_last));
        self.visited.pop();
        found
    }

    fn item(&mut self, module: ModuleId, name: &str) -> Option<Target> {
        let names = &self.tree.modules[module].names;
        if names.items.iter().any(|item| item == name) {
            return Some(Target::Item(module));
        }
        let is_named = |import: &&Import| import.name == name;
        names.imports.iter().filter(is_named).find_map(|import| self.path(module, &import.of.path))
    }

    fn glob(&mut self, module: ModuleId, name: &str, is_last: bool) -> Option<Target> {
        self.tree.modules[module].names.globs.iter().find_map(|glob| {
            match self.path(module, &glob.path)? {
                Target::Module(all) => self.name(all, name, is_last),
                Target::Item(_) => None,
            }
        })
    }
}
