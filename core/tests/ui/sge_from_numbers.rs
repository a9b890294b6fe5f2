//! A scatter/gather entry comes from a buffer only.
use polyrail_core::verbs::Sge;

fn main() {
    let _ = Sge { addr: 0x1000, length: 4096, lkey: 1 };
}
