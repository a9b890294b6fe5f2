//! What a module declares, imports and names.

use crate::conditions::is_for_tests;
use crate::paths::{Named, scan};
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ImplItem, Item, ItemUse, Meta, Path, TraitItem, UseTree, Visibility};

/// A name that a `use` brings.
#[derive(Debug)]
pub(crate) struct Import {
    pub(crate) name: String,
    pub(crate) of: Named,
    /// Whether it is a re-export only.
    pub(crate) is_reexport: bool,
}

/// The names of one module.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// What it defines.
    pub(crate) items: Vec<String>,
    pub(crate) imports: Vec<Import>,
    /// Modules and enums all of whose names it imports.
    pub(crate) globs: Vec<Named>,
    /// Every path in its code.
    pub(crate) uses: Vec<Named>,
}

impl Names {
    /// Records an item that is not a module.
    pub(crate) fn add(&mut self, item: &Item) {
        if !is_for_tests(attributes(item)) {
            self.items.extend(name_of(item).map(ToString::to_string));
            self.visit_item(item);
        }
    }

    fn import(&mut self, tree: &UseTree, prefix: &[&Ident], is_reexport: bool) {
        let join = |ident| [prefix, &[ident]].concat();
        match tree {
            UseTree::Path(path) => self.import(&path.tree, &join(&path.ident), is_reexport),
            UseTree::Name(name) => self.import_name(&join(&name.ident), None, is_reexport),
            UseTree::Rename(name) => {
                self.import_name(&join(&name.ident), Some(&name.rename), is_reexport);
            }
            UseTree::Glob(_) => self.globs.push(Named::new(prefix)),
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, prefix, is_reexport));
            }
        }
    }

    /// Imports what a path names; `x::self` is `x`.
    fn import_name(&mut self, path: &[&Ident], rename: Option<&Ident>, is_reexport: bool) {
        let path = match path {
            [rest @ .., last] if !rest.is_empty() && *last == "self" => rest,
            path => path,
        };
        let Some(last) = path.last() else { return };
        let name = rename.unwrap_or(last).to_string();
        self.imports.push(Import { name, of: Named::new(path), is_reexport });
    }
}

impl<'ast> Visit<'ast> for Names {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        let attributes = match item {
            ImplItem::Const(item) => &item.attrs,
            ImplItem::Fn(item) => &item.attrs,
            ImplItem::Type(item) => &item.attrs,
            _ => return visit::visit_impl_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_impl_item(self, item);
        }
    }

    fn visit_trait_item(&mut self, item: &'ast TraitItem) {
        let attributes = match item {
            TraitItem::Const(item) => &item.attrs,
            TraitItem::Fn(item) => &item.attrs,
            TraitItem::Type(item) => &item.attrs,
            _ => return visit::visit_trait_item(self, item),
        };
        if !is_for_tests(attributes) {
            visit::visit_trait_item(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        if item.leading_colon.is_none() {
            let is_reexport = !matches!(item.vis, Visibility::Inherited);
            self.import(&item.tree, &[], is_reexport);
        }
    }

    fn visit_path(&mut self, path: &'ast Path) {
        if path.leading_colon.is_none() {
            let names: Vec<_> = path.segments.iter().map(|segment| &segment.ident).collect();
            self.uses.push(Named::new(&names));
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, invocation: &'ast syn::Macro) {
        self.visit_path(&invocation.path);
        scan(invocation.tokens.clone(), &mut self.uses);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta {
            scan(list.tokens.clone(), &mut self.uses);
        }
    }

    /// `pub(in crate::x)` uses nothing of `crate::x`.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

/// The name that an item gives to its module.
fn name_of(item: &Item) -> Option<&Ident> {
    match item {
        Item::Const(item) => Some(&item.ident),
        Item::Enum(item) => Some(&item.ident),
        Item::Fn(item) => Some(&item.sig.ident),
        Item::Macro(item) => item.ident.as_ref(),
        Item::Static(item) => Some(&item.ident),
        Item::Struct(item) => Some(&item.ident),
        Item::Trait(item) => Some(&item.ident),
        Item::Type(item) => Some(&item.ident),
        Item::Union(item) => Some(&item.ident),
        _ => None,
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
