//! The end of queue pairs whose receives come from a shared receive queue, under load.

use crate::fixture::Rails;
use crate::memory::Buffer;
use polyrail_core::hardware::{QueuePair as _, ReceiveQueue as _, RecvBatch as _};
use polyrail_core::verbs::{
    Completion, Imm, Opcode, RecvRequest, SendFlags, SendRequest, Sge, WcStatus,
};
use polyrail_ffi::{CompletionQueue, QueuePair, SharedReceiveQueue};
use polyrail_tests::behaviours::pair::{poll, post};
use polyrail_tests::behaviours::{ALL_ACCESS, End, Fixture, LIMIT, Memory, Retries};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{self, Scope};
use std::time::Instant;

/// Groups of queue pairs that come to their end, and queue pairs of a group. To destroy one takes
/// 10 ms in the guest; ten thousand were ended so once, by 625 groups for each way of posting.
const GROUPS: usize = 40;
const GROUP: usize = 8;

/// Instead of the place in its group of the queue pair that ends next: all have come to their end.
const ALL: usize = usize::MAX;

/// Messages that a queue pair has in flight.
const DEPTH: u32 = 16;

/// Messages that are sent to a queue pair at most.
const MESSAGES: usize = 2048;

/// Places for what queue pairs write: how many come to their end while what one has written is
/// watched.
const PLACES: usize = 16 * GROUP;

/// Receives in the shared queue.
const RECEIVES: u64 = 64;

const WORD: usize = size_of::<u64>();

/// Bytes of a message, its number and those that follow: one packet, which takes the driver as long
/// as can be.
const LENGTH: usize = 4096;

/// What is in the memory of a place to which nothing was written.
const NOTHING: u64 = u64::MAX;

/// Completions that a poll asks for.
const POLL: usize = 8;

/// A queue pair that sends numbered messages, and how far it has come.
struct Stream {
    qp: QueuePair,
    cq: CompletionQueue,
    /// Where the numbers are that it sends.
    numbers: Arc<[Sge]>,
    /// Where it writes them, and with which key.
    to: (u64, u32),
    posted: usize,
    acknowledged: usize,
    completed: usize,
}

impl Stream {
    fn has_failed(&self) -> bool {
        self.acknowledged < self.completed
    }

    fn in_flight(&self) -> usize {
        self.posted - self.completed
    }

    fn message(&self, number: usize) -> SendRequest {
        SendRequest {
            wr_id: number as u64,
            opcode: Opcode::RdmaWriteWithImm,
            flags: SendFlags::SIGNALED,
            imm: Imm::from_number(number as u32),
            sge: self.numbers[number],
            remote_addr: self.to.0,
            rkey: self.to.1,
            compare_add: 0,
            swap: 0,
        }
    }

    /// Sends one message if it can, the first again after the last, and sees what has completed.
    fn step(&mut self, sends: bool) {
        if sends && !self.has_failed() && self.in_flight() < DEPTH as usize {
            let message = self.message(self.posted % MESSAGES);
            post(&mut self.qp, &[message]).expect("room in the queue");
            self.posted += 1;
        }
        for completion in poll(&mut self.cq) {
            self.completed += 1;
            self.acknowledged += usize::from(completion.status == WcStatus::SUCCESS);
        }
    }
}

/// Lets the sending end go on when the receiving end is done, or has failed.
struct EndAll<'n>(&'n AtomicUsize);

impl Drop for EndAll<'_> {
    fn drop(&mut self) {
        self.0.store(ALL, Ordering::Release);
    }
}

/// The sending end, on its own thread: sends by the queue pair that ends next, of one group
/// after the other, and all the time by one that stays. Tells how many messages of each were
/// acknowledged.
fn send_all<'s>(
    scope: &'s Scope<'s, '_>,
    groups: &Receiver<Vec<Stream>>,
    mut bystander: Stream,
    next: &AtomicUsize,
    acknowledged: &Sender<Vec<usize>>,
) -> usize {
    for mut group in groups {
        while let Some(stream) = group.get_mut(next.load(Ordering::Acquire)) {
            stream.step(stream.posted < MESSAGES);
            bystander.step(stream.posted % 4 == 0);
        }
        for stream in &group {
            stream.qp.enter_error().expect("ERR can always be entered");
        }
        while group.iter().any(|stream| stream.in_flight() > 0) {
            group.iter_mut().for_each(|stream| stream.step(false));
            bystander.step(true);
            thread::yield_now();
        }
        next.store(0, Ordering::Release);
        let counts = group.iter().map(|stream| stream.acknowledged).collect();
        if acknowledged.send(counts).is_err() {
            // The receiving end has failed.
            return 0;
        }
        // To destroy one takes its time, but many can be destroyed at once.
        group.into_iter().for_each(|stream| _ = scope.spawn(|| drop(stream)));
    }
    while bystander.in_flight() > 0 {
        bystander.step(false);
    }
    assert!(!bystander.has_failed(), "what ends takes nobody along");
    bystander.acknowledged
}

