//! A virtual queue pair with something to report never waits forever while others are served,
//! however small the budget is and whichever others are busy.
//!
//! `FAIRNESS_SEED=n` repeats one seed, `FAIRNESS_SEEDS=n` runs n of them.

use polyrail_core::hardware::CompletionQueue as _;
use polyrail_core::internals::{SequenceImm, SequenceNumber};
use polyrail_core::verbs::{Imm, Opcode, RecvWr};
use polyrail_core::virtual_cq::{Event, Polled, VirtualCq};
use polyrail_tests::choices::{Choices, Seeded, pick};
use polyrail_tests::rig::{self, Setup, TestCq, TestQp, Way};
use polyrail_tests::scripted::{Nic, QpHandle, ScriptedCq};
use std::mem::MaybeUninit;

/// Maximum number of polls to wait. The worlds below can have 120 completions in flight (5 virtual
/// queue pairs of 3 rails, 8 requests each), which may all pass straight through and take every
/// second event of a budget of 1; after that the five have their turns. A world goes on ten times
/// longer.
const MAX_WAIT: u32 = 2 * 120 + 2 * 5;
const POLLS: u32 = 10 * MAX_WAIT;

/// What an owner does repeatedly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Habit {
    /// Posts WRITEs, as many as are accepted.
    Writes,
    /// Posts SENDs, which pass through to rail 0.
    Sends,
    /// Posts receives for notifications that have arrived.
    Receives,
    /// Posts a WRITE now and then.
    Seldom,
}

/// A virtual queue pair, its owner, and how long it has been waiting to report something.
struct Member {
    habit: Habit,
    qp: TestQp,
    rails: Vec<QpHandle>,
    notify: Option<QpHandle>,
    /// Requests and receives that are complete on the NIC and not reported.
    due: usize,
    waited: u32,
    served: u64,
    /// DQPLB: fragments that arrived.
    arrived: u32,
}

struct World {
    nic: Nic,
    random: Seeded,
    cqs: Vec<ScriptedCq>,
    cq: TestCq,
    members: Vec<Member>,
    /// The way to poll, if it is always the same.
    way: Option<Way>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Seeded::new(seed);
        let nic = Nic::new();
        let devices = 1 + random.below(3);
        let cqs: Vec<_> = (0..devices).map(|device| nic.cq(device, 1 << 14)).collect();
        let mut cq: TestCq = VirtualCq::new(cqs.iter().cloned()).expect("few queues");
        let members: Vec<_> = (0..2 + random.below(4))
            .map(|number| Member::new(number, &mut random, &nic, &cqs))
            .collect();
        for (index, member) in members.iter().enumerate() {
            cq.attach(index as u16, &member.qp).expect("room for all");
        }
        let one_way = pick(&mut random, &[Way::One, Way::All(1), Way::All(2), Way::All(5)]);
        let way = random.coin().then_some(one_way);
        Self { nic, random, cqs, cq, members, way }
    }

    fn run(&mut self) {
        let busy = self.members.len() as u32;
        for _ in 0..POLLS {
            for _ in 0..self.random.below(2 * busy) {
                let at = self.random.below(busy) as usize;
                self.members[at].act(&mut self.random);
            }
            self.poll();
        }
        assert!(self.members.iter().all(|member| member.served > 0));
        assert!(self.nic.refusals() == 0);
    }

    fn poll(&mut self) {
        let any = Way::choose(&mut self.random, self.cqs.len());
        let way = self.way.unwrap_or(any);
        let Self { cq, cqs, members, .. } = self;
        let mut set: Vec<&mut TestQp> = Vec::new();
        let mut before = Vec::new();
        for member in members.iter_mut() {
            before.push(member.due);
            set.push(&mut member.qp);
        }
        let mut events = Vec::new();
        poll_by(way, cq, cqs, &mut set, |event| events.push(event));
        let mut reports = vec![0; members.len()];
        for event in &events {
            let wc = event.completion().expect("nothing foreign");
            reports[wc.qp_num as usize] += 1;
        }
        let of_all = matches!(way, Way::All(_) | Way::One);
        for ((member, reports), due) in members.iter_mut().zip(reports).zip(before) {
            member.due =
                member.due.checked_sub(reports).expect("only what is complete is reported");
            member.served += reports as u64;
            if reports > 0 || due == 0 {
                member.waited = 0;
            } else if of_all && !events.is_empty() {
                member.waited += 1;
            }
            assert!(member.waited < MAX_WAIT, "{:?} waits while others are served", member.habit);
        }
    }
}

