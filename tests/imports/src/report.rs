//! What is printed about one crate.

use crate::circles::{Circle, circles, components, imports_of};
use crate::graph::Graph;
use crate::tree::{ModuleId, Tree};
use std::fmt;

/// The circles of a crate.
#[derive(Debug)]
pub(crate) struct Report<'t> {
    tree: &'t Tree,
    files: Section,
    folded: Section,
}

/// The circles of one graph.
#[derive(Debug)]
struct Section {
    graph: Graph,
    circles: Vec<Circle>,
}

impl Section {
    fn new(graph: Graph) -> Self {
        Self { circles: circles(graph.imports()), graph }
    }
}

impl<'t> Report<'t> {
    /// Looks for circles between the files of a crate, and between the modules of its root: those
    /// that the files do not show already.
    pub(crate) fn new(tree: &'t Tree) -> Self {
        let files = Section::new(Graph::of_files(tree));
        let mut folded = Section::new(files.graph.fold(tree));
        folded.circles.retain(|circle| !files.circles.contains(circle));
        Self { tree, files, folded }
    }

    /// How many circles there are, of both kinds.
    pub(crate) fn count_circles(&self) -> usize {
        self.files.circles.len() + self.folded.circles.len()
    }

    fn names(&self, modules: impl IntoIterator<Item = ModuleId>) -> String {
        let name = |module: ModuleId| match self.tree.modules[module].path.as_slice() {
            [] => "the root".to_owned(),
            path => path.join("::"),
        };
        modules.into_iter().map(name).collect::<Vec<_>>().join(", ")
    }

    fn section(&self, f: &mut fmt::Formatter<'_>, kind: &str, section: &Section) -> fmt::Result {
        for component in components(&section.graph.imports()) {
            let is_within = |circle: &&Circle| component.contains(&circle[0]);
            let mut circles = section.circles.iter().filter(is_within).peekable();
            if circles.peek().is_some() {
                let names = self.names(component.iter().copied());
                writeln!(f, "{} {kind} import one another: {names}", component.len())?;
            }
            for circle in circles {
                self.circle(f, &section.graph, circle)?;
            }
        }
        Ok(())
    }

    fn circle(&self, f: &mut fmt::Formatter<'_>, graph: &Graph, circle: &Circle) -> fmt::Result {
        writeln!(f, "  {}", self.names(circle.iter().copied()))?;
        for (from, to) in imports_of(circle) {
            let places = graph.places(from, to);
            if let Some(first) = places.first() {
                let file = self.tree.modules[first.module].file.display();
                write!(f, "    {file}:{}: {}", first.line, first.path)?;
            }
            if places.len() > 1 {
                write!(f, " (and in {} more files)", places.len() - 1)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.section(f, "files", &self.files)?;
        self.section(f, "modules of the root", &self.folded)?;
        let root = self.tree.modules[0].file.display();
        let modules = self.tree.count_files();
        let imports = self.files.graph.imports().len();
        let circles = self.count_circles();
        writeln!(f, "{root}: {modules} modules, {imports} imports, {circles} circles")
    }
}
