//! A program without std, without an allocator and without a C runtime that connects two virtual
//! queue pairs of two rails, writes 256 KiB with an immediate, and polls until both ends have
//! reported it. Exits with 0 if every step succeeded, else with the number of the step that failed.
#![no_std]
#![no_main]

// The same file as in the example of polyrail-core.
#[path = "../../../core/examples/loopback/backend/mod.rs"]
mod backend;

use backend::{DEPTH, Loopback, LoopbackCq, LoopbackQp};
use core::arch::asm;
use core::cell::Cell;
use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer, RecvWr, SendWr};
use polyrail_core::virtual_cq::{VirtualCq, VirtualWc};
use polyrail_core::virtual_qp::{Config, VirtualQp};

const BYTES: usize = 256 << 10;
const LEFT: DeviceId = DeviceId(0);
const RIGHT: DeviceId = DeviceId(1);

type Qp<'l, 'm> = VirtualQp<LoopbackQp<'l, 'm>, 2, DEPTH, 16>;
type Cq<'l, 'm> = VirtualCq<LoopbackCq<'l, 'm>, 1, 8>;

fn exit(code: u32) -> ! {
    // SAFETY: exit_group (231) ends the process and returns nowhere.
    unsafe { asm!("syscall", in("rax") 231, in("edi") code, options(noreturn, nostack)) }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}

/// The prebuilt `core` names it in its unwind tables; with `panic = "abort"` it is never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// Two rails and the notify queue pair of both ends.
fn connect<'l, 'm>(loopback: &'l Loopback<'m>) -> Option<[Qp<'l, 'm>; 2]> {
    let [left_0, right_0] = loopback.connect([LEFT, RIGHT])?;
    let [left_1, right_1] = loopback.connect([LEFT, RIGHT])?;
    let [left_notify, right_notify] = loopback.connect([LEFT, RIGHT])?;
    let left = VirtualQp::new(Config::default(), [left_0, left_1], Some(left_notify)).ok()?;
    let right = VirtualQp::new(Config::default(), [right_0, right_1], Some(right_notify)).ok()?;
    Some([left, right])
}

/// The completion queue of a device, for this virtual queue pair.
fn attach<'l, 'm>(
    loopback: &'l Loopback<'m>,
    device: DeviceId,
    qp: &Qp<'l, 'm>,
) -> Option<Cq<'l, 'm>> {
    let mut cq = VirtualCq::new([loopback.cq(device)]).ok()?;
    cq.attach(0, qp).ok()?;
    Some(cq)
}

/// Polls twice, since the notify follows the data, and returns what was reported last.
fn poll<'l, 'm>(cq: &mut Cq<'l, 'm>, qp: &mut Qp<'l, 'm>) -> Option<VirtualWc> {
    let mut reported = None;
    for _ in 0..2 {
        let polled = cq.poll(qp, 32, |event| reported = event.completion());
        if polled.error.is_some() {
            return None;
        }
    }
    reported.filter(|completion| completion.status.is_success())
}

/// The number of the first step that failed.
fn run() -> Result<(), u32> {
    let mut source = [7; BYTES];
    let mut target = [0; BYTES];
    let source = Cell::from_mut(&mut source[..]).as_slice_of_cells();
    let target = Cell::from_mut(&mut target[..]).as_slice_of_cells();
    let loopback = Loopback::default();
    let lkey = loopback.register(source).ok_or(1_u32)?;
    let rkey = loopback.register(target).ok_or(2_u32)?;
    let [mut left, mut right] = connect(&loopback).ok_or(3_u32)?;
    let mut left_cq = attach(&loopback, LEFT, &left).ok_or(4_u32)?;
    let mut right_cq = attach(&loopback, RIGHT, &right).ok_or(5_u32)?;
    right.post_recv(&RecvWr::notification(7)).map_err(|_| 6_u32)?;
    // SAFETY: `source` lives to the end, and nobody writes it.
    let local = unsafe { LocalBuffer::new(source.as_ptr().addr() as u64, BYTES as u32) };
    let keys = [DeviceKeys { device: LEFT, lkey, rkey }];
    let remote_addr = target.as_ptr().addr() as u64;
    let request = SendWr::write_with_imm(42, local, remote_addr, 4711, &keys);
    left.post_send(&request).map_err(|_| 7_u32)?;
    let sent = poll(&mut left_cq, &mut left).ok_or(8_u32)?;
    let received = poll(&mut right_cq, &mut right).ok_or(9_u32)?;
    let is_right = (sent.wr_id, received.wr_id, received.imm) == (42, 7, Some(4711));
    if is_right && target.iter().all(|byte| byte.get() == 7) { Ok(()) } else { Err(10) }
}

/// The entry point. The stack is aligned to 16 bytes here, but a function expects the return
/// address below that.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn _start() -> ! {
    core::arch::naked_asm!("call {main}", "ud2", main = sym main)
}

extern "C" fn main() -> ! {
    exit(run().err().unwrap_or(0))
}