/// A queue pair that comes to its end.
struct Victim {
    qp: QueuePair,
    arrived: usize,
    /// What arrived until a poll after ERR found less than it asked for.
    arrived_before: usize,
    /// It has given its word, and then a poll found less than it asked for.
    is_over: bool,
}

/// The receiving end.
struct Receivers {
    cq: CompletionQueue,
    srq: SharedReceiveQueue,
    bystander: QueuePair,
    bystander_arrived: usize,
    group: Vec<Victim>,
    /// Queue pairs that a message arrived for after ERR and a poll that found less than it asked
    /// for.
    late: usize,
}

impl Receivers {
    fn post(&mut self, receives: u64) {
        let mut batch = self.srq.start_recv();
        (0..receives).for_each(|wr_id| batch.add(&RecvRequest { wr_id, sge: Sge::EMPTY }));
        batch.commit().expect("room for what was taken");
    }

    /// Polls once; returns whether that left nothing.
    fn poll(&mut self) -> bool {
        let found = poll(&mut self.cq);
        found.iter().for_each(|completion| self.arrived(completion));
        self.post(found.len() as u64);
        if found.is_empty() {
            // The guest has two processors, which the driver needs as well.
            thread::yield_now();
        }
        found.len() < POLL
    }

    fn poll_until_empty(&mut self) {
        while !self.poll() {}
    }

    fn arrived(&mut self, completion: &Completion) {
        assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
        if completion.qp_num == self.bystander.qp_num() {
            self.bystander_arrived += 1;
            return;
        }
        let is_its = |victim: &&mut Victim| victim.qp.qp_num() == completion.qp_num;
        let victim = self.group.iter_mut().find(is_its).expect("a queue pair of this group");
        assert!(!victim.is_over, "nothing arrives after the end: {completion:?}");
        assert_eq!(completion.imm.number() as usize, victim.arrived, "in order, without a gap");
        victim.arrived += 1;
    }

    /// Lets some messages arrive for a queue pair, and begins to end it.
    fn begin_end(&mut self, at: usize, messages: usize) {
        let start = Instant::now();
        while self.group[at].arrived < messages {
            self.poll();
            assert!(start.elapsed() < LIMIT, "{} of {messages}", self.group[at].arrived);
        }
        self.group[at].qp.enter_error().expect("ERR can always be entered");
        self.poll_until_empty();
        self.group[at].arrived_before = self.group[at].arrived;
        self.ask(at);
    }

    fn ask(&mut self, at: usize) {
        let is_over = self.group[at].qp.last_wqe_reached().expect("a driver that knows");
        if is_over {
            self.poll_until_empty();
        }
        let victim = &mut self.group[at];
        victim.is_over = is_over;
        self.late += usize::from(is_over && victim.arrived > victim.arrived_before);
    }

    fn end(&mut self, round: usize, next: &AtomicUsize) {
        for at in 0..GROUP {
            next.store(at, Ordering::Release);
            self.begin_end(at, (round + at) % GROUP);
        }
        let start = Instant::now();
        while let Some(at) = self.group.iter().position(|victim| !victim.is_over) {
            self.ask(at);
            self.poll();
            assert!(start.elapsed() < LIMIT, "no end");
        }
    }

    /// Waits for the sender's report, and checks that nothing comes for queue pairs at their end.
    fn wait<T>(&mut self, told: &Receiver<T>) -> T {
        loop {
            match told.try_recv() {
                Ok(told) => return told,
                Err(TryRecvError::Empty) => _ = self.poll(),
                Err(TryRecvError::Disconnected) => panic!("the sender has failed"),
            }
        }
    }
}

/// Where queue pairs come to their end.
struct Scene<'r> {
    rails: &'r Rails,
    numbers: Arc<[Sge]>,
    to: Buffer,
    /// What is in the memory of each place for good, until another queue pair has it.
    written: [Option<u64>; PLACES],
}

