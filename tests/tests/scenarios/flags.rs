//! SOLICITED and INLINE over several rails. `core/docs/reference.md`, defect 21 and the list below
//! the table.

use polyrail_core::hardware::QpLimits;
use polyrail_core::verbs::{Opcode, SendFlags};
use polyrail_core::virtual_qp::PostSendError;
use polyrail_tests::rig::{self, Setup, ok};
use polyrail_tests::scripted::LIMITS;
use polyrail_tests::view::write;

/// Defect 21, SOLICITED with DQPLB: on every fragment, since any of them can be the one whose
/// arrival completes the request.
#[test]
fn defect_21_solicited_goes_on_every_numbered_fragment() {
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 4 * 128, 0).with_flags(flags)]);
    for rail in 0..2 {
        let posted = rig.pieces(rail).concat();
        assert_eq!(posted.len(), 2);
        assert!(posted.iter().all(|piece| piece.flags.contains(SendFlags::SOLICITED)));
        assert!(!posted[0].flags.contains(SendFlags::SIGNALED), "one completion for two");
    }
    rig.post([rig::write(2, 256).with_flags(flags)]);
    assert_eq!(rig.pieces(0), [[write(0, 128)]], "a plain WRITE's fragment notifies nobody");
}

/// A fragment of an unsolicited earlier request could be the last to arrive of all that a solicited
/// one waits for.
#[test]
fn defect_21_a_solicited_request_waits_for_unsolicited_numbers() {
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let mut rig = Setup::dqplb(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 0), rig::write_imm(2, 256, 0).with_flags(flags)]);
    rig.post([rig::write_imm(3, 256, 0).with_flags(flags)]);
    rig.rails[0].complete_all();
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.rails[0].sends().len(), 0);
    rig.rails[1].complete_all();
    assert_eq!(rig.poll_ids(), ok(&[1]));
    assert_eq!(rig.rails[0].sends().len(), 2, "solicited ones wait for none of their kind");
    assert_eq!(rig.run_dry().len(), 2);
}

/// Defect 21, SOLICITED: with SPRAY on the notify, which is what the peer's queue sees.
#[test]
fn defect_21_solicited_goes_on_the_notify() {
    let flags = SendFlags::SIGNALED | SendFlags::SOLICITED;
    let mut rig = Setup::spray(2).fragment(128).rig();
    rig.post([rig::write_imm(1, 256, 5).with_flags(flags), rig::write_imm(2, 256, 6)]);
    for rail in 0..2 {
        let posted = rig.pieces(rail).concat();
        assert!(posted.iter().all(|piece| piece.flags == SendFlags::SIGNALED), "{posted:?}");
        rig.rails[rail].complete_all();
    }
    assert_eq!(rig.poll(), []);
    let notifies: Vec<_> = rig.notify().sends().iter().map(|notify| notify.flags).collect();
    assert_eq!(notifies, [SendFlags::SOLICITED, SendFlags::SIGNALED]);
}

/// Defect 21, INLINE: the buffer is free when the post returns, so it must be posted at once.
#[test]
fn defect_21_an_inline_request_is_posted_at_once_or_refused() {
    let inline = SendFlags::SIGNALED | SendFlags::INLINE;
    let mut rig = Setup::spray(2).fragment(512).depth(1).rig();
    let too_long = Err(PostSendError::InlineTooLong { length: 257, max: 256 });
    for wr in [rig::write(1, 257), rig::write_imm(1, 257, 0), rig::send(1, 257)] {
        assert_eq!(rig.qp.post_send(&wr.with_flags(inline)), too_long);
    }
    let read = rig.qp.post_send(&rig::read(1, 8).with_flags(inline));
    assert_eq!(read, Err(PostSendError::InlineOpcode(Opcode::RdmaRead)));
    let atomic = rig.qp.post_send(&rig::fetch_add(1).with_flags(inline));
    assert_eq!(atomic, Err(PostSendError::InlineOpcode(Opcode::FetchAdd)));

    rig.post([rig::write(1, 256).with_flags(inline)]);
    assert_eq!(rig.rails[0].sends()[0].flags, inline);
    rig.post([rig::write(2, 128)]);
    // Both rails are full now.
    let must_wait = Err(PostSendError::InlineMustWait);
    for wr in [rig::write(3, 8), rig::write_imm(3, 8, 0), rig::send(3, 8)] {
        assert_eq!(rig.qp.post_send(&wr.with_flags(inline)), must_wait);
    }
    assert_eq!(rig.qp.unreported_sends(), 2);
    assert_eq!(rig.run_dry().len(), 2);
}

/// Defect 21, INLINE with SPRAY and imm: the data goes at once, the notify carries no data.
#[test]
fn defect_21_an_inline_spray_request_is_notified_without_inline() {
    let notify_limits = QpLimits { max_inline_data: 0, ..LIMITS };
    let mut rig = Setup { notify_limits, ..Setup::spray(2) }.fragment(128).rig();
    rig.post([rig::write_imm(1, 8, 3).with_flags(SendFlags::SIGNALED | SendFlags::INLINE)]);
    rig.rails[0].complete(1);
    assert_eq!(rig.poll(), []);
    assert_eq!(rig.notify().sends()[0].flags, SendFlags::SIGNALED);
    assert_eq!(rig.run_dry().len(), 1);
}
