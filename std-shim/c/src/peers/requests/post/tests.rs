//! Every flag of a request arrives, alone and with the others.

use super::*;
use std::mem::zeroed;

fn kind(flags: u32) -> Option<(SendFlags, Option<ReportOrder>)> {
    // SAFETY: zeros are values of requests.
    let zeros: Request = unsafe { zeroed() };
    let request = Request { opcode: WRITE, flags, ..zeros };
    Kind::of(&request).ok().map(|kind| (kind.flags, kind.report_order))
}

#[test]
fn every_flag_arrives() {
    let always = SendFlags::SIGNALED;
    let flags = [
        (0, SendFlags::empty()),
        (POLYRAIL_REQUEST_FENCE, SendFlags::FENCE),
        (POLYRAIL_REQUEST_SOLICITED, SendFlags::SOLICITED),
        (POLYRAIL_REQUEST_INLINE, SendFlags::INLINE),
    ];
    let orders = [
        (0, None),
        (POLYRAIL_REQUEST_REPORT_WHEN_DONE, Some(ReportOrder::WhenDone)),
        (POLYRAIL_REQUEST_REPORT_IN_ORDER, Some(ReportOrder::InOrder)),
    ];
    for (flag, arrives) in flags {
        for (other, arrives_too) in flags {
            for (bits, order) in orders {
                let expected = (arrives | arrives_too | always, order);
                assert_eq!(kind(flag | other | bits), Some(expected));
            }
        }
    }
    assert_eq!(kind(POLYRAIL_REQUEST_REPORT_WHEN_DONE | POLYRAIL_REQUEST_REPORT_IN_ORDER), None);
    // The SIGNALED flag of verbs is refused: every request has a completion.
    assert_eq!(kind(SendFlags::SIGNALED.bits().into()), None);
}
