//! A refused call changes nothing: the whole state of the virtual queue pair and of its NIC is
//! compared with the state before the call. `core/docs/architecture.md`, "The life of a request",
//! step 1.

use polyrail_core::hardware::{CompletionQueue, QpLimits, Refusal};
use polyrail_core::verbs::{
    DEVICE_ADDRESSES, LocalBuffer, LocalPart, Opcode, RecvWr, ReportOrder, SendFlags, SendWr,
    WcStatus,
};
use polyrail_core::virtual_cq::AttachError;
use polyrail_core::virtual_qp::{
    ControlMessage, FragmentSizeError, PairDevicesError, PeerWindow, PostManyError, PostRecvError,
    PostSendError, RailId, ReplaceError,
};
use polyrail_tests::rig::{self, KEYS, Rig, Setup, TestQp, local};
use polyrail_tests::scripted::LIMITS;
use std::collections::BTreeSet;
use std::fmt::Debug;

const INLINE: SendFlags = SendFlags::SIGNALED.union(SendFlags::INLINE);
const FENCE: SendFlags = SendFlags::SIGNALED.union(SendFlags::FENCE);
const FULL: Refusal = Refusal::QueueFull;
const BROKEN: Refusal = Refusal::Driver(5);

/// An error, and the names of all that there are of its type.
trait Named: Debug {
    const ALL: &[&str];

    fn name(&self) -> &'static str;
}

macro_rules! named {
    ($error:ident: $($variant:ident)*) => {
        impl Named for $error {
            const ALL: &[&str] = &[$(stringify!($variant)),*];

            fn name(&self) -> &'static str {
                match self {
                    $($error::$variant { .. } => stringify!($variant),)*
                }
            }
        }
    };
}

named! { PostSendError:
    InErrorState Full QueueFull Driver Empty Unsignaled UnsupportedOpcode SendWithDqplb MissingKeys NoNotifyQp
    RemoteRange InlineTooLong InlineMustWait InlineOpcode InlineDeviceAddress InlineRerouted List NoBuffers BufferKeys ListTooLong
    TooManyBuffers RailDown
}
named! { PostRecvError:
    InErrorState Full QueueFull Driver MissingKeys NoBuffers TooManyBuffers BufferKeys NoNotifyQp MixedReceives
    NoReceiveQueue
}
named! { AttachError: Index Number ForeignCq NotAttached CqTooSmall Route }
named! { ReplaceError: NoRail State InErrorState Generation Device Limit Attach }
named! { PairDevicesError: Rails InUse }
named! { FragmentSizeError: TooShort InUse }

/// The errors that were met.
struct Met<E>(BTreeSet<&'static str>, std::marker::PhantomData<E>);

impl<E: Named> Met<E> {
    fn new() -> Self {
        Self(BTreeSet::new(), std::marker::PhantomData)
    }

    /// A call that is refused before any driver is asked.
    fn refused<T>(&mut self, rig: &mut Rig, call: impl FnOnce(&mut Rig) -> Result<T, E>) -> E {
        let before = everything(rig);
        let error = call(rig).err().expect("refused");
        assert_same(&before, &everything(rig), &error);
        self.0.insert(error.name());
        rig.qp.invariants();
        rig.cq.invariants();
        error
    }

    /// A call that a driver refuses. What it refused is offered to it again with the next poll:
    /// only then is all as it was before, but for whose turn it is.
    fn refused_by_driver<T>(&mut self, rig: &mut Rig, call: impl FnOnce(&mut Rig) -> Result<T, E>) {
        assert_eq!(rig.poll(), [], "nothing is left to do");
        let before = but_for_turns(&rig.qp);
        let error = call(rig).err().expect("refused");
        assert_eq!(rig.poll(), []);
        assert_same(&before, &but_for_turns(&rig.qp), &error);
        self.0.insert(error.name());
    }

    fn are_all(&self) {
        assert_eq!(self.0, E::ALL.iter().copied().collect(), "every error is met");
    }
}

fn assert_same(before: &str, after: &str, error: &dyn Debug) {
    let changed = before.lines().zip(after.lines()).find(|(before, after)| before != after);
    assert_eq!(changed, None, "{error:?}");
    assert_eq!(before.len(), after.len(), "{error:?}");
}

fn everything(rig: &Rig) -> String {
    format!("{:#?}\n{:#?}\n{:#?}", rig.qp, rig.cq, rig.nic)
}

fn but_for_turns(qp: &TestQp) -> String {
    let all = format!("{qp:#?}");
    let turns = |line: &&str| line.trim_start().starts_with("ahead: ") && !line.ends_with('{');
    all.lines().filter(|line| !turns(line)).collect::<Vec<_>>().join("\n")
}

fn at_device_address() -> LocalBuffer {
    // SAFETY: nothing is registered there.
    unsafe { LocalBuffer::new(DEVICE_ADDRESSES, 8) }
}

fn part(length: u32) -> LocalPart<'static> {
    LocalPart { local: local(length), keys: &KEYS }
}