impl Scene<'_> {
    /// A queue pair on either side, connected; the near one sends to a place.
    fn connect(
        &self,
        cq: &CompletionQueue,
        srq: &SharedReceiveQueue,
        at: usize,
    ) -> (Stream, Victim) {
        let near_cq = self.rails.create_cq(End::Near, 0, 2 * DEPTH);
        let near = self.rails.create_qp(End::Near, 0, &near_cq, None, DEPTH);
        let far = self.rails.create_qp(End::Far, 0, cq, Some(srq), 1);
        self.rails.connect(0, &near, &far, Retries::MANY);
        self.to.write(at * LENGTH, &NOTHING.to_ne_bytes());
        let stream = Stream {
            qp: near,
            cq: near_cq,
            numbers: Arc::clone(&self.numbers),
            to: (self.to.addr() + (at * LENGTH) as u64, self.to.rkey(0)),
            posted: 0,
            acknowledged: 0,
            completed: 0,
        };
        (stream, Victim { qp: far, arrived: 0, arrived_before: 0, is_over: false })
    }

    fn new_group(&self, receivers: &mut Receivers, places: Range<usize>) -> Vec<Stream> {
        let Receivers { cq, srq, .. } = receivers;
        let (streams, victims) = places.map(|at| self.connect(cq, srq, at)).unzip();
        receivers.group = victims;
        streams
    }

    /// Checks what queue pairs at their end have written: what arrived, and nothing more.
    fn check(&mut self, group: &[Victim], places: Range<usize>) {
        for (victim, at) in group.iter().zip(places) {
            self.written[at] =
                Some(victim.arrived.checked_sub(1).map_or(NOTHING, |last| last as u64));
            self.check_place(at);
        }
    }

    fn check_place(&self, at: usize) {
        if let Some(written) = self.written[at] {
            let bytes = self.to.read(at * LENGTH, WORD);
            assert_eq!(bytes, written.to_ne_bytes(), "nothing is written after the end");
        }
    }
}

/// After a queue pair's word that it took its last receive, and a poll that finds less than it
/// asked for, nothing arrives for it any more, nor is anything written; and nothing is lost with
/// it: what the sender's completions prove to have arrived did. Its shared receive queue feeds
/// others all the time.
pub(super) fn after_the_last_shared_receive_nothing_arrives(rails: &Rails) {
    let from = rails.memory(End::Near, MESSAGES * WORD + LENGTH, ALL_ACCESS);
    let to = rails.memory(End::Far, (PLACES + 1) * LENGTH, ALL_ACCESS);
    (0..MESSAGES + LENGTH / WORD)
        .for_each(|number| from.write(number * WORD, &(number as u64).to_ne_bytes()));
    let number = |number| from.local(number * WORD, LENGTH as u32).sge(from.lkey(0));
    let numbers = (0..MESSAGES).map(number).collect();
    let mut scene = Scene { rails, numbers, to, written: [None; PLACES] };
    let cq = rails.create_cq(End::Far, 0, 1024);
    let srq = rails.create_srq(End::Far, 0, 2 * RECEIVES as u32);
    let (bystander, Victim { qp, .. }) = scene.connect(&cq, &srq, PLACES);
    let mut receivers =
        Receivers { cq, srq, bystander: qp, bystander_arrived: 0, group: Vec::new(), late: 0 };
    receivers.post(RECEIVES);
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (give, groups) = channel();
        let (tell, acknowledged) = channel();
        let next = &next;
        let _end = EndAll(next);
        let sender = scope.spawn(move || send_all(scope, &groups, bystander, next, &tell));
        for round in 0..GROUPS {
            let first = round * GROUP % PLACES;
            let places = first..first + GROUP;
            places.clone().for_each(|at| scene.check_place(at));
            give.send(scene.new_group(&mut receivers, places.clone())).expect("a sender");
            receivers.end(round, next);
            scene.check(&receivers.group, places);
            next.store(ALL, Ordering::Release);
            let acknowledged: Vec<usize> = receivers.wait(&acknowledged);
            for (victim, acknowledged) in receivers.group.iter().zip(acknowledged) {
                assert!(acknowledged <= victim.arrived, "nothing is lost");
            }
        }
        drop(give);
        let (done, is_done) = channel();
        scope.spawn(move || done.send(sender.join().expect("a sender without errors")));
        let sent = receivers.wait(&is_done);
        let start = Instant::now();
        while receivers.bystander_arrived < sent {
            receivers.poll();
            assert!(start.elapsed() < LIMIT, "{} of {sent}", receivers.bystander_arrived);
        }
    });
    let Receivers { late, bystander_arrived, .. } = receivers;
    println!(
        "  of {} queue pairs, {late} took a message after ERR and an empty poll",
        GROUPS * GROUP
    );
    println!("  {bystander_arrived} messages arrived for the one that stays");
}
