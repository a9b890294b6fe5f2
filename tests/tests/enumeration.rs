//! Every interleaving of small configurations: two rails, up to three requests, up to six
//! completions, one fault. Nothing is sampled; their number is printed.
//!
//! Three requests are of the plainest kinds; unsignaled, fenced and atomic ones, signals, those of
//! more fragments than rails and those that are reported when they are done, come alone or in
//! pairs, with each other and with the plain ones.
//!
//! `ENUMERATION=all` runs them all; otherwise two requests without a fault, or one with a fault.

use polyrail_core::hardware::Refusal;
use polyrail_core::internals::{SequenceImm, SequenceNumber};
use polyrail_core::verbs::{Opcode, RecvWr, ReportOrder, SendFlags, WcStatus};
use polyrail_core::virtual_qp::Scheme;
use polyrail_tests::choices::{Choices, Every, pick};
use polyrail_tests::rig::{Rig, Setup};
use polyrail_tests::watched::{Post, Watched};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Small rings: three requests do not always fit.
type SmallWatched = Watched<2, 8, 2>;
type SmallRig = Rig<2, 8, 4>;

const FRAGMENT: u32 = 128;

/// The fault that occurs once, at any time, on any queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Nothing,
    /// The queue pair goes to the error state: everything is flushed.
    Flushes,
    /// The next request fails with a status of its own: what is behind it is flushed.
    Fails,
    /// The driver takes this many requests of the next batch, and the rest later.
    QueueFull(u32),
    /// The driver takes this many requests of the next batch, and never the rest.
    Refuses(u32),
}

/// A kind of request, and the number of its fragments.
#[derive(Clone, Copy, Debug)]
struct Kind {
    opcode: Opcode,
    fragments: u32,
    flags: SendFlags,
    report_order: Option<ReportOrder>,
    /// See [`Post::list`].
    list: u8,
}

impl Kind {
    const fn new(opcode: Opcode, fragments: u32) -> Self {
        Self { opcode, fragments, flags: SendFlags::SIGNALED, report_order: None, list: 0 }
    }

    const fn listed(self, list: u8) -> Self {
        Self { list, ..self }
    }

    const fn when_done(self) -> Self {
        Self { report_order: Some(ReportOrder::WhenDone), ..self }
    }

    /// An atomic moves 8 bytes.
    fn post(&self) -> Post {
        let Self { opcode, fragments, flags, report_order, list } = *self;
        let length = if opcode == Opcode::FetchAdd { 8 } else { fragments * FRAGMENT };
        Post { opcode, length, flags, report_order, list }
    }
}

/// The kinds that are enumerated in threes.
const PLAIN: [Kind; 5] = [
    Kind::new(Opcode::RdmaWrite, 2),
    Kind::new(Opcode::RdmaWriteWithImm, 1),
    Kind::new(Opcode::RdmaWriteWithImm, 2),
    Kind::new(Opcode::RdmaRead, 1),
    Kind::new(Opcode::Send, 1),
];

/// The kinds that are enumerated in pairs, with each other and with the plain ones.
const SPECIAL: [Kind; 11] = [
    Kind::new(Opcode::RdmaWrite, 3),
    Kind::new(Opcode::RdmaWrite, 1).when_done(),
    Kind::new(Opcode::RdmaWriteWithImm, 2).when_done(),
    Kind::new(Opcode::RdmaWriteWithImm, 3),
    Kind::new(Opcode::RdmaWriteWithImm, 0),
    Kind { flags: SendFlags::empty(), ..Kind::new(Opcode::RdmaWriteWithImm, 1) },
    Kind { flags: SendFlags::empty(), ..Kind::new(Opcode::Send, 1) },
    Kind { flags: SendFlags::SIGNALED.union(SendFlags::FENCE), ..Kind::new(Opcode::RdmaWrite, 2) },
    Kind::new(Opcode::FetchAdd, 1),
    Kind::new(Opcode::RdmaWriteWithImm, 2).listed(4),
    Kind::new(Opcode::Send, 1).listed(2),
];

/// A sender: requests, and a fault.
#[derive(Clone, Debug)]
struct Sender {
    scheme: Scheme,
    requests: Vec<Kind>,
    fault: Fault,
}

#[derive(Clone, Copy, Debug)]
enum Action {
    Post,
    /// The next request of a queue pair succeeds.
    Complete(usize),
    Poll,
    /// The fault happens to a queue pair.
    Inject(usize),
}

impl Sender {
    /// Completions that the requests bring: one for each rail in use, one for each notify, one
    /// for an empty fragment.
    fn completions(&self) -> u32 {
        let notifies = |kind: &Kind| {
            let is_notified = self.scheme == Scheme::Spray || kind.fragments == 0;
            u32::from(is_notified && kind.opcode == Opcode::RdmaWriteWithImm)
        };
        self.requests.iter().map(|kind| kind.fragments.min(2) + notifies(kind)).sum()
    }