/// A buffer that is registered with the device of rail 0 only.
fn part_of_rail_0() -> LocalPart<'static> {
    LocalPart { local: local(8), keys: &KEYS[..1] }
}

fn data(wr_id: u64) -> RecvWr<'static> {
    RecvWr::data(wr_id, local(64), &KEYS)
}

/// What is remembered of a request is more if it chooses when it is reported.
fn when_done(wr: SendWr<'static>) -> SendWr<'static> {
    wr.reported(ReportOrder::WhenDone)
}

fn write() -> SendWr<'static> {
    when_done(rig::write(9, 200))
}

fn write_imm() -> SendWr<'static> {
    when_done(rig::write_imm(9, 200, 1))
}

fn signal() -> SendWr<'static> {
    when_done(SendWr::signal(9, 1))
}

fn spray() -> Setup {
    Setup::spray(2).devices(2).fragment(256)
}

fn dqplb() -> Setup {
    Setup::dqplb(2).devices(2).fragment(256)
}

fn post(rig: &mut Rig, wr: SendWr<'static>) -> Result<(), PostSendError> {
    rig.qp.post_send(&wr)
}

/// Alone, and with others behind it.
fn each_way(met: &mut Met<PostSendError>, rig: &mut Rig, wr: SendWr<'static>) {
    met.refused(rig, |rig| post(rig, wr));
    met.refused(rig, |rig| many(rig, wr));
}

fn many(rig: &mut Rig, wr: SendWr<'static>) -> Result<(), PostSendError> {
    rig.qp.post_many(&[wr; 2]).map_err(|PostManyError { posted, error }| {
        assert_eq!(posted, 0);
        error
    })
}

