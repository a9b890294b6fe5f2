//! The header is what cbindgen makes of the sources. After a change of them, `WRITE_HEADER=1 cargo
//! test -p polyrail-c --test header` writes it anew.

use std::fs;
use std::path::Path;

#[test]
fn the_header_is_made_of_the_sources() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let header = here.join("include/polyrail.h");
    let mut made = Vec::new();
    cbindgen::generate(here).expect("cbindgen reads the sources").write(&mut made);
    let made = String::from_utf8(made).unwrap();
    if std::env::var_os("WRITE_HEADER").is_some() {
        fs::write(&header, &made).unwrap();
    }
    let there = fs::read_to_string(&header).unwrap();
    for (number, (there, made)) in there.lines().zip(made.lines()).enumerate() {
        assert_eq!(there, made, "line {} of {}", number + 1, header.display());
    }
    assert_eq!(there.len(), made.len(), "{} has other lines at its end", header.display());
}
