//! Defect 19 of `core/docs/reference.md`: a queue pair that was moved away cannot be posted to.
use polyrail_core::hardware::QueuePair;
use polyrail_core::verbs::SendWr;
use polyrail_core::virtual_qp::VirtualQp;

fn moved<Q: QueuePair>(mut old: VirtualQp<Q, 2, 16, 32>, request: &SendWr<'_>) {
    let new = old;
    let _ = old.post_send(request);
    drop(new);
}

fn main() {}