impl Member {
    fn new(number: u32, random: &mut Seeded, nic: &Nic, cqs: &[ScriptedCq]) -> Self {
        let habits = [Habit::Writes, Habit::Writes, Habit::Sends, Habit::Receives, Habit::Seldom];
        let habit = pick(random, &habits);
        let rails = 1 + random.below(3) as usize;
        let dqplb = rails > 1 && habit != Habit::Sends && random.coin();
        let setup = if dqplb { Setup::dqplb(rails) } else { Setup::spray(rails) };
        let mut setup = setup.devices(cqs.len()).fragment(128).depth(1 + random.below(8));
        setup.config.virtual_qp_num = number;
        let first = random.below(cqs.len() as u32) as usize;
        setup.rail_devices = (0..rails).map(|rail| (first + rail) % cqs.len()).collect();
        let (qp, rails, notify) = setup.build_qp(nic, cqs, 100 * (number + 1));
        Self { habit, qp, rails, notify, due: 0, waited: 0, served: 0, arrived: 0 }
    }

    /// Its owner follows its habit, and its NIC takes a step.
    fn act(&mut self, random: &mut Seeded) {
        match self.habit {
            Habit::Receives if self.rails.len() > 1 => self.receive(random),
            Habit::Receives | Habit::Sends => {
                while self.rails[0].slots() < 8 && self.qp.post_send(&rig::send(0, 8)).is_ok() {}
                self.complete();
            }
            Habit::Writes => {
                let is_multi = self.rails.len() > 1;
                while is_multi || self.rails[0].slots() < 8 {
                    if self.qp.post_send(&rig::write(0, 128)).is_err() {
                        break;
                    }
                }
                self.complete();
            }
            Habit::Seldom if random.one_in(10) => {
                let _ = self.qp.post_send(&rig::write(0, 128));
                self.complete();
            }
            Habit::Seldom => {}
        }
    }

    /// Every fragment and SEND is a separate request.
    fn complete(&mut self) {
        for rail in &self.rails {
            let sends = rail.sends();
            assert!(sends.iter().all(|send| send.opcode != Opcode::RdmaWriteWithImm));
            self.due += sends.len();
            rail.complete_all();
        }
    }

    fn receive(&mut self, random: &mut Seeded) {
        let Some(notify) = &self.notify else { return self.receive_numbers(random) };
        while self.qp.post_recv(&RecvWr::notification(0)).is_ok() {}
        for _ in 0..notify.recvs().len() {
            notify.deliver_imm(Imm::from_number(1));
            self.due += 1;
        }
    }

    /// Notifications arrive before their receives are posted, so that these need no completion.
    fn receive_numbers(&mut self, random: &mut Seeded) {
        self.qp.prepare_receives().expect("room for receives");
        for rail in &self.rails {
            for _ in 0..random.below(3).min(rail.recvs().len() as u32) {
                let number = SequenceNumber::new(self.arrived).expect("a small number");
                rail.deliver_imm(SequenceImm { number, last: true }.encode());
                self.arrived += 1;
            }
        }
        let posted = self.due + self.served as usize;
        for _ in posted..self.arrived as usize {
            if self.qp.post_recv(&RecvWr::notification(0)).is_ok() {
                self.due += 1;
            }
        }
    }
}

/// Polls in this way. A set of references is what programs have that keep their queue pairs apart.
fn poll_by(
    way: Way,
    cq: &mut TestCq,
    cqs: &mut [ScriptedCq],
    qps: &mut [&mut TestQp],
    mut sink: impl FnMut(Event),
) {
    use polyrail_core::virtual_cq::CompletionTarget;
    let mut set: Vec<&mut dyn CompletionTarget> =
        qps.iter_mut().map(|qp| &mut **qp as &mut dyn CompletionTarget).collect();
    let set = &mut set[..];
    let polled = match way {
        Way::All(budget) => cq.poll(set, budget, sink),
        Way::Queue(at, budget) => cq.poll_cq(at, set, budget, sink),
        Way::One => {
            let (event, polled) = cq.poll_one(set);
            event.into_iter().for_each(&mut sink);
            polled
        }
        Way::Feed(at) => {
            let mut batch = [const { MaybeUninit::uninit() }; 20];
            let device = cqs[at].device();
            let completions = cqs[at].poll(&mut batch).expect("a working queue");
            // SAFETY: just polled from a queue of this device, in order.
            let events = unsafe { cq.feed(set, device, completions, sink) };
            Polled { events, error: None }
        }
    };
    assert_eq!(polled.error, None);
    cq.invariants();
}

