//! The table of the crate's documentation: every item of the manual is there, with tests that exist;
//! and what the manual says of threads.

use polyrail_ffi::{
    AddressHandle, CompletionChannel, CompletionQueue, Context, CqHandle, DeviceList,
    ExtendedCompletionQueue, MemoryRegion, MemoryWindow, ProtectionDomain, QueuePair, Rc,
    SharedReceiveQueue, Uc, Ud,
};
use std::fs;
use std::path::Path;

/// The numbers in the manual's headings; 3 to 10 and 13 have nothing of their own.
const ITEMS: &str = "1.1 1.2 2.1 2.2 2.3 2.4 2.5 2.6 3.1 3.2 4.1 4.2 5.1 5.2 5.3 5.4 5.5 \
    6.1 6.2 6.2.1 6.2.2 6.2.3 6.2.4 6.3 6.4 7.1 7.1.1 7.1.2 7.1.3 7.1.4 7.1.5 7.1.6 7.1.7 7.2 \
    8.1 8.2 8.3 8.4 9.1 9.2 10 10.1 11.1 11.2 11.3 12.1 12.2 12.3 12.4 12.5 12.6 13.1 13.2 13.3 14";

/// All Rust source below some folders of the workspace, as one text.
fn sources(folders: &[&str]) -> String {
    fn read(folder: &Path, text: &mut String) {
        for entry in fs::read_dir(folder).expect("a folder of the workspace") {
            let path = entry.unwrap().path();
            if path.is_dir() {
                read(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(&path).unwrap());
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace");
    let mut text = String::new();
    folders.iter().for_each(|folder| read(&root.join(folder), &mut text));
    text
}

/// The tests of a row's last column: of what kind, and the name.
fn tests(column: &str) -> Vec<(String, String)> {
    let mut kind = "";
    let mut found = Vec::new();
    for (place, part) in column.split('`').enumerate() {
        if place % 2 == 1 {
            found.push((kind.to_owned(), part.to_owned()));
        } else if let Some(word) = part.split_whitespace().find(|word| *word != ",") {
            kind = word;
        }
    }
    found
}

#[test]
fn every_item_of_the_manual_has_a_row_whose_tests_exist() {
    let kinds = [
        ("fake", sources(&["ffi/tests", "ffi/src"])),
        ("guest", sources(&["tests/rxe/src"])),
        ("both", sources(&["tests/src/behaviours"])),
        ("host", sources(&["std-shim/src", "std-shim/tests"])),
    ];
    let mut items = Vec::new();
    for row in include_str!("../../src/lib.rs").lines() {
        let columns: Vec<_> = row.split('|').map(str::trim).collect();
        let ["//!", item, _, column, ""] = columns[..] else { continue };
        if !item.starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        let words = item.split_whitespace().map(|word| word.trim_end_matches(','));
        items.extend(
            words.take_while(|word| word.starts_with(|first: char| first.is_ascii_digit())),
        );
        let tests = tests(column);
        assert!(!tests.is_empty(), "{item} has no test");
        for (kind, name) in tests {
            let (_, text) = kinds.iter().find(|(known, _)| *known == kind).expect("a kind of test");
            let is_there = ["(", "<"].iter().any(|end| text.contains(&format!("fn {name}{end}")));
            assert!(is_there, "{item}: there is no test {name} of kind {kind}");
        }
    }
    for item in ITEMS.split_whitespace() {
        assert!(items.contains(&item), "{item} has no row");
    }
}

#[test]
fn everything_moves_between_threads_and_handles_are_shared() {
    fn moves<T: Send>() {}
    fn is_shared<T: Send + Sync + Clone>() {}
    fn is_asked<T: Sync>() {}
    is_shared::<Context>();
    is_shared::<ProtectionDomain>();
    is_shared::<CqHandle>();
    is_shared::<CompletionChannel>();
    is_asked::<QueuePair<Rc>>();
    moves::<DeviceList>();
    moves::<CompletionQueue>();
    moves::<ExtendedCompletionQueue>();
    moves::<SharedReceiveQueue>();
    moves::<(QueuePair<Rc>, QueuePair<Uc>, QueuePair<Ud>)>();
    moves::<(AddressHandle, MemoryRegion, MemoryWindow<'static>)>();
}
