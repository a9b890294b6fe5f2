//! Small crates, and what is found in them.

use crate::report::Report;
use crate::tree::{ReadError, Tree};
use std::io;
use std::path::Path;

type Files<'f> = &'f [(&'f str, &'f str)];

fn read(files: Files<'_>) -> Result<Tree, ReadError> {
    Tree::read(Path::new("lib.rs"), &|path| {
        let file = files.iter().find(|(name, _)| Path::new(name) == path);
        file.map(|(_, source)| (*source).to_owned()).ok_or(io::ErrorKind::NotFound.into())
    })
}

/// What is printed about a crate.
#[track_caller]
fn report(files: Files<'_>) -> String {
    Report::new(&read(files).unwrap()).to_string()
}

/// The last line of what is printed.
#[track_caller]
fn counts(files: Files<'_>) -> String {
    let report = report(files);
    report.lines().last().unwrap().to_owned()
}

#[test]
fn two_files_import_each_other() {
    let found = report(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "\nuse crate::b::B; pub struct A(B);"),
        ("b.rs", "use super::a::{self, A}; pub struct B(Option<Box<A>>);"),
    ]);
    let expected = "\
2 files import one another: a, b
  a, b
    a.rs:2: crate::b::B
    b.rs:1: super::a::A
lib.rs: 3 modules, 2 imports, 1 circles
";
    assert_eq!(found, expected);
}

#[test]
fn a_longer_circle_is_one_too() {
    let found = report(&[
        ("lib.rs", "mod a { pub mod x; pub mod y; pub mod z; }"),
        ("a/x.rs", "use super::y::Y;"),
        ("a/y.rs", "use super::z::Z;"),
        ("a/z.rs", "use super::x::X;"),
    ]);
    assert!(found.contains("3 files import one another: a::x, a::y, a::z\n"), "{found}");
    assert!(found.contains("\n    a/z.rs:1: super::x::X\n"), "{found}");
    assert!(found.ends_with("4 modules, 3 imports, 1 circles\n"), "{found}");
}

#[test]
fn a_parent_and_its_child_import_each_other() {
    let files = [
        ("lib.rs", "pub mod a;"),
        ("a/mod.rs", "mod b; pub const MOST: usize = 8; pub struct A { b: b::B }"),
        ("a/b.rs", "pub struct B([u8; super::MOST]);"),
    ];
    let found = report(&files);
    assert!(found.contains("\n    a/mod.rs:1: b::B\n    a/b.rs:1: super::MOST\n"), "{found}");
    assert!(found.ends_with("3 modules, 2 imports, 1 circles\n"), "{found}");
}

#[test]
fn a_facade_imports_nothing() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod b; mod c; pub use b::B; pub(crate) use c::{C, D as E}; pub use c::*;"),
        ("a/b.rs", "use super::{C, E, F}; pub struct B(C, E, F);"),
        ("a/c.rs", "pub struct C; pub struct D; pub struct F;"),
    ];
    assert_eq!(counts(&files), "lib.rs: 4 modules, 1 imports, 0 circles");
}

#[test]
fn a_facade_uses_what_it_names_in_its_own_code() {
    let files = [
        ("lib.rs", "mod a;"),
        ("a/mod.rs", "mod b; pub use b::B; pub struct A(B);"),
        ("a/b.rs", "pub struct B; impl Drop for super::A {}"),
    ];
    assert_eq!(counts(&files), "lib.rs: 3 modules, 2 imports, 1 circles");
}

#[test]
fn a_reexport_is_imported_from_where_it_is_defined() {
    let found = report(&[
        ("lib.rs", "mod a; mod b; pub use a::A as Renamed;"),
        ("a.rs", "pub struct A; use crate::b::B;"),
        ("b.rs", "pub struct B(crate::Renamed);"),
    ]);
    assert!(found.contains("\n    b.rs:1: crate::Renamed\n"), "{found}");
    assert!(found.ends_with("3 modules, 2 imports, 1 circles\n"), "{found}");
}

