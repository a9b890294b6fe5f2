//! The files that a server accepts, and the files that they replace.

use super::*;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

/// Sends the source once, and returns why it was refused, at both ends.
fn refused(
    options: &ServeOptions,
    source: &Path,
    wanted: &CopyOptions,
) -> (String, Result<Served, ServeError>) {
    let (sent, mut served) = served(options, 1, |address, host| {
        Chain(&send(source, None, address, host, wanted).unwrap_err()).to_string()
    });
    (sent, served.remove(0))
}

#[test]
fn a_new_file_has_the_permissions_of_its_source_and_an_old_one_keeps_its_own() {
    let (_directory, source, copies) = place_with_source();
    let set = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode));
    set(&source, 0o4711).unwrap();
    fs::write(copies.join("old"), "old").unwrap();
    set(&copies.join("old"), 0o666).unwrap();
    served(&ServeOptions::new(&copies), 2, |address, host| {
        for name in ["new", "old"] {
            send(&source, Some(name), address, host, &CopyOptions::default()).unwrap();
        }
    });
    let mode = |name| fs::metadata(copies.join(name)).unwrap().mode() & 0o7777;
    // A set-user-ID bit is not copied over the network.
    assert_eq!((mode("new"), mode("old")), (0o711, 0o666));
}

#[test]
fn either_side_can_forbid_that_a_file_is_replaced() {
    let (_directory, source, copies) = place_with_source();
    fs::write(copies.join("source"), "keep me").unwrap();
    let may = ServeOptions::new(&copies);
    let may_not = ServeOptions { overwrite: false, ..may.clone() };
    let wants_not = CopyOptions { overwrite: false, ..CopyOptions::default() };
    for (options, wanted) in [(&may_not, &CopyOptions::default()), (&may, &wants_not)] {
        let (sent, received) = refused(options, &source, wanted);
        assert!(
            matches!(received, Err(ServeError::Copy(CopyError::Exists { .. }))),
            "{received:?}"
        );
        assert!(sent.contains("exists, and --no-overwrite forbids replacing it"), "{sent}");
        assert_eq!(fs::read(copies.join("source")).unwrap(), b"keep me");
        assert_eq!(names(&copies), ["source"]);
    }
    served(&may_not, 1, |address, host| {
        send(&source, Some("other"), address, host, &wants_not).unwrap();
    });
    assert_eq!(fs::read(copies.join("other")).unwrap(), fs::read(&source).unwrap());
}

#[test]
fn the_length_of_files_has_a_limit_and_the_sender_is_told() {
    let (_directory, source, copies) = place_with_source();
    let limited = |bytes| ServeOptions { max_file_size: Some(bytes), ..ServeOptions::new(&copies) };
    let (sent, received) = refused(&limited(299_999), &source, &CopyOptions::default());
    assert!(
        matches!(
            received,
            Err(ServeError::Copy(CopyError::TooLong { bytes: 300_000, limit: 299_999 }))
        ),
        "{received:?}"
    );
    assert!(
        sent.contains(
            "the file has 300000 bytes, but the server accepts files of up to 299999 bytes"
        ),
        "{sent}"
    );
    assert!(names(&copies).is_empty());
    served(&limited(300_000), 1, |address, host| {
        send(&source, None, address, host, &CopyOptions::default()).unwrap();
    });
    assert_eq!(names(&copies), ["source"]);
}
