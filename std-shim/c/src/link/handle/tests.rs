//! Each option of a link takes effect.

use super::*;
use std::mem::zeroed;

fn timeouts(change: impl FnOnce(&mut LinkOptions)) -> Timeouts {
    // SAFETY: zeros are values of options.
    let mut options: LinkOptions = unsafe { zeroed() };
    options.size = size_of::<LinkOptions>() as u32;
    change(&mut options);
    // SAFETY: they are there, and without a token.
    let chosen = unsafe { chosen(&raw const options) };
    chosen.ok().unwrap().timeouts
}

#[test]
fn each_timeout_takes_effect() {
    let default = Timeouts { accept: None, ..Timeouts::default() };
    let ms = Duration::from_millis;
    assert_eq!(timeouts(|_| {}), default);
    assert_eq!(timeouts(|o| o.connect_ms = 11), Timeouts { connect: ms(11), ..default });
    assert_eq!(timeouts(|o| o.message_ms = 12), Timeouts { message: ms(12), ..default });
    assert_eq!(timeouts(|o| o.reconnect_ms = 13), Timeouts { resume: ms(13), ..default });
}