#[test]
fn a_refused_send_leaves_no_trace() {
    let mut met = Met::new();
    let with_list = |wr: SendWr<'static>, parts: &[LocalPart<'static>]| {
        let parts = parts.to_vec();
        move |rig: &mut Rig| rig.qp.post_list(&wr, &parts)
    };
    let of = |opcode| SendWr { opcode, ..rig::send(9, 8) };
    let nowhere = |wr| SendWr { keys: &[], ..wr };
    for setup in [spray(), spray().reroute()] {
        let mut rig = setup.rig();
        for wr in [
            SendWr { local: LocalBuffer::EMPTY, ..write() },
            write().with_flags(SendFlags::empty()),
            of(Opcode::SendWithInv),
            of(Opcode::LocalInv),
            SendWr { remote_addr: u64::MAX - 1, ..write() },
            nowhere(write()),
            nowhere(write_imm()),
            nowhere(rig::send(9, 8)),
            nowhere(rig::fetch_add(9)),
            write().with_flags(INLINE | SendFlags::FENCE),
            rig::read(9, 8).with_flags(INLINE),
            SendWr { local: local(300), ..write() }.with_flags(INLINE),
            rig::send(9, 300).with_flags(INLINE),
            rig::fetch_add(9).with_flags(INLINE),
            SendWr { local: at_device_address(), ..write() }.with_flags(INLINE),
            SendWr { local: at_device_address(), ..rig::send(9, 8) }.with_flags(INLINE),
        ] {
            // The first two are fine without re-routing.
            if setup.config.rail_failure != Default::default() || wr.flags != INLINE | FENCE {
                each_way(&mut met, &mut rig, wr);
            }
        }
        for (wr, parts) in [
            (rig::fetch_add(9), vec![part(8)]),
            (write(), vec![]),
            (write(), vec![part(u32::MAX), part(1)]),
            (write(), vec![part(8); 32]),
            (write(), vec![part(8), part_of_rail_0()]),
            (write_imm(), vec![part_of_rail_0()]),
            (nowhere(write()), vec![part(8)]),
            (rig::send(9, 0), vec![part(8); 2]),
            (of(Opcode::SendWithInv), vec![part(8)]),
        ] {
            met.refused(&mut rig, with_list(wr, &parts));
        }
    }
    let mut rig = spray().rig();
    let behind = [part(8), LocalPart { local: at_device_address(), ..part(8) }];
    for wr in [rig::write(9, 0), rig::send(9, 0)] {
        met.refused(&mut rig, with_list(wr.with_flags(INLINE), &behind));
    }
    let mut rig = spray().reroute().rig();
    met.refused(&mut rig, with_list(rig::send(9, 0), &[part_of_rail_0()]));
    let mut rig = dqplb().rig();
    each_way(&mut met, &mut rig, rig::send(9, 8));
    let mut rig = Setup { notify: false, ..spray() }.rig();
    for wr in [write_imm(), signal()] {
        each_way(&mut met, &mut rig, wr);
    }
    met.refused(&mut rig, with_list(write_imm(), &[part(8)]));
    let mut rig = spray().rig();
    assert!(rig.qp.set_rail_in_service(0, false));
    each_way(&mut met, &mut rig, rig::send(9, 8));

    // No credits are left: what is inline cannot wait.
    let mut rig = spray().depth(1).rig();
    rig.post([rig::write(1, 512)]);
    let fenced = write().with_flags(INLINE | SendFlags::FENCE);
    for wr in [write().with_flags(INLINE), rig::send(9, 8).with_flags(INLINE), fenced] {
        each_way(&mut met, &mut rig, wr);
    }
    met.refused(&mut rig, with_list(write().with_flags(INLINE), &[part(8)]));
    rig.post([rig::write(2, 512)]);
    met.refused(&mut rig, |rig| post(rig, write().with_flags(INLINE)));
    rig.post((3..33).map(|id| rig::write(id, 8)));
    let late = [write(), write_imm(), signal(), rig::send(9, 8), rig::fetch_add(9)];
    for wr in late {
        each_way(&mut met, &mut rig, wr);
    }
    met.refused(&mut rig, with_list(write(), &[part(8)]));
    met.refused(&mut rig, with_list(rig::send(9, 0), &[part(8)]));

    let mut rig = spray().rig();
    rig.post([write()]);
    rig.rails[0].fail(WcStatus::REM_ACCESS_ERR);
    rig.poll();
    for wr in late {
        each_way(&mut met, &mut rig, wr);
    }
    met.refused(&mut rig, with_list(write(), &[part(8)]));

    for refusal in [FULL, BROKEN] {
        for setup in [spray(), dqplb(), Setup::spray(1)] {
            let single = setup.rails == 1;
            let mut rig = setup.rig();
            let all = rig.rails.iter().chain(&rig.notify);
            all.for_each(|rail| rail.refuse_all(Some(refusal)));
            for wr in [write(), write_imm(), rig::send(9, 8)] {
                let wr = if refusal == FULL && !single { wr.with_flags(INLINE) } else { wr };
                if wr.opcode == Opcode::Send && setup.notify == single {
                    continue;
                }
                met.refused_by_driver(&mut rig, |rig| post(rig, wr));
                met.refused_by_driver(&mut rig, |rig| many(rig, wr));
                met.refused_by_driver(&mut rig, with_list(wr, &[part(8)]));
            }
        }
    }
    met.are_all();
}