#[test]
fn what_is_for_tests_does_not_count() {
    let uses = "
        #[cfg(test)] use crate::a::A;
        #[cfg(doc)] use crate::a::A;
        #[cfg(all(test, not(loom)))] mod tests;
        #[cfg(test)] mod more { use crate::a::A; }
        impl B { #[cfg(test)] fn a() -> crate::a::A {} }
        #[cfg(not(test))] #[cfg(any(loom, test))] use crate::c::C;";
    let files = [
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b::B;"),
        ("b.rs", uses),
        ("c.rs", ""),
        ("d.rs", "#![cfg(test)] use crate::a::A;"),
    ];
    assert_eq!(counts(&files), "lib.rs: 5 modules, 2 imports, 0 circles");
}

#[test]
fn paths_in_code_count() {
    let import = |code: &str| {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b; fn f(b: u8) { b; }"),
            ("b.rs", code),
        ];
        counts(&files)
    };
    let one = "lib.rs: 3 modules, 1 imports, 0 circles";
    assert_eq!(import("fn f() { crate::a::f(1) }"), one);
    assert_eq!(import("fn f(x: &dyn Fn(super::a::A)) {}"), one);
    assert_eq!(import("fn f() { use crate::a; a::f(1) }"), one);
    assert_eq!(import("fn f() { println!(\"{}\", [crate::a::f(1).x]) }"), one);
    assert_eq!(import("macro_rules! m { ($x:ident) => { $crate::a::f($x.y) } }"), one);
    assert_eq!(import("#[arg(value_parser = crate::a::f)] struct B;"), one);
    let none = "lib.rs: 3 modules, 0 imports, 0 circles";
    assert_eq!(import("pub(in crate::a) struct B;"), none);
    assert_eq!(import("/// [`crate::a::A`]\nuse std::a::A; use ::a::X;"), none);
    assert_eq!(import("mod inner { fn a() {} } fn f() { inner::a(); self::inner::a() }"), none);
    assert_eq!(import("fn f() { m!(x.a::<u8>(), 'a, ::a::f, $a) }"), none);
}

#[test]
fn names_come_through_globs_and_nested_imports() {
    let files = [
        ("lib.rs", "mod a; mod b; mod c; pub use a::*;"),
        ("a.rs", "use crate::b::B; pub struct A;"),
        ("b.rs", "mod inner { use super::*; fn f() -> C {} } use crate::c::C;"),
        ("c.rs", "use crate::{A}; pub struct C;"),
    ];
    let found = report(&files);
    assert!(found.contains("3 files import one another: a, b, c\n"), "{found}");
    assert!(found.ends_with("4 modules, 3 imports, 1 circles\n"), "{found}");
}

#[test]
fn folders_that_import_each_other_are_found_where_files_do_not() {
    let found = report(&[
        ("lib.rs", "mod a; mod b;"),
        ("a/mod.rs", "mod one; mod two;"),
        ("a/one.rs", "use crate::b::one::X;"),
        ("a/two.rs", "use crate::b::one::X;"),
        ("b.rs", "pub mod one; mod two;"),
        ("b/one.rs", "pub struct X;"),
        ("b/two/mod.rs", "use crate::a::two::Y;"),
    ]);
    let expected = "\
2 modules of the root import one another: a, b
  a, b
    a/one.rs:1: crate::b::one::X (and in 1 more files)
    b/two/mod.rs:1: crate::a::two::Y
lib.rs: 7 modules, 3 imports, 1 circles
";
    assert_eq!(found, expected);
}

#[test]
fn modules_may_be_anywhere() {
    let files = [
        ("lib.rs", "#[path = \"other/place.rs\"] mod a; mod b { mod c; }"),
        ("other/place.rs", "mod d;"),
        ("other/d.rs", "use crate::b::c::C;"),
        ("b/c.rs", "pub struct C;"),
    ];
    assert_eq!(counts(&files), "lib.rs: 4 modules, 1 imports, 0 circles");
}

#[test]
fn a_crate_that_cannot_be_read_is_an_error() {
    let error = read(&[("lib.rs", "mod a;")]).unwrap_err();
    assert!(matches!(&error, ReadError::File(file, _) if file == Path::new("a.rs")), "{error:?}");
    let error = read(&[("lib.rs", "mod a;"), ("a.rs", "fn (")]).unwrap_err();
    assert!(matches!(&error, ReadError::Syntax(file, _) if file == Path::new("a.rs")), "{error:?}");
}
