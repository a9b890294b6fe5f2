//! Which modules import which, and where.

use crate::circles::Imports;
use crate::resolve::{Target, resolve};
use crate::tree::{ModuleId, Tree};
use std::collections::BTreeMap;

/// Where one module imports another: the first place in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The module whose file it is.
    pub(crate) module: ModuleId,
    pub(crate) line: usize,
    /// The path as it is written.
    pub(crate) path: String,
}

/// The imports of a crate.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    /// At least one place for each import.
    places: BTreeMap<(ModuleId, ModuleId), Vec<Place>>,
}

impl Graph {
    /// The imports between the files of a crate.
    pub(crate) fn of_files(tree: &Tree) -> Self {
        let mut graph = Self::default();
        for from in 0..tree.modules.len() {
            graph.add_module(tree, from);
        }
        graph
    }

    fn add_module(&mut self, tree: &Tree, from: ModuleId) {
        let names = &tree.modules[from].names;
        let imported = names.imports.iter().filter(|import| !import.is_reexport);
        for named in imported.map(|import| &import.of).chain(&names.uses) {
            if let Some(Target::Item(to)) = resolve(tree, from, &named.path) {
                let module = tree.modules[from].home;
                let path = named.path.join("::");
                let place = Place { module, line: named.line, path };
                self.add(module, tree.modules[to].home, place);
            }
        }
    }

    /// Records an import; only the first place of a file is kept.
    fn add(&mut self, from: ModuleId, to: ModuleId, place: Place) {
        if from == to {
            return;
        }
        let places = self.places.entry((from, to)).or_default();
        match places.iter_mut().find(|known| known.module == place.module) {
            Some(known) if known.line > place.line => *known = place,
            Some(_) => {}
            None => places.push(place),
        }
    }

    /// The same with each module of the crate's root as one, together with all within it.
    pub(crate) fn fold(&self, tree: &Tree) -> Self {
        let mut folded = Self::default();
        for ((from, to), places) in &self.places {
            for place in places {
                folded.add(top_of(tree, *from), top_of(tree, *to), place.clone());
            }
        }
        folded
    }

    /// Every pair of a module and one that it imports.
    pub(crate) fn imports(&self) -> Imports {
        self.places.keys().copied().collect()
    }

    /// Where `from` imports `to`, once for each file.
    pub(crate) fn places(&self, from: ModuleId, to: ModuleId) -> &[Place] {
        self.places.get(&(from, to)).map_or(&[], Vec::as_slice)
    }
}

/// The module of the crate's root that a module is or is within; the root itself.
fn top_of(tree: &Tree, module: ModuleId) -> ModuleId {
    match tree.modules[module].parent {
        None | Some(0) => module,
        Some(parent) => top_of(tree, parent),
    }
}