#[test]
fn a_refused_receive_leaves_no_trace() {
    let mut met = Met::new();
    let of_list = |parts: &[LocalPart<'static>]| {
        let parts = parts.to_vec();
        move |rig: &mut Rig| rig.qp.post_recv_list(9, &parts)
    };
    let notification = RecvWr::notification(9);
    for setup in [spray(), spray().reroute(), dqplb().reroute()] {
        let mut rig = setup.rig();
        met.refused(&mut rig, |rig| rig.qp.post_recv(&RecvWr { keys: &[], ..data(9) }));
        met.refused(&mut rig, of_list(&[]));
        met.refused(&mut rig, of_list(&[part(8); 2]));
        met.refused(&mut rig, of_list(&[LocalPart { keys: &[], ..part(8) }]));
    }
    let mut rig = spray().reroute().rig();
    met.refused(&mut rig, of_list(&[part_of_rail_0()]));
    met.refused(&mut rig, |rig| rig.qp.post_recv(&RecvWr { keys: &KEYS[..1], ..data(9) }));

    let few = QpLimits { max_recv_wr: 1, ..LIMITS };
    for setup in [spray(), spray().reroute()] {
        let mut rig = Setup { limits: few, ..setup }.rig();
        rig.qp.post_recv(&data(1)).unwrap();
        met.refused(&mut rig, |rig| rig.qp.post_recv(&data(9)));
        met.refused(&mut rig, of_list(&[part(8)]));
        (0..32).for_each(|id| rig.qp.post_recv(&RecvWr::notification(id)).unwrap());
        met.refused(&mut rig, |rig| rig.qp.post_recv(&notification));
    }
    for setup in [dqplb(), dqplb().reroute()] {
        let mut rig = setup.rig();
        rig.qp.post_recv(&data(1)).unwrap();
        met.refused(&mut rig, |rig| rig.qp.post_recv(&notification));
        met.refused(&mut rig, |rig| rig.qp.prepare_receives());
        let mut rig = setup.rig();
        rig.qp.prepare_receives().unwrap();
        met.refused(&mut rig, |rig| rig.qp.post_recv(&data(9)));
        met.refused(&mut rig, of_list(&[part(8)]));
    }
    let mut rig = Setup { notify: false, ..spray() }.rig();
    met.refused(&mut rig, |rig| rig.qp.post_recv(&notification));
    let shared = QpLimits { max_recv_wr: 0, ..LIMITS };
    let mut rig = Setup { limits: shared, notify_limits: shared, ..spray() }.rig();
    met.refused(&mut rig, |rig| rig.qp.post_recv(&notification));
    met.refused(&mut rig, |rig| rig.qp.post_recv(&data(9)));

    for setup in [spray(), dqplb()] {
        let mut rig = setup.rig();
        rig.post([write()]);
        rig.rails[0].fail(WcStatus::REM_ACCESS_ERR);
        rig.poll();
        met.refused(&mut rig, |rig| rig.qp.post_recv(&notification));
        met.refused(&mut rig, |rig| rig.qp.post_recv(&data(9)));
        met.refused(&mut rig, of_list(&[part(8)]));
        if setup.notify == spray().notify {
            continue;
        }
        met.refused(&mut rig, |rig| rig.qp.prepare_receives());
    }

    for refusal in [FULL, BROKEN] {
        for setup in [spray(), spray().reroute(), dqplb(), dqplb().reroute(), Setup::spray(1)] {
            let mut rig = setup.rig();
            let all = rig.rails.iter().chain(&rig.notify);
            all.for_each(|rail| rail.refuse_all_recvs(Some(refusal)));
            met.refused_by_driver(&mut rig, |rig| rig.qp.post_recv(&data(9)));
            met.refused_by_driver(&mut rig, of_list(&[part(8)]));
            // A queue that is full takes a notification receive later.
            if refusal == BROKEN {
                met.refused_by_driver(&mut rig, |rig| rig.qp.post_recv(&notification));
            }
            let all = rig.rails.iter().chain(&rig.notify);
            all.for_each(|rail| rail.refuse_all_recvs(None));
            rig.qp.post_recv(&notification).expect("rail 0 serves notifications as well as data");
        }
    }
    met.are_all();
}

