//! A program without std, without an allocator and without a C runtime that makes a virtual queue
//! pair of two rails, posts 256 KiB and polls until it is reported. Exits with 0 if all went as it
//! should, else with the number of the step that did not.
#![no_std]
#![no_main]

mod loopback;

use core::arch::asm;
use loopback::{LoopbackCq, LoopbackQp};
use polyrail_core::verbs::{DeviceId, DeviceKeys, LocalBuffer, SendWr, WcStatus};
use polyrail_core::virtual_cq::VirtualCq;
use polyrail_core::virtual_qp::{Config, VirtualQp};

static BYTES: [u8; 256 << 10] = [7; 256 << 10];

fn exit(code: u32) -> ! {
    // SAFETY: exit_group (231) ends the process and returns nowhere.
    unsafe { asm!("syscall", in("rax") 231, in("edi") code, options(noreturn, nostack)) }
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    exit(101)
}

/// The prebuilt `core` names it in its unwind tables; with `panic = "abort"` nobody calls it.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// The step that failed, or 0.
fn run() -> u32 {
    let Ok(mut cq) = VirtualCq::<_, 1, 8>::new([LoopbackCq]) else { return 1 };
    let rails = [LoopbackQp::new(1), LoopbackQp::new(2)];
    let Ok(mut qp) = VirtualQp::<_, 2, 16, 16>::new(Config::default(), rails, None) else {
        return 2;
    };
    if cq.attach(0, &qp).is_err() {
        return 3;
    }
    // SAFETY: static memory, read only.
    let local = unsafe { LocalBuffer::new(BYTES.as_ptr() as u64, BYTES.len() as u32) };
    let keys = [DeviceKeys { device: DeviceId(0), lkey: 1, rkey: 2 }];
    if qp.post_send(&SendWr::write(42, local, 0x1000, &keys)).is_err() {
        return 4;
    }
    let mut reported = None;
    let polled = cq.poll(&mut qp, 32, |event| reported = event.completion());
    match reported {
        Some(wc) if wc.wr_id == 42 && wc.status == WcStatus::SUCCESS && polled.events == 1 => 0,
        _ => 5,
    }
}

/// The entry point. The stack is aligned to 16 bytes here, but a function expects the return
/// address below that.
#[unsafe(no_mangle)]
#[unsafe(naked)]
extern "C" fn _start() -> ! {
    core::arch::naked_asm!("call {main}", "ud2", main = sym main)
}

extern "C" fn main() -> ! {
    exit(run())
}
