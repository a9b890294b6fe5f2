//! Random traffic on the scripted NIC, every physical request watched (see
//! `polyrail_tests::watched`).
//!
//! `RANDOM_SEED=n` repeats one seed, `RANDOM_SEEDS=n` runs n of them.

use polyrail_core::hardware::{QpLimits, Refusal};
use polyrail_core::verbs::{Opcode, ReportOrder, SendFlags};
use polyrail_core::virtual_qp::{PassThroughOrder, RailChoice};
use polyrail_tests::choices::{Choices, Seeded, pick};
use polyrail_tests::rig::{Setup, Way};
use polyrail_tests::scripted::QpHandle;
use polyrail_tests::watched::{Post, Watched};

struct World {
    watched: Watched,
    random: Seeded,
    /// Rails may fail and drivers refuse.
    failing: bool,
    /// Drivers refuse nothing and rails stay in service, so that their turns can be predicted.
    calm: bool,
}

/// One to three devices, and rails that are alike or that differ in limits and messages.
fn choose_setup(random: &mut Seeded) -> Setup {
    let rails = 2 + random.below(3) as usize;
    let mut setup = if random.coin() { Setup::spray(rails) } else { Setup::dqplb(rails) };
    setup.notify_limits.max_send_wr = 1 + random.below(4);
    setup = setup.fragment(128).devices(1 + random.below(3) as usize);
    if random.coin() {
        let devices = setup.devices as u32;
        setup.rail_devices = (0..rails).map(|_| random.below(devices) as usize).collect();
        setup.rail_limits = (0..rails).map(|_| choose_limits(random)).collect();
    }
    let most = if random.one_in(4) { u32::MAX } else { 1 + random.below(6) };
    let ordered = random.coin();
    let fastest = random.one_in(3);
    let when_done = random.one_in(4);
    setup.depth(most).config(|config| {
        if !ordered {
            config.pass_through = PassThroughOrder::Unordered;
        }
        if when_done {
            config.report_order = ReportOrder::WhenDone;
        }
        if fastest {
            let bandwidth_mbps = [3, 1, 5, 3, 0, 0, 0, 0];
            config.rail_choice = RailChoice::LeastFinishTime { bandwidth_mbps };
        }
    })
}

fn choose_limits(random: &mut Seeded) -> QpLimits {
    QpLimits {
        max_send_wr: pick(random, &[1, 2, 3, 5, 8, 1024]),
        max_recv_wr: pick(random, &[1, 2, 4, 9, 1024]),
        max_inline_data: pick(random, &[0, 16, 64, 200]),
        max_msg_size: pick(random, &[128, 129, 1 << 31]),
        max_send_sge: pick(random, &[0, 1, 2, 3, 40]),
        max_recv_sge: pick(random, &[0, 1, 2, 5]),
    }
}

impl World {
    fn new(seed: u64, failing: bool) -> Self {
        let mut random = Seeded::new(seed);
        let setup = choose_setup(&mut random);
        let watched = Watched::new(&setup, 1 + random.below(20), failing);
        let calm = !failing && random.coin();
        Self { watched, random, failing, calm }
    }

    fn any_handle(&mut self) -> QpHandle {
        let handles = self.watched.handles();
        handles[self.random.below(handles.len() as u32) as usize].clone()
    }

    fn choose_post(&mut self) -> Post {
        use Opcode::{FetchAdd, RdmaRead, RdmaWrite, RdmaWriteWithImm, Send};
        let kinds = [RdmaWrite, RdmaWriteWithImm, RdmaWriteWithImm, RdmaRead, Send, FetchAdd];
        let opcode = pick(&mut self.random, &kinds);
        let longest = pick(&mut self.random, &[70, 300, 300, 3000]);
        // A SEND goes as a whole.
        let whole = self.watched.handles()[0].limits().max_msg_size;
        let longest = if opcode == Send { longest.min(whole) } else { longest };
        let length = match opcode {
            FetchAdd => 8,
            RdmaWriteWithImm if self.random.one_in(6) => 0,
            _ => 1 + self.random.below(longest),
        };
        let mut flags = SendFlags::SIGNALED;
        let may_be_quiet = !matches!(opcode, RdmaWrite | RdmaRead);
        flags.set(SendFlags::SIGNALED, !(may_be_quiet && self.random.one_in(4)));
        flags.set(SendFlags::FENCE, self.random.one_in(6));
        flags.set(SendFlags::SOLICITED, self.random.one_in(5));
        let inline = opcode != RdmaRead && opcode != FetchAdd && self.random.one_in(6);
        flags.set(SendFlags::INLINE, inline && length <= 200);
        let orders = [None, None, Some(ReportOrder::InOrder), Some(ReportOrder::WhenDone)];
        let report_order = pick(&mut self.random, &orders);
        let may_be_list = opcode != FetchAdd && length > 0 && self.random.one_in(4);
        let list = if may_be_list { 1 + self.random.below(Post::LISTS.into()) as u8 } else { 0 };
        Post { opcode, length, flags, report_order, list }
    }

    fn step(&mut self) {
        match self.random.below(12) {
            0 if self.random.coin() => {
                let posts: Vec<_> =
                    (0..2 + self.random.below(5)).map(|_| self.choose_post()).collect();
                self.watched.post_many(&posts);
            }
            0..4 => {
                let post = self.choose_post();
                self.watched.post(post);
            }
            4..8 => {
                let handle = self.any_handle();
                let most = self.random.below(6) as usize;
                self.watched.complete(&handle, most);
            }
            8 if !self.calm => {
                let accepted = self.random.below(3);
                let for_good = self.failing && self.random.one_in(8);
                let refusal = if for_good { Refusal::Driver(5) } else { Refusal::QueueFull };
                self.any_handle().refuse_next(accepted, refusal);
            }
            9 if !self.calm && self.random.one_in(4) => {
                let rail = self.random.below(4) as u8;
                self.watched.set_rail_in_service(rail, self.random.coin());
            }
            _ => {
                let way = Way::choose(&mut self.random, self.watched.queues());
                self.watched.poll_by(way);
            }
        }
    }
}

fn run(seed: u64, failing: bool) {
    let mut world = World::new(seed, failing);
    let fails_at = if failing { world.random.below(300) } else { u32::MAX };
    for at in 0..400 {
        if at == fails_at {
            let handle = world.any_handle();
            world.watched.fail(&handle);
        }
        world.step();
    }
    world.watched.finish();
}

fn run_all(failing: bool) {
    if let Some(seed) = std::env::var("RANDOM_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return run(seed, failing);
    }
    let seeds = std::env::var("RANDOM_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(300) {
        let outcome = std::panic::catch_unwind(|| run(seed, failing));
        assert!(outcome.is_ok(), "repeat with RANDOM_SEED={seed} cargo test --test random");
    }
}

#[test]
fn random_traffic_keeps_every_promise() {
    run_all(false);
}

#[test]
fn random_traffic_with_a_failing_rail_keeps_every_promise() {
    run_all(true);
}
