//! The modules of a crate, as its files declare them.

use crate::conditions::is_for_tests;
use crate::names::Names;
use std::io;
use std::path::{Path, PathBuf};
use syn::{Expr, ExprLit, Item, ItemMod, Lit, Meta};

/// The place of a module in [`Tree::modules`]. The crate's root is 0.
pub(crate) type ModuleId = usize;

/// A module: a file, or an inline part of one.
#[derive(Debug)]
pub(crate) struct Module {
    /// Its path from the crate's root; empty for the root.
    pub(crate) path: Vec<String>,
    pub(crate) parent: Option<ModuleId>,
    pub(crate) children: Vec<ModuleId>,
    /// The module that its file is: itself, unless it is inline.
    pub(crate) home: ModuleId,
    pub(crate) file: PathBuf,
    pub(crate) names: Names,
}

/// A crate.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    pub(crate) modules: Vec<Module>,
}

/// Why a crate cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    /// A file is missing, or is not text.
    #[error("cannot read {}", .0.display())]
    File(PathBuf, #[source] io::Error),
    /// A file is not Rust.
    #[error("cannot parse {}", .0.display())]
    Syntax(PathBuf, #[source] syn::Error),
}

/// Reads a file: tests have theirs in memory.
pub(crate) type ReadFile<'f> = &'f dyn Fn(&Path) -> io::Result<String>;

impl Tree {
    /// Reads the crate whose root is this file.
    pub(crate) fn read(root: &Path, read_file: ReadFile<'_>) -> Result<Self, ReadError> {
        let mut reader = Reader { tree: Self::default(), read_file };
        let source = reader.read_file(root)?;
        let id = reader.add(None, Vec::new(), root);
        reader.parse(id, &source, directory_of(root))?;
        Ok(reader.tree)
    }

    /// The child of this name.
    pub(crate) fn child(&self, parent: ModuleId, name: &str) -> Option<ModuleId> {
        let is_named =
            |child: &&ModuleId| self.modules[**child].path.last().is_some_and(|last| last == name);
        self.modules[parent].children.iter().find(is_named).copied()
    }

    /// How many modules are files.
    pub(crate) fn count_files(&self) -> usize {
        self.modules.iter().enumerate().filter(|(id, module)| module.home == *id).count()
    }
}

struct Reader<'f> {
    tree: Tree,
    read_file: ReadFile<'f>,
}

impl Reader<'_> {
    fn read_file(&self, file: &Path) -> Result<String, ReadError> {
        (self.read_file)(file).map_err(|error| ReadError::File(file.to_owned(), error))
    }

    /// Adds a module that is a file of its own.
    fn add(&mut self, parent: Option<ModuleId>, path: Vec<String>, file: &Path) -> ModuleId {
        let id = self.tree.modules.len();
        let file = file.to_owned();
        let names = Names::default();
        self.tree.modules.push(Module {
            path,
            parent,
            children: Vec::new(),
            home: id,
            file,
            names,
        });
        if let Some(parent) = parent {
            self.tree.modules[parent].children.push(id);
        }
        id
    }

    /// Reads a file's text; its children's files are in `directory`.
    fn parse(&mut self, id: ModuleId, source: &str, directory: PathBuf) -> Result<(), ReadError> {
        let parsed = syn::parse_file(source)
            .map_err(|error| ReadError::Syntax(self.tree.modules[id].file.clone(), error))?;
        if is_for_tests(&parsed.attrs) {
            return Ok(());
        }
        self.items(id, &parsed.items, &directory)
    }

    fn items(&mut self, id: ModuleId, items: &[Item], directory: &Path) -> Result<(), ReadError> {
        for item in items {
            match item {
                Item::Mod(module) if is_for_tests(&module.attrs) => {}
                Item::Mod(module) => self.module(id, module, directory)?,
                item => self.tree.modules[id].names.add(item),
            }
        }
        Ok(())
    }

    /// Reads a child: its own file, or inline.
    fn module(
        &mut self,
        parent: ModuleId,
        module: &ItemMod,
        directory: &Path,
    ) -> Result<(), ReadError> {
        let name = module.ident.to_string();
        let mut path = self.tree.modules[parent].path.clone();
        path.push(name.clone());
        let Some((_, items)) = &module.content else {
            let (file, source) = self.find(module, &name, directory)?;
            let children = if given_path(module).is_some() || file.ends_with("mod.rs") {
                directory_of(&file)
            } else {
                directory.join(name)
            };
            let id = self.add(Some(parent), path, &file);
            return self.parse(id, &source, children);
        };
        let file = self.tree.modules[parent].file.clone();
        let id = self.add(Some(parent), path, &file);
        self.tree.modules[id].home = self.tree.modules[parent].home;
        self.items(id, items, &directory.join(name))
    }

    /// The file of a module, and its text: `name.rs`, else `name/mod.rs`, unless a `#[path]` names
    /// another.
    fn find(
        &self,
        module: &ItemMod,
        name: &str,
        directory: &Path,
    ) -> Result<(PathBuf, String), ReadError> {
        let file = match given_path(module) {
            Some(path) => directory.join(path),
            None => directory.join(format!("{name}.rs")),
        };
        let error = match self.read_file(&file) {
            Ok(source) => return Ok((file, source)),
            Err(error) => error,
        };
        let file = directory.join(name).join("mod.rs");
        self.read_file(&file).map(|source| (file, source)).map_err(|_| error)
    }
}

/// Where the children of a root or a `mod.rs` are.
fn directory_of(file: &Path) -> PathBuf {
    file.parent().map(Path::to_owned).unwrap_or_default()
}

/// The value of `#[path = ".."]`.
fn given_path(module: &ItemMod) -> Option<String> {
    let path = module.attrs.iter().find(|attribute| attribute.path().is_ident("path"))?;
    match &path.meta {
        Meta::NameValue(pair) => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    }
}
