//! Registered memory as its owner sees it.

use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric, ProtectionDomain};
use polyrail::verbs::AccessFlags;

const BYTES: usize = 1 << 20;

fn domain() -> ProtectionDomain {
    Fabric::threaded().create_device(DeviceConfig::named("soft0")).alloc_pd().unwrap()
}

fn buffer(bytes: usize) -> RegisteredBuffer {
    RegisteredBuffer::new(bytes, AccessFlags::LOCAL_WRITE, &[&domain()]).unwrap()
}

#[test]
fn buffers_refuse_ranges_that_are_not_theirs() {
    let buffer = buffer(BYTES);
    assert!(buffer.local(BYTES - 1, 2).is_err());
    assert!(buffer.local(BYTES, 0).is_ok());
    assert!(buffer.write_at(usize::MAX, &[1]).is_err());
    assert!(buffer.read_at(BYTES, &mut [0]).is_err());
    let error = buffer.fill(3, BYTES, 0).unwrap_err();
    assert_eq!(
        error.to_string(),
        "1048576 bytes at offset 3 are not within the buffer of 1048576 bytes"
    );
    assert!(RegisteredBuffer::new(0, AccessFlags::empty(), &[&domain()]).is_err());
    let nowhere: [&ProtectionDomain; 0] = [];
    let error = RegisteredBuffer::new(1, AccessFlags::empty(), &nowhere).unwrap_err();
    assert_eq!(error.to_string(), "memory cannot be registered without a device");
}

#[test]
#[cfg_attr(miri, ignore = "Miri reads and writes less than asked for")]
fn buffers_read_and_write_files_without_a_copy_in_between() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    std::fs::write(&path, b"from the file").unwrap();
    let file = std::fs::File::options().read(true).write(true).open(&path).unwrap();
    let buffer = buffer(BYTES);
    assert_eq!(buffer.read_from_file(10, 100, &file, 5).unwrap(), 8);
    let mut bytes = [0; 10];
    buffer.read_at(9, &mut bytes).unwrap();
    assert_eq!(&bytes, b"\0the file\0");
    assert_eq!(buffer.read_from_file(10, 100, &file, 13).unwrap(), 0);
    assert_eq!(buffer.write_to_file(14, 4, &file, 0).unwrap(), 4);
    assert_eq!(std::fs::read(&path).unwrap(), b"file the file");
    let error = buffer.read_from_file(BYTES, 1, &file, 0).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    let read_only = std::fs::File::open(&path).unwrap();
    assert!(buffer.write_to_file(0, 1, &read_only, 0).is_err());
}
