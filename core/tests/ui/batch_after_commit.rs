//! A batch that was committed takes nothing more.
use polyrail_core::hardware::{QueuePair, SendBatch};
use polyrail_core::verbs::SendRequest;

fn twice<Q: QueuePair>(qp: &mut Q, request: &SendRequest) {
    let mut batch = qp.start_send();
    batch.add(request);
    let _ = batch.commit();
    batch.add(request);
}

fn main() {}
