//! Circles in a set of imports.

use crate::tree::ModuleId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Which modules import which.
pub(crate) type Imports = BTreeSet<(ModuleId, ModuleId)>;

/// Modules each of which imports the next one, and the last one the first.
pub(crate) type Circle = Vec<ModuleId>;

/// The shortest circle, then the shortest one without its imports, and so on: each can only be
/// broken by removing an import of its own.
pub(crate) fn circles(mut imports: Imports) -> Vec<Circle> {
    let mut circles = Vec::new();
    while let Some(circle) = shortest(&imports) {
        for import in imports_of(&circle) {
            imports.remove(&import);
        }
        circles.push(circle);
    }
    circles
}

/// The imports that a circle is made of.
pub(crate) fn imports_of(circle: &[ModuleId]) -> impl Iterator<Item = (ModuleId, ModuleId)> {
    circle.iter().copied().zip(circle.iter().copied().cycle().skip(1))
}

/// The sets of modules that all import one another, directly or not.
pub(crate) fn components(imports: &Imports) -> Vec<BTreeSet<ModuleId>> {
    let mut components: Vec<BTreeSet<ModuleId>> = Vec::new();
    for (module, _) in imports {
        if !components.iter().any(|component| component.contains(module)) {
            let reached = came_from(imports, *module).into_keys();
            let returns = |other: &ModuleId| came_from(imports, *other).contains_key(module);
            components.push(reached.filter(returns).collect());
        }
    }
    components.retain(|component| !component.is_empty());
    components
}

fn shortest(imports: &Imports) -> Option<Circle> {
    let modules: BTreeSet<_> = imports.iter().map(|(from, _)| *from).collect();
    modules.into_iter().filter_map(|module| circle_through(imports, module)).min_by_key(Vec::len)
}

/// The shortest circle that begins with `start`.
fn circle_through(imports: &Imports, start: ModuleId) -> Option<Circle> {
    let came_from = came_from(imports, start);
    let before = |module: &ModuleId| Some(came_from[module]).filter(|before| *before != start);
    let last = *came_from.get(&start)?;
    let mut circle: Circle = std::iter::successors(Some(last), before).collect();
    circle.push(start);
    circle.reverse();
    Some(circle)
}

/// The modules that `start` imports, directly or not, each with the one before it on the shortest
/// way.
fn came_from(imports: &Imports, start: ModuleId) -> BTreeMap<ModuleId, ModuleId> {
    let mut came_from = BTreeMap::new();
    let mut queue = VecDeque::from([start]);
    while let Some(from) = queue.pop_front() {
        for (_, to) in imports.range((from, 0)..(from + 1, 0)) {
            came_from.entry(*to).or_insert_with(|| {
                queue.push_back(*to);
                from
            });
        }
    }
    came_from
}
