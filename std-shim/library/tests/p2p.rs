//! Messages between two endpoints.

use polyrail::memory::RegisteredBuffer;
use polyrail::nic::{DeviceConfig, Fabric};
use polyrail::p2p::{P2pBuilder, P2pEndpoint, RecvBuffer, connect_p2p_endpoints};
use polyrail::verbs::AccessFlags;

#[test]
fn hello() {
    const BYTES: u32 = 1 << 20;
    let fabric = Fabric::threaded();
    let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd().unwrap();
    let (here, there) = ([device("here0"), device("here1")], [device("there0"), device("there1")]);
    let (here, there) = (here.each_ref(), there.each_ref());
    let mut near: P2pEndpoint = P2pBuilder::new().rails(2).build(&here).unwrap();
    let mut far: P2pEndpoint = P2pBuilder::new().rails(2).build(&there).unwrap();
    connect_p2p_endpoints(&mut near, &mut far).unwrap();
    let writable = AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_WRITE;
    let from = RegisteredBuffer::new(BYTES as usize, AccessFlags::empty(), &here).unwrap();
    let to = RegisteredBuffer::new(BYTES as usize, writable, &there).unwrap();
    from.write_at(0, b"hello").unwrap();
    let (from_keys, to_keys) = (from.own_keys(), to.own_keys());
    let offered = RecvBuffer { local: to.local(0, BYTES).unwrap(), tag: 7, keys: &to_keys };
    let receive = far.irecv(&[offered]).unwrap();
    let begin = std::time::Instant::now();
    let send = loop {
        match near.isend(from.local(0, 5).unwrap(), 7, &from_keys) {
            Err(error) if error.is_not_now() => {
                near.poll(16).unwrap();
                far.poll(16).unwrap();
                assert!(
                    begin.elapsed().as_secs() < 2,
                    "{error} {:?} {:?} {:?}",
                    near.send_failure(),
                    far.recv_failure(),
                    far.counters().collect::<Vec<_>>()
                );
            }
            sent => break sent.unwrap(),
        }
    };
    loop {
        far.poll(16).unwrap();
        if let Some(r) = far.test_recv(receive).unwrap() {
            assert_eq!(r.sizes(), [5]);
            break;
        }
        near.poll(16).unwrap();
        assert!(begin.elapsed().as_secs() < 4, "{:?} {:#?} {:#?}", far.receiver().accounts().map(|a| (a.posted(), a.limit())).collect::<Vec<_>>(), near.counters().collect::<Vec<_>>(), far.counters().collect::<Vec<_>>());
    }
    let _ = send;
}
#[test]
fn sizes() {
    type S = polyrail::p2p::EngineSender<polyrail::nic::QueuePair>;
    type R =
        polyrail::p2p::EngineReceiver<polyrail::nic::QueuePair, polyrail::nic::SharedReceiveQueue>;
    panic!("{} {}", size_of::<S>(), size_of::<R>());
}
