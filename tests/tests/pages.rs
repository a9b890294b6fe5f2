//! The pages of the documentation can be walked: the page of a public module names no private file,
//! and every page, and the text of every public item, links each public type that it names.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// Crates with pages for users, and the folder of their texts.
const CRATES: [(&str, Option<&str>); 8] = [
    ("core", Some("core/docs")),
    ("ffi", None),
    ("std-shim/faults", None),
    ("std-shim/library", Some("std-shim/library/docs")),
    ("std-shim/nic-parts", None),
    ("std-shim/process", None),
    ("std-shim/software-nic", None),
    ("std-shim/tcp-nic", None),
];

/// Names on a page that are not those of the type or file which is called so.
const OTHERS: [(&str, &[&str]); 3] = [
    // Classes of the C++ implementation.
    ("core/docs/reference.md", &["VirtualCq", "VirtualQp"]),
    // Messages.
    ("std-shim/library/src/link/mod.rs", &["hello", "offer", "purpose", "resume"]),
    // The table of the verbs API names its numbers; the crate that has them is linked.
    ("ffi/src/lib.rs", &["AccessFlags", "CommitError", "Opcode", "SendFlags", "WcStatus"]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files below a folder with this ending.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The names that follow `keyword` at the beginning of a line, as in `pub struct Name`.
fn declared<'s>(source: &'s str, keyword: &str) -> impl Iterator<Item = &'s str> {
    source.lines().filter_map(move |line| {
        let name = line.trim_start().strip_prefix(keyword)?;
        name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
    })
}

fn public_types() -> BTreeSet<String> {
    let mut types = BTreeSet::new();
    for (name, _) in CRATES {
        for file in files(&root().join(name).join("src"), "rs") {
            let source = read(&file);
            for keyword in ["pub struct ", "pub enum ", "pub trait ", "pub unsafe trait "] {
                // Names in macros are empty.
                let named = declared(&source, keyword).filter(|name| !name.is_empty());
                types.extend(named.map(String::from));
            }
        }
    }
    types
}

/// Whether a source file is a crate's root or a module that its parent shows.
fn is_public(file: &Path) -> bool {
    let folder = file.parent().unwrap();
    let (module, parents) = match file.file_stem().unwrap().to_str().unwrap() {
        "lib" => return true,
        "mod" => (folder.file_name().unwrap().to_str().unwrap(), folder.parent().unwrap()),
        name => (name, folder),
    };
    let parents = ["mod.rs", "lib.rs"].map(|parent| parents.join(parent));
    let mut parents = parents.iter().filter(|parent| parent.exists());
    parents.any(|parent| declared(&read(parent), "pub mod ").any(|name| name == module))
}

/// A page, with the names of files that it should not speak of.
struct Page {
    name: String,
    text: String,
    private: Vec<String>,
}

/// The texts of the items of a source file, each with the name of its item.
fn items(source: &str) -> Vec<(&str, String)> {
    let (mut items, mut text) = (Vec::new(), Vec::new());
    for line in source.lines().map(str::trim_start) {
        if let Some(words) = line.strip_prefix("///") {
            text.push(words);
        } else if !line.starts_with("#[") {
            if let Some(item) = line.strip_prefix("pub ").filter(|_| !text.is_empty()) {
                let item = item.split(['(', '{', '<', ':', ';']).next().unwrap_or_default();
                let name = item.split_whitespace().last().unwrap_or_default();
                items.push((name, text.join("\n")));
            }
            text.clear();
        }
    }
    items
}

fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    let name = |file: &Path| file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
    for (crate_name, texts) in CRATES {
        for file in files(&root().join(crate_name).join("src"), "rs") {
            let source = read(&file);
            let text: Vec<_> = source.lines().filter_map(|line| line.strip_prefix("//!")).collect();
            for (item, text) in items(&source) {
                // Its own name needs no link.
                let text = format!("{text}\n[`{item}`]");
                let name = format!("{}, {item}", name(&file));
                pages.push(Page { name, text, private: Vec::new() });
            }
            if !text.is_empty() && is_public(&file) {
                let private = declared(&source, "mod ").map(String::from).collect();
                pages.push(Page { name: name(&file), text: text.join("\n"), private });
            }
        }
        for file in texts.map(|texts| files(&root().join(texts), "md")).unwrap_or_default() {
            pages.push(Page { name: name(&file), text: read(&file), private: Vec::new() });
        }
    }
    assert!(pages.len() > 1000, "{} pages", pages.len());
    pages
}

/// The code spans of a text, without blocks of code: those within links, and the others.
fn spans(text: &str) -> (Vec<&str>, Vec<&str>) {
    let (mut linked, mut plain) = (Vec::new(), Vec::new());
    let prose = text.split("```").step_by(2);
    for line in prose.flat_map(str::lines) {
        let mut rest = line;
        let mut depth = 0_usize;
        while let Some(at) = rest.find(['`', '[', ']', '(']) {
            let after = &rest[at + 1..];
            rest = after;
            match line.as_bytes()[line.len() - after.len() - 1] {
                b'[' => depth += 1,
                b']' => depth = depth.saturating_sub(1),
                // The target of a link.
                b'(' => {
                    let begins = &line[..line.len() - after.len() - 1];
                    if begins.ends_with(']') {
                        let end = after.find(')').unwrap_or(after.len());
                        linked.push(&after[..end]);
                        rest = &after[end..];
                    }
                }
                _ => {
                    let end = after.find('`').unwrap_or(after.len());
                    let span = &after[..end];
                    if depth > 0 {
                        linked.push(span)
                    } else {
                        plain.push(span)
                    }
                    rest = after.get(end + 1..).unwrap_or_default();
                }
            }
        }
    }
    (linked, plain)
}

/// The first name of a path, such as `Type` of `Type::method(argument)`.
fn first_name(span: &str) -> &str {
    span.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

#[test]
fn every_page_links_the_types_that_it_names_and_names_no_private_file() {
    let types = public_types();
    let mut wrong = Vec::new();
    for Page { name, text, private } in pages() {
        let others =
            OTHERS.iter().find(|(page, _)| *page == name).map_or(&[][..], |(_, names)| names);
        let (linked, plain) = spans(&text);
        let is_linked = |name: &str| {
            let mut names = linked
                .iter()
                .flat_map(|span| span.split(|c: char| !c.is_alphanumeric() && c != '_'));
            names.any(|linked| linked == name)
        };
        for span in plain {
            let named = first_name(span);
            if others.contains(&named) {
                continue;
            }
            if types.contains(named) && !is_linked(named) {
                wrong.push(format!("{name}: `{span}` is not linked"));
            }
            if private.iter().any(|file| file == named) {
                wrong.push(format!("{name}: `{span}` is a private file"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn links_and_other_names_are_told_apart() {
    let text = "A [`Link`] or [words](crate::other::Type#part), `plain::name`, [both `In` one](x).\n\
                ```\nlet `not` = [1];\n```\n| [`Cell`](a::b) | `last(3)` |";
    let (linked, plain) = spans(text);
    assert_eq!(linked, ["Link", "crate::other::Type#part", "In", "x", "Cell", "a::b"]);
    assert_eq!(plain, ["plain::name", "last(3)"]);
    assert_eq!([plain[0], plain[1]].map(first_name), ["plain", "last"]);
}