#[test]
fn no_queue_pair_waits_forever_whichever_others_are_busy() {
    if let Some(seed) = std::env::var("FAIRNESS_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return World::new(seed).run();
    }
    let seeds = std::env::var("FAIRNESS_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    // With the last seed, a poll without room for completions once cost a queue its turn forever.
    for seed in (0..seeds.unwrap_or(3)).chain([1018]) {
        let outcome = std::panic::catch_unwind(|| World::new(seed).run());
        assert!(outcome.is_ok(), "repeat with FAIRNESS_SEED={seed} cargo test --test fairness");
    }
}

/// Three that always have something to report get the same share of every budget.
#[test]
fn small_budgets_are_shared_out_evenly() {
    for (budget, devices) in [(1, 1), (1, 3), (2, 1), (2, 3), (5, 2), (32, 1)] {
        let nic = Nic::new();
        let mut cqs: Vec<_> = (0..devices).map(|device| nic.cq(device, 1 << 14)).collect();
        let mut cq: TestCq = VirtualCq::new(cqs.iter().cloned()).unwrap();
        let mut rails = Vec::new();
        let mut set = Vec::new();
        for number in 0..3 {
            let mut setup = Setup::spray(2).devices(devices as usize).fragment(128).depth(16);
            setup.config.virtual_qp_num = number;
            let (qp, handles, _) = setup.build_qp::<4, 16, 32>(&nic, &cqs, 100 * (number + 1));
            cq.attach(number as u16, &qp).unwrap();
            set.push(qp);
            rails.extend(handles);
        }
        let mut served = [0i32; 3];
        for _ in 0..60 {
            for qp in &mut set {
                while qp.post_send(&rig::write(0, 128)).is_ok() {}
            }
            rails.iter().for_each(QpHandle::complete_all);
            let mut refs: Vec<_> = set.iter_mut().collect();
            let sink = |event: Event| served[event.completion().unwrap().qp_num as usize] += 1;
            poll_by(Way::All(budget), &mut cq, &mut cqs, &mut refs, sink);
        }
        let total: i32 = served.iter().sum();
        assert_eq!(total, 60 * budget as i32, "there was always something");
        let least = served.iter().min().unwrap();
        assert!(least * 3 * 2 >= total, "{served:?} with a budget of {budget}");
    }
}

/// The first queue pair that was found to have something to report reports it first.
#[test]
fn the_longest_waiting_is_first() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 14)];
    let mut cq: TestCq = VirtualCq::new(cqs.iter().cloned()).unwrap();
    let mut set: Vec<TestQp> = Vec::new();
    let mut rails = Vec::new();
    for number in 0..4 {
        let mut setup = Setup::spray(2).fragment(128).depth(16);
        setup.config.virtual_qp_num = number;
        let (qp, handles, _) = setup.build_qp(&nic, &cqs, 100 * (number + 1));
        cq.attach(number as u16, &qp).unwrap();
        set.push(qp);
        rails.push(handles);
    }
    for order in [[0, 1, 2, 3], [3, 1, 0, 2], [2, 3, 1, 0]] {
        for at in order {
            for id in 0..3 {
                set[at].post_send(&rig::write(id, 128)).unwrap();
            }
            rails[at].iter().for_each(QpHandle::complete_all);
        }
        let mut seen = Vec::new();
        for _ in 0..40 {
            let (event, polled) = cq.poll_one(&mut set[..]);
            assert_eq!(polled.error, None);
            seen.extend(event.and_then(Event::completion).map(|wc| wc.qp_num as usize));
        }
        assert_eq!(seen.len(), 12);
        // Each is served before any is served for the third time.
        let third = (0..12).find(|at| (0..*at).filter(|b| seen[*b] == seen[*at]).count() == 2);
        let before = &seen[..third.unwrap()];
        assert!((0..4).all(|at| before.contains(&at)), "{seen:?}");
    }
}

/// With a budget of 1 the completion queues are still polled, so that no rail seems to stall.
#[test]
fn a_healthy_rail_is_not_taken_for_a_stalled_one_while_others_use_up_the_budget() {
    let nic = Nic::new();
    let cqs = [nic.cq(0, 1 << 14)];
    let mut cq: TestCq = VirtualCq::new(cqs.iter().cloned()).unwrap();
    let build = |number: u32, setup: Setup| {
        let setup = setup.config(|config| config.virtual_qp_num = number);
        setup.fragment(128).depth(8).build_qp::<4, 16, 32>(&nic, &cqs, 100 * (number + 1))
    };
    let (receiver, arrivals, _) = build(0, Setup::dqplb(2));
    let (sender, rails, _) = build(1, Setup::spray(2));
    let mut set = [receiver, sender];
    for (index, qp) in set.iter().enumerate() {
        cq.attach(index as u16, qp).unwrap();
    }
    set[0].prepare_receives().unwrap();
    let mut arrived = 0;
    for _ in 0..200 {
        // The receiver always has a report: notifications that came before their receives.
        for rail in &arrivals {
            while rail.recvs().len() > 4 {
                let number = SequenceNumber::new(arrived).unwrap();
                rail.deliver_imm(SequenceImm { number, last: true }.encode());
                arrived += 1;
            }
        }
        while set[0].post_recv(&RecvWr::notification(0)).is_ok() {}
        while set[1].post_send(&rig::write(1, 128)).is_ok() {}
        set[1].check_stalled();
        rails.iter().for_each(QpHandle::complete_all);
        for _ in 0..2 {
            let (event, polled) = cq.poll_one(&mut set[..]);
            assert_eq!((polled.error, event.is_some()), (None, true));
        }
        assert!(set[1].check_stalled().is_empty(), "it completes whatever it is given");
    }
}