    fn run(&self, choices: &mut dyn Choices) {
        let setup = match self.scheme {
            Scheme::Spray => Setup::spray(2),
            Scheme::Dqplb => Setup::dqplb(2),
        };
        // Two requests in flight on each queue pair, and three numbers on their way.
        let mut world = SmallWatched::new(&setup.fragment(FRAGMENT).depth(2), 3, self.fails());
        let mut posted = 0;
        let mut injected = self.fault == Fault::Nothing;
        let mut refused = false;
        loop {
            let mut actions = Vec::with_capacity(8);
            if posted < self.requests.len() {
                actions.push(Action::Post);
            }
            let handles = world.handles();
            let queues = 0..handles.len();
            let busy = queues.clone().filter(|at| !handles[*at].sends().is_empty());
            actions.extend(busy.map(Action::Complete));
            if world.unpolled() > 0 || refused {
                actions.push(Action::Poll);
            }
            // A fault after the last event changes nothing.
            if !injected && !actions.is_empty() {
                // A failure by itself needs a request.
                let needs_one = self.fault == Fault::Fails;
                let may_fail = |at: &usize| !needs_one || !handles[*at].sends().is_empty();
                actions.extend(queues.filter(may_fail).map(Action::Inject));
            }
            if actions.is_empty() {
                break;
            }
            match pick(choices, &actions) {
                Action::Post => {
                    let kind = &self.requests[posted];
                    world.post(kind.post());
                    posted += 1;
                }
                Action::Complete(at) => world.complete(&handles[at], 1),
                Action::Poll => {
                    world.poll(usize::MAX);
                    refused = false;
                }
                Action::Inject(at) => {
                    injected = true;
                    refused = true;
                    match self.fault {
                        Fault::Nothing => {}
                        Fault::Flushes => world.fail(&handles[at]),
                        Fault::Fails => world.fail_next(&handles[at], WcStatus::REM_OP_ERR),
                        Fault::QueueFull(taken) => {
                            handles[at].refuse_next(taken, Refusal::QueueFull);
                        }
                        Fault::Refuses(taken) => {
                            handles[at].refuse_next(taken, Refusal::Driver(5));
                        }
                    }
                }
            }
        }
        world.finish();
    }

    fn fails(&self) -> bool {
        matches!(self.fault, Fault::Flushes | Fault::Fails | Fault::Refuses(_))
    }
}

/// A DQPLB receiver: this many requests of two fragments, one on each rail, arrive; one fragment
/// may arrive twice.
#[derive(Clone, Debug)]
struct Receiver {
    requests: u32,
    repeats: bool,
}

impl Receiver {
    fn run(&self, choices: &mut dyn Choices) {
        let mut rig: SmallRig = Setup::dqplb(2).depth(8).build();
        rig.qp.prepare_receives().expect("room for receives");
        // Fragments that arrived on each rail: the i-th belongs to request i.
        let mut arrived = [0u32; 2];
        let mut posted = 0;
        let mut reported = 0;
        let mut repeats = self.repeats;
        loop {
            let mut actions = Vec::with_capacity(6);
            actions
                .extend((0..2).filter(|rail| arrived[*rail] < self.requests).map(Action::Complete));
            if posted < self.requests {
                actions.push(Action::Post);
            }
            if rig.nic.unpolled() > 0 {
                actions.push(Action::Poll);
            }
            if repeats && !actions.is_empty() {
                actions.extend((0..2).filter(|rail| arrived[*rail] > 0).map(Action::Inject));
            }
            if actions.is_empty() {
                break;
            }
            match pick(choices, &actions) {
                Action::Post => {
                    let wr = RecvWr::notification(u64::from(posted));
                    rig.qp.post_recv(&wr).expect("room for a receive");
                    posted += 1;
                }
                Action::Complete(rail) => {
                    deliver(&rig, rail, rail as u32 + 2 * arrived[rail]);
                    arrived[rail] += 1;
                }
                Action::Inject(rail) => {
                    // The first fragment of this rail, on the other one.
                    repeats = false;
                    deliver(&rig, 1 - rail, rail as u32);
                }
                Action::Poll => {
                    for wc in rig.poll() {
                        assert_eq!(wc.wr_id, u64::from(reported), "in order");
                        assert!(wc.status.is_success());
                        reported += 1;
                    }
                    let complete = arrived[0].min(arrived[1]);
                    assert_eq!(reported, complete.min(posted), "all that is complete, and no more");
                }
            }
        }
        reported += rig.poll().len() as u32;
        assert_eq!((reported, rig.qp.protocol_errors()), (self.requests, 0));
        assert_eq!(rig.qp.duplicates(), u64::from(self.repeats && !repeats));
    }
}