#[test]
fn what_is_not_attached_or_replaced_leaves_no_trace() {
    let mut attached = Met::new();
    let mut replaced = Met::new();
    let mut rig = spray().reroute().rig();
    let other = |rig: &Rig, number: u32, first| {
        let setup = Setup { rail_devices: vec![1, 0], notify: false, ..spray() };
        let setup = setup.config(|config| config.virtual_qp_num = number);
        setup.build_qp::<4, 16, 32>(&rig.nic, &rig.cqs, first).0
    };
    let [same_number, same_route] =
        [(rig::VIRTUAL_QP_NUM, 70), (1, rig::FIRST_QP_NUM - 1)].map(|(n, at)| other(&rig, n, at));
    attached.refused(&mut rig, |rig| rig.cq.attach(0, &same_route));
    attached.refused(&mut rig, |rig| rig.cq.attach(64, &same_route));
    attached.refused(&mut rig, |rig| rig.cq.attach(1, &same_number));
    attached.refused(&mut rig, |rig| rig.cq.attach(1, &same_route));
    let cqs = [rig.cqs[0].clone(), rig.nic.cq(1, 64)];
    let elsewhere = spray().config(|config| config.virtual_qp_num = 2);
    let elsewhere = elsewhere.build_qp::<4, 16, 32>(&rig.nic, &cqs, 70).0;
    attached.refused(&mut rig, |rig| rig.cq.attach(1, &elsewhere));
    attached.refused(&mut rig, |rig| rig.cq.set_aside(rig.cqs[0].id(), 1 << 16));

    let spare = |rig: &Rig, number, on: usize, limits| rig.nic.qp(number, &rig.cqs[on], limits).0;
    let replace = |qp, index, rail, generation| {
        move |rig: &mut Rig| {
            let Rig { qp: virtual_qp, cq, .. } = rig;
            let replaced = virtual_qp.replace_rail(cq, index, rail, generation, qp);
            replaced.map(drop).map_err(|rejected| rejected.error)
        }
    };
    let rail_1 = RailId::Data(1);
    let [first, second, third, fourth, fifth] = [(); 5].map(|()| spare(&rig, 80, 1, LIMITS));
    let small = spare(&rig, 80, 1, QpLimits { max_send_wr: 1, ..LIMITS });
    let taken = spare(&rig, rig::FIRST_QP_NUM, 0, LIMITS);
    let third_device = rig.nic.cq(2, 64);
    let strange = rig.nic.qp(80, &third_device, LIMITS).0;
    replaced.refused(&mut rig, replace(first, 0, RailId::Data(2), 1));
    replaced.refused(&mut rig, replace(second, 0, rail_1, 1));
    rig.qp.fail_rail(rail_1);
    rig.qp.control(super::reroute::fenced(rail_1, 0, 0)).unwrap();
    replaced.refused(&mut rig, replace(third, 0, rail_1, 2));
    replaced.refused(&mut rig, replace(small, 0, rail_1, 1));
    replaced.refused(&mut rig, replace(strange, 0, rail_1, 1));
    replaced.refused(&mut rig, replace(taken, 0, rail_1, 1));
    let not_here = replaced.refused(&mut rig, replace(fourth, 1, rail_1, 1));
    let ReplaceError::Attach(not_here) = not_here else { panic!("{not_here}") };
    attached.0.insert(not_here.name());
    rig.qp.fail();
    replaced.refused(&mut rig, replace(fifth, 0, rail_1, 1));
    replaced.are_all();
    attached.are_all();
}

#[test]
fn settings_that_are_refused_leave_no_trace() {
    let mut met = Met::new();
    let mut rig = spray().rig();
    met.refused(&mut rig, |rig| rig.qp.pair_devices(&[0, 1, 2]));
    rig.post([write()]);
    met.refused(&mut rig, |rig| rig.qp.pair_devices(&[0, 1]));
    met.are_all();
    let mut met = Met::new();
    met.refused(&mut rig, |rig| rig.qp.limit_max_msg_size(127));
    met.refused(&mut rig, |rig| rig.qp.limit_max_msg_size(128));
    met.are_all();
    let mut rig = dqplb().rig();
    let untouched = |rig: &mut Rig, call: &dyn Fn(&mut Rig) -> bool| {
        let before = everything(rig);
        assert!(!call(rig), "refused");
        assert_same(&before, &everything(rig), &"refused");
    };
    let small = PeerWindow { window: 8, receives_per_rail: 8 };
    untouched(&mut rig, &|rig| rig.qp.set_peer_window(small).is_ok());
    untouched(&mut rig, &|rig| rig.qp.set_rail_in_service(2, false));
    untouched(&mut rig, &|rig| rig.qp.reserve_rail(2, true));
    untouched(&mut rig, &|rig| rig.qp.fail_rail(RailId::Data(0)));
    untouched(&mut rig, &|rig| rig.qp.control(ControlMessage::Error).is_ok());
    // SAFETY: the scripted NIC touches no memory.
    untouched(&mut rig, &|rig| unsafe { rig.qp.lose_rail(RailId::Data(0)) });
    assert!(rig.qp.set_rail_in_service(1, false));
    untouched(&mut rig, &|rig| rig.qp.set_rail_in_service(0, false));
}
