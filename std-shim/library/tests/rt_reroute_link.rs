//! Two ends that heal over a link, as two processes do.

mod fixture;
mod rerouted;

use polyrail::endpoint::{HealingLink, HealingMessage};
use polyrail::nic::{Fabric, Fault, When};
use polyrail::virtual_qp::{QpState, Scheme};
use rerouted::fault_schedule::{FaultSchedule, Random};
use rerouted::{End, Ends, healed};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

const SCHEMES: [Scheme; 2] = [Scheme::Spray, Scheme::Dqplb];

/// A link that is slow and breaks, and carries text. Each end has the new way at a time of its own.
struct Link {
    ends: [HealingLink; 2],
    /// What is on its way to each end.
    ways: [VecDeque<String>; 2],
    /// Ends that do not know of the new way yet.
    is_cut: [bool; 2],
    breaks: usize,
}

fn said(link: &HealingLink) -> impl Iterator<Item = String> {
    std::iter::from_fn(|| link.next_message()).map(|message| message.to_json())
}

fn hear(link: &HealingLink, text: &str) {
    link.handle(HealingMessage::from_json(text.as_bytes()).unwrap()).unwrap();
}

impl Link {
    fn new(ends: &Ends) -> Self {
        let ends = [&ends.near, &ends.far].map(|end| end.endpoint.healing_link().unwrap());
        Self { ends, ways: Default::default(), is_cut: [false; 2], breaks: 0 }
    }

    fn go_on(&mut self, random: &mut Random) {
        for at in 0..2 {
            self.carry(at, random);
        }
        if self.is_cut == [false; 2] && random.one_in(300) {
            self.breaks += 1;
            self.ways.iter_mut().for_each(VecDeque::clear);
            self.is_cut = [true; 2];
        }
    }

    /// Carries what one end says, and what it is told.
    fn carry(&mut self, at: usize, random: &mut Random) {
        let end = &self.ends[at];
        if self.is_cut[at] {
            if random.one_in(20) {
                self.is_cut[at] = false;
                end.restored();
            } else if random.one_in(3) {
                // Lost with the old way.
                said(end).for_each(drop);
            }
            return;
        }
        self.ways[1 - at].extend(said(end));
        if random.one_in(5)
            && let Some(text) = self.ways[at].pop_front()
        {
            hear(end, &text);
        }
    }
}

#[test]
fn nothing_is_lost_over_a_link_that_is_slow_and_breaks() {
    let mut breaks = 0;
    for scheme in SCHEMES {
        for seed in 0..6 {
            let fabric = Fabric::deterministic(seed);
            let mut ends = Ends::apart(fabric, 3, &healed(scheme).min_rails(0));
            let mut schedule = FaultSchedule::new(seed);
            let mut random = Random(!seed);
            let mut link = Link::new(&ends);
            ends.go_on(
                |ends| {
                    schedule.step(ends);
                    link.go_on(&mut random);
                },
                |ends| ends.near.received() > 21 && ends.far.received() > 21,
            );
            schedule.lift_all(&mut ends);
            ends.finish(|_| link.go_on(&mut random));
            ends.go_on(|_| link.go_on(&mut random), Ends::is_ready);
            breaks += link.breaks;
        }
    }
    assert!(breaks > 0);
}

/// How many ends have come so far.
#[derive(Default)]
struct Count {
    /// A rail of theirs failed.
    have_failed: AtomicUsize,
    /// They are done and well, after that.
    are_well: AtomicUsize,
}

/// One end in a thread of its own, until both are done and well; then it is given back.
fn live(
    mut end: End,
    peer_salt: usize,
    (to_peer, from_peer): (Sender<String>, Receiver<String>),
    count: &Count,
) -> End {
    let begin = Instant::now();
    let link = end.endpoint.healing_link().unwrap();
    let mut has_failed = false;
    let mut is_well = false;
    while count.are_well.load(SeqCst) < 2 {
        end.go_on(peer_salt);
        // The peer's thread may have ended.
        said(&link).for_each(|text| _ = to_peer.send(text));
        from_peer.try_iter().for_each(|text| hear(&link, &text));
        if !has_failed && !end.events.is_empty() {
            has_failed = true;
            count.have_failed.fetch_add(1, SeqCst);
        }
        if has_failed && !is_well && end.is_done() && end.endpoint.state() == QpState::Ready {
            is_well = true;
            count.are_well.fetch_add(1, SeqCst);
        }
        assert!(begin.elapsed() < fixture::LONG, "{}", end.report("an end"));
    }
    end
}

/// In real time, with a fabric that both threads drive.
#[test]
fn two_threads_heal_by_what_they_send_each_other() {
    for scheme in SCHEMES {
        let fabric = Fabric::threaded();
        let Ends { near, far, .. } = Ends::apart(fabric, 4, &healed(scheme).min_rails(0));
        near.devices[1].inject(When::Bytes(30_000), Fault::LinkDown);
        let cut = near.devices[1].clone();
        let others = near.devices[2..].iter().chain(&far.devices[2..]);
        let others: Vec<_> = others.cloned().collect();
        let (to_far, from_near) = channel();
        let (to_near, from_far) = channel();
        let [near_salt, far_salt] = [near.salt, far.salt];
        let count = Count::default();
        let ends = thread::scope(|scope| {
            let near = scope.spawn(|| live(near, far_salt, (to_far, from_far), &count));
            let far = scope.spawn(|| live(far, near_salt, (to_near, from_near), &count));
            let mut random = Random(7);
            for _ in 0..20 {
                let device = &others[random.below(4) as usize];
                device.inject(When::Now, Fault::LinkDown);
                thread::sleep(Duration::from_millis(2));
                device.inject(When::Now, Fault::LinkUp);
            }
            // However slow the machine is, the first link stays cut until both have seen it.
            let begin = Instant::now();
            while count.have_failed.load(SeqCst) < 2 {
                thread::sleep(Duration::from_millis(1));
                assert!(begin.elapsed() < fixture::LONG, "no rail failed");
            }
            cut.inject(When::Now, Fault::LinkUp);
            [near.join().unwrap(), far.join().unwrap()]
        });
        for end in ends {
            end.check_memory();
        }
    }
}
