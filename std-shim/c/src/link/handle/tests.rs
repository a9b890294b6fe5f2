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

/// As with a first name server that does not answer, after which the resolver asks the next one.
#[test]
fn a_lookup_that_takes_longer_than_connecting_may_leaves_all_of_its_time() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let timeouts = Timeouts { connect: Duration::from_secs(60), ..Timeouts::default() };
    let others = Others {
        names: vec!["a-name:7471".into()],
        addresses: Vec::new(),
        chosen: Chosen { timeouts, token: None },
        // It is late.
        until: Some(Instant::now()),
        refused: None,
    };
    let (sender, found) = mpsc::channel();
    sender.send(Ok(vec![address])).unwrap();
    let connecting = Connecting::Looking(found, Box::new(others)).step();
    let Connecting::Begun(_, others) = connecting else { panic!("it does not connect") };
    assert!(!others.is_late());
}
