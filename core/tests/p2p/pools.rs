//! The receives that all connections of a device share.

use crate::rig::{Rig, Setup, irecv};
use polyrail_core::hardware::Refusal;
use polyrail_core::p2p::{Account, ConnectionEnd, NotNow, Pool, PoolError};
use polyrail_core::verbs::DeviceId;
use polyrail_core::virtual_cq::Event;

fn small(rails: u8, limit: u32, connections: usize) -> Rig {
    let mut setup = Setup::rails(rails);
    (setup.limit, setup.connections) = (limit, connections);
    setup.rig()
}

/// Each receive completion lowers the count.
#[test]
fn receives_are_posted_in_batches_and_counted_down() {
    let mut rig = small(1, 1024, 1);
    let (source, target) = (rig.source(64), rig.target(64));
    for _ in 0..1000 {
        rig.message(&source, &target, 64, 64);
    }
    assert_eq!(rig.fabric.take_batches(0), [512, 449, 449], "high water, and when 63 are left");
    assert_eq!(rig.fabric.rnr(), 0);
}

/// Refilled before the entry goes out, to what may come of all waiting slots.
#[test]
fn what_may_come_is_posted_before_it_is_asked_for() {
    let mut rig = small(2, 8, 3);
    let (source, target) = (rig.source(1024), rig.target(1024));
    for round in 0..20 {
        // A different connection offers more than the low water mark each time.
        let mut handles = vec![];
        for at in 0..3 {
            for _ in 0..(round + at) % 7 + 1 {
                let recv = irecv(&mut rig.connections[at].receiver, &[(&target, 0, 1024, 0)]);
                handles.push((at, recv.expect("within the account")));
                rig.invariants();
            }
        }
        rig.settle();
        let mut sends = vec![];
        for (at, _) in &handles {
            let sender = &mut rig.connections[*at].sender;
            sends.push((*at, sender.isend(source.local(0, 1024), 0, &source.keys).expect("room")));
        }
        rig.settle();
        for (at, send) in sends {
            assert_eq!(rig.connections[at].sender.test(send), Ok(true));
        }
        for (at, recv) in handles {
            assert!(rig.connections[at].receiver.test(recv).expect("it works").is_some());
        }
    }
    assert_eq!(rig.fabric.rnr(), 0, "nobody ever found the pool dry");
}

#[test]
fn beyond_the_limit_of_the_account_irecv_returns_not_now() {
    let mut setup = Setup::rails(2);
    // Both rails on one device: each slot may need two receives there.
    (setup.devices, setup.limit) = (1, 5);
    let mut rig = setup.rig();
    let (source, target) = (rig.source(512), rig.target(512));
    let recvs = [rig.irecv(&target, 512), rig.irecv(&target, 512)];
    let full = NotNow::PoolFull { device: DeviceId(100) };
    assert_eq!(rig.try_irecv(&[(&target, 0, 512, 0)]), Err(full.into()));
    rig.settle();
    let _ = rig.isend(&source, 512);
    rig.settle();
    assert!(rig.received(recvs[0]).is_some());
    assert!(rig.try_irecv(&[(&target, 0, 512, 0)]).is_ok());
}

#[test]
fn a_driver_that_does_not_take_receives_makes_irecv_wait() {
    let mut rig = small(1, 64, 1);
    let target = rig.target(64);
    rig.fabric.refuse_receives(0, 0, Refusal::QueueFull);
    let refused = |refusal| NotNow::PoolRefused { device: DeviceId(100), refusal };
    let not_now = rig.try_irecv(&[(&target, 0, 64, 0)]);
    assert_eq!(not_now, Err(refused(Refusal::QueueFull).into()));
    assert_eq!(rig.fabric.posted(rig.far(0)).len(), 0, "no entry went out");
    rig.fabric.refuse_receives(0, 0, Refusal::Driver(22));
    let not_now = rig.try_irecv(&[(&target, 0, 64, 0)]);
    assert_eq!(not_now, Err(refused(Refusal::Driver(22)).into()));
    // What it took of a batch is enough for one.
    rig.fabric.refuse_receives(0, 1, Refusal::QueueFull);
    let recv = rig.irecv(&target, 64);
    assert_eq!((recv.number(), rig.fabric.receives(0)), (1, 1));
    rig.invariants();
}

#[test]
fn a_driver_that_takes_receives_again_is_asked_by_polls() {
    let mut rig = small(1, 8, 1);
    let (source, target) = (rig.source(64), rig.target(64));
    rig.message(&source, &target, 1, 64);
    let [recv, ..] = [(); 7].map(|()| rig.irecv(&target, 64));
    rig.settle();
    rig.fabric.take_batches(0);
    let _ = rig.isend(&source, 5);
    rig.fabric.refuse_receives(0, 0, Refusal::QueueFull);
    rig.settle();
    assert!(rig.received(recv).is_some());
    let batches = rig.fabric.take_batches(0);
    assert!(batches.len() < 3, "{batches:?}");
    assert_eq!(rig.fabric.rnr(), 0);
}