/// A fragment arrives on a rail. Two make a request.
fn deliver(rig: &SmallRig, rail: usize, number: u32) {
    let last = number % 2 == 1;
    let number = SequenceNumber::new(number).expect("a small number");
    rig.rails[rail].deliver_imm(SequenceImm { number, last }.encode());
}

/// Runs every interleaving. Returns their number.
fn every(run: impl Fn(&mut dyn Choices)) -> u64 {
    let mut choices = Every::default();
    let mut count = 0;
    loop {
        run(&mut choices);
        count += 1;
        if !choices.advance() {
            return count;
        }
    }
}

/// Whether to run everything, or only what takes a second.
fn wants_all() -> bool {
    std::env::var("ENUMERATION").is_ok_and(|which| which == "all")
}

/// All sequences of this length.
fn sequences<T: Copy>(of: &[T], length: usize) -> Vec<Vec<T>> {
    if length == 0 {
        return vec![Vec::new()];
    }
    let shorter = sequences(of, length - 1);
    let longer = shorter.iter().flat_map(|start| {
        of.iter().map(move |next| start.iter().copied().chain([*next]).collect())
    });
    longer.collect()
}

/// The sequences of requests that are enumerated, up to this many of the plain kinds.
fn all_requests(longest: usize) -> Vec<Vec<Kind>> {
    let plain = (1..=longest).flat_map(|length| sequences(&PLAIN, length));
    let kinds = [&PLAIN[..], &SPECIAL].concat();
    let places: Vec<usize> = (0..kinds.len()).collect();
    let mixed = (1..=longest.min(2)).flat_map(|length| sequences(&places, length));
    let mixed = mixed.filter(|places| places.iter().any(|place| *place >= PLAIN.len()));
    let mixed = mixed.map(|places| places.iter().map(|place| kinds[*place]).collect());
    plain.chain(mixed).collect()
}

/// The faults that may befall these requests. A batch is taken in part only if there can be one of
/// two; with three requests there are enough interleavings without that.
fn all_faults(requests: &[Kind]) -> Vec<Fault> {
    use Fault::{Fails, Flushes, Nothing, QueueFull, Refuses};
    let notifies = requests.iter().filter(|kind| kind.opcode == Opcode::RdmaWriteWithImm).count();
    let long = requests.iter().any(|kind| kind.fragments > 2);
    let in_part = requests.len() <= 2 && (long || notifies > 1);
    let in_part: &[Fault] = if in_part { &[QueueFull(1), Refuses(1)] } else { &[] };
    [&[Nothing, Flushes, Fails, QueueFull(0), Refuses(0)], in_part].concat()
}

#[test]
fn every_interleaving_of_posts_completions_polls_and_a_fault_keeps_every_promise() {
    let mut configurations = Vec::new();
    for scheme in [Scheme::Spray, Scheme::Dqplb] {
        for requests in all_requests(if wants_all() { 3 } else { 2 }) {
            for fault in all_faults(&requests) {
                let sender = Sender { scheme, requests: requests.clone(), fault };
                let quick = requests.len() == 1 || fault == Fault::Nothing;
                if sender.completions() <= 6 && (quick || wants_all()) {
                    configurations.push(sender);
                }
            }
        }
    }
    let interleavings = in_parallel(&configurations, |sender| every(|choices| sender.run(choices)));
    println!(
        "{interleavings} interleavings of {} configurations of a sender",
        configurations.len()
    );
    assert!(interleavings > 1000);
}

/// Returns the sum of `count` over all configurations.
fn in_parallel<T: Debug + Sync>(configurations: &[T], count: impl Fn(&T) -> u64 + Sync) -> u64 {
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let work = || {
        let mine = std::iter::from_fn(|| configurations.get(next.fetch_add(1, Ordering::Relaxed)));
        mine.map(|configuration| {
            catch_unwind(AssertUnwindSafe(|| count(configuration))).unwrap_or_else(|panic| {
                eprintln!("in {configuration:?}");
                resume_unwind(panic)
            })
        })
        .sum::<u64>()
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        workers.into_iter().map(|worker| worker.join().expect("every promise is kept")).sum()
    })
}

#[test]
fn every_interleaving_of_arrivals_receives_and_polls_is_counted_right() {
    let longest = if wants_all() { 3 } else { 2 };
    let configurations: Vec<_> = (1..=longest)
        .flat_map(|requests| [false, true].map(|repeats| Receiver { requests, repeats }))
        .collect();
    let interleavings =
        in_parallel(&configurations, |receiver| every(|choices| receiver.run(choices)));
    println!(
        "{interleavings} interleavings of {} configurations of a receiver",
        configurations.len()
    );
    assert!(interleavings > 1000);
}
