//! An address becomes a promise only in an unsafe block.
use polyrail_core::verbs::LocalBuffer;

fn main() {
    let _ = LocalBuffer::new(0x1000, 4096);
}