#[test]
fn accounts_of_a_connection_that_ended_go_back_to_the_pool() {
    let mut rig = small(2, 8, 2);
    let (source, target) = (rig.source(256), rig.target(256));
    rig.message(&source, &target, 256, 256);
    let ended = rig.connections.remove(0);
    assert!(rig.near_cq.detach(0) && rig.far_cq.detach(0));
    let (queue_pairs, accounts) = ended.receiver.into_parts();
    assert_eq!(queue_pairs.count(), 2);
    for (pool, account) in rig.pools.iter_mut().zip(accounts) {
        pool.close(account).expect("its own");
    }
    rig.invariants();
    assert!(rig.pools.iter().all(|pool| pool.unowned() > 0));
    rig.pools.iter_mut().for_each(Pool::note_empty);
    // The next one takes over what was left.
    let srq = rig.srqs[0].clone();
    let account = rig.pools[0].open(srq, 8).expect("there is room again");
    assert_eq!(account.posted() + rig.pools[0].unowned(), i64::from(rig.fabric.receives(0)) / 2);
}

/// Receives that a closed account leaves may have been taken by completions that were not polled:
/// none of them is promised to a peer before it is known to be there.
#[test]
fn receives_that_may_have_been_taken_are_not_granted_again() {
    let mut rig = small(1, 8, 1);
    let (source, target) = (rig.source(64), rig.target(64));
    for _ in 0..5 {
        let _ = rig.irecv(&target, 64);
    }
    rig.settle();
    for _ in 0..5 {
        let _ = rig.isend(&source, 64);
    }
    // Five receives are taken, and their completions were not polled.
    rig.fabric.run();
    assert_eq!(rig.fabric.receives(0), 3);
    let ended = rig.connections.remove(0);
    assert!(rig.near_cq.detach(0) && rig.far_cq.detach(0));
    let (_queue_pairs, accounts) = ended.receiver.into_parts();
    for account in accounts {
        rig.pools[0].close(account).expect("its own");
    }
    let srq = rig.srqs[0].clone();
    let unsettled = PoolError::Unsettled { asked: 8, left: 0, unsettled: 8 };
    assert_eq!(rig.pools[0].open(srq.clone(), 8).err(), Some(unsettled));
    assert_eq!((rig.pools[0].unowned(), rig.pools[0].left()), (8, 0), "nothing changed");
    // Polls find what became of them. Until then, the count is not what is there.
    rig.counts_pools = false;
    rig.poll_far();
    let foreign = rig.foreign[1].drain(..);
    for event in foreign {
        let Event::Foreign { completion, .. } = event else { panic!("{event:?}") };
        assert!(rig.pools[0].note_foreign(&completion));
    }
    rig.pools[0].note_empty();
    let account = rig.pools[0].open(srq, 8).expect("there is room again");
    assert_eq!((account.posted(), rig.fabric.receives(0)), (3, 3));
    assert_eq!((rig.pools[0].unowned(), rig.pools[0].left()), (0, 0));
}

/// A pool counts the receives of its own accounts: one of another pool comes back, even if that is
/// of the same device.
#[test]
fn an_account_of_another_pool_is_given_back() {
    let mut rig = small(2, 8, 1);
    let device = rig.pools[0].device();
    let mut same_device = Pool::new(device, 64);
    let ended = rig.connections.remove(0);
    let (_queue_pairs, accounts) = ended.receiver.into_parts();
    let [own, other] = &mut rig.pools[..] else { panic!("two devices") };
    for (account, is_own) in accounts.zip([true, false]) {
        let before = (own.unowned(), own.left(), same_device.unowned(), same_device.left());
        let refused = same_device.close(account).expect_err("of another pool");
        assert_eq!(refused.pool, device);
        let account = if is_own {
            refused.account
        } else {
            let refused = own.close(refused.account).expect_err("of another device");
            assert_eq!((refused.pool, refused.account.device()), (device, other.device()));
            refused.account
        };
        let after = (own.unowned(), own.left(), same_device.unowned(), same_device.left());
        assert_eq!(before, after, "nothing changed");
        let pool = if is_own { &mut *own } else { &mut *other };
        assert!(pool.close(account).is_ok());
        assert_eq!(pool.left(), 8);
    }
}

/// A queue pair that died with a receive of another connection's was the last one of its connection
/// there.
#[test]
fn what_was_taken_on_a_device_without_queue_pairs_is_paid_back() {
    let mut setup = Setup::rerouting(2);
    (setup.connections, setup.limit) = (2, 8);
    let mut rig = setup.rig();
    let target = rig.target(256);
    let _ = irecv(&mut rig.connections[1].receiver, &[(&target, 0, 256, 0)]).expect("room");
    let dying = rig.far(1);
    rig.fabric.take_receive(dying);
    rig.fabric.kill(dying);
    // SAFETY: it executes nothing more.
    unsafe { assert!(rig.receiver().lose_queue_pair(1)) };
    rig.poll_far();
    let posted: Vec<_> = rig.receiver().accounts().map(Account::posted).collect();
    assert!(posted.iter().all(|posted| *posted >= 0), "{posted:?}");
    rig.invariants();
}
