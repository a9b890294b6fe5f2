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

const LONG: Duration = Duration::from_secs(60);

/// A list whose names are being looked up, and where what is found is sent.
fn with_name(
    addresses: &[SocketAddr],
) -> (Box<Others>, mpsc::Sender<Result<Vec<SocketAddr>, LinkError>>) {
    let timeouts = Timeouts { connect: LONG, ..Timeouts::default() };
    let mut others = Others::new("", Chosen { timeouts, token: None });
    let (sender, found) = mpsc::channel();
    (others.addresses, others.lookup) =
        (addresses.to_vec(), Lookup::UnderWay(vec!["far:7471".into()], found));
    (Box::new(others), sender)
}

fn listener() -> (std::net::TcpListener, SocketAddr) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Steps until the link is connected, and returns where.
fn answered(link: &mut OurLink, others: &mut Others) -> SocketAddr {
    let begin = Instant::now();
    loop {
        assert!(link.try_recv().unwrap().is_none());
        others.add_found(link);
        if let Some(address) = link.peer_addr() {
            return address;
        }
        assert!(begin.elapsed() < LONG);
    }
}

/// As with a first name server that does not answer, after which the resolver asks the next one.
#[test]
fn a_lookup_that_takes_longer_than_connecting_may_leaves_all_of_its_time() {
    let (_listener, address) = listener();
    let (mut others, sender) = with_name(&[]);
    // It is late.
    others.until = Some(Instant::now());
    sender.send(Ok(vec![address])).unwrap();
    let connecting = Connecting::Looking(others).step();
    let Connecting::Begun(_, others) = connecting else { panic!("it does not connect") };
    assert!(!others.is_late());
}

#[test]
fn addresses_are_tried_while_names_are_looked_up() {
    let (_listener, address) = listener();
    let (others, _sender) = with_name(&[address]);
    let Connecting::Begun(mut link, mut others) = Connecting::with(others) else {
        panic!("it waits for the lookup")
    };
    assert_eq!(answered(&mut link, &mut others), address);
}

#[test]
fn names_that_were_found_later_are_tried_after_addresses_that_refused() {
    let (closed, refuses) = listener();
    drop(closed);
    let (_listener, address) = listener();
    let (others, sender) = with_name(&[refuses]);
    let Connecting::Begun(mut link, others) = Connecting::with(others) else {
        panic!("it waits for the lookup")
    };
    let begin = Instant::now();
    let failure = loop {
        match link.try_recv() {
            Ok(_) => assert!(begin.elapsed() < LONG),
            Err(error) => break link_failure(&error),
        }
    };
    let waiting = others.next(link.peer_addr(), failure).ok().unwrap().step();
    assert!(matches!(waiting, Connecting::Looking(_)));
    sender.send(Ok(vec![address])).unwrap();
    let Connecting::Begun(mut link, mut others) = waiting.step() else {
        panic!("it does not connect")
    };
    assert_eq!(answered(&mut link, &mut others), address);
}

/// A list of a literal address and a name. Both are known in the end, whichever is first.
#[test]
fn a_list_may_have_addresses_and_names() {
    let chosen = Chosen { timeouts: Timeouts::default(), token: None };
    let mut others = Others::new("10.0.0.1:7471, localhost:7472", chosen);
    assert_eq!(others.addresses, ["10.0.0.1:7471".parse().unwrap()]);
    let begin = Instant::now();
    let found = loop {
        match others.found().unwrap() {
            Some(found) => break found,
            None => assert!(begin.elapsed() < LONG),
        }
    };
    assert!(found.iter().all(|address| address.port() == 7472), "{found:?}");
    assert_eq!(others.addresses.len(), 1 + found.len());
    assert!(!others.is_looking() && matches!(others.found(), Ok(None)));
}

/// The lookup takes a descriptor.
#[test]
fn names_are_looked_up_again_if_this_host_lacked_something() {
    let (others, sender) = with_name(&[]);
    let until = others.until;
    let lacks = || LinkError::Connect {
        address: "far:7471".into(),
        source: io::Error::from_raw_os_error(libc::EMFILE),
    };
    let begin = Instant::now();
    sender.send(Err(lacks())).unwrap();
    let Connecting::Lacking(_, mut others) = Connecting::Looking(others).step() else {
        panic!("it does not try again")
    };
    assert_eq!(others.until, until);
    // Not at once: each step would start a thread.
    let Lookup::Due(names, at) = &others.lookup else { panic!("it is not looked up again") };
    assert_eq!(names, &["far:7471"]);
    assert!(*at >= begin + LACK_PAUSE);
    others.lookup = Lookup::Due(vec!["127.0.0.1:7471".into()], Instant::now() + LONG);
    let Connecting::Looking(mut others) = Connecting::with(others).step() else {
        panic!("it does not wait")
    };
    assert!(matches!(others.lookup, Lookup::Due(..)));
    others.lookup = Lookup::Due(vec!["127.0.0.1:7471".into()], Instant::now());
    others.look_up().unwrap();
    assert!(matches!(others.lookup, Lookup::UnderWay(..)));

    // So does a thread that could not be started.
    let error =
        LinkError::Io { doing: "starting a thread", source: io::Error::from_raw_os_error(11) };
    let (mut others, _sender) = with_name(&[]);
    others.lookup = Lookup::Due(vec!["far:7471".into()], Instant::now());
    assert!(matches!(Connecting::not_looked_up(&error, others), Connecting::Lacking(..)));

    // It tries until connecting is late.
    let (mut others, sender) = with_name(&[]);
    others.until = Some(Instant::now());
    sender.send(Err(lacks())).unwrap();
    assert!(matches!(Connecting::Looking(others).step(), Connecting::Failed(_)));
}

#[test]
fn an_address_that_was_silent_does_not_end_attempts_to_reach_the_others() {
    let [(_silent, first), (_also, second)] = [listener(), listener()];
    let (mut others, _sender) = with_name(&[first, second]);
    others.silent.push(first);
    others.addresses.retain(|address| *address != first);
    assert_eq!(others.dialled(), [second]);
    others.addresses.clear();
    assert_eq!(others.dialled(), [first]);
}

/// After an absence of the program, say: the hello goes out only now.
#[test]
fn a_listener_that_answered_has_the_time_of_a_message_once_connecting_is_late() {
    let [(_silent, first), (_also, second)] = [listener(), listener()];
    let timeouts = Timeouts { connect: LONG, ..Timeouts::default() };
    let others = Others::new(&format!("{first},{second}"), Chosen { timeouts, token: None });
    let Connecting::Begun(mut link, mut others) = Connecting::with(Box::new(others)) else {
        panic!("it does not connect")
    };
    assert_eq!(answered(&mut link, &mut others), first);
    assert_eq!(others.silence(&link), None);
    others.until = Some(Instant::now());
    others.answered = others.answered.and_then(|at| at.checked_sub(2 * LEAST_SILENCE));
    assert_eq!(others.silence(&link), None);
}

/// The first answers, and sends nothing.
#[test]
fn a_silent_listener_does_not_hide_the_other_addresses() {
    for token in [None, Some(Token::new(*b"0123456789abcdef").unwrap())] {
        let [(_silent, first), (_also, second)] = [listener(), listener()];
        let timeouts = Timeouts { connect: LONG, ..Timeouts::default() };
        let chosen = Chosen { timeouts, token };
        let others = Others::new(&format!("{first},{second}"), chosen);
        let Connecting::Begun(mut link, mut others) = Connecting::with(Box::new(others)) else {
            panic!("it does not connect")
        };
        assert_eq!(answered(&mut link, &mut others), first);
        assert_eq!(others.silence(&link), None);
        let limit = LEAST_SILENCE.max(link.message_timeout());
        others.answered = others.answered.and_then(|at| at.checked_sub(limit));
        let Some(waited) = others.silence(&link) else { panic!("it waits on") };
        let failure = link_failure(&link.no_answer("an answer", waited));
        let next = others.after_silence(link.peer_addr(), failure).ok().unwrap();
        drop(link);
        let Connecting::Begun(mut link, mut others) = next else { panic!("no other is tried") };
        assert_eq!(answered(&mut link, &mut others), second);
        assert_eq!(others.silence(&link), None);
        // The first is tried again, and then the second: the one that was left last is the last.
        let mut connecting = Connecting::Begun(link, others);
        for address in [first, second, first] {
            let Connecting::Begun(link, mut others) = connecting else { panic!("none is tried") };
            others.answered = others.answered.and_then(|at| at.checked_sub(limit));
            let Some(waited) = others.silence(&link) else { panic!("it waits on") };
            let failure = link_failure(&link.no_answer("an answer", waited));
            connecting = others.after_silence(link.peer_addr(), failure).ok().unwrap();
            let Connecting::Begun(link, others) = &mut connecting else { panic!("none is tried") };
            assert_eq!(answered(link, others), address);
            assert_eq!(others.silence(link), None);
        }
        let Connecting::Begun(link, others) = connecting else { panic!("none is tried") };
        // If it refuses, the other one is the only one.
        let refused = Failure::new(Code::Link, "refused");
        let next = others.next(link.peer_addr(), refused).ok().unwrap();
        let Connecting::Begun(mut link, mut others) = next else { panic!("no other is tried") };
        assert_eq!(answered(&mut link, &mut others), second);
        others.answered = others.answered.and_then(|at| at.checked_sub(limit));
        assert_eq!(others.silence(&link), None);
    }
}

/// The others have half of the time, so that the silent ones have the rest.
#[test]
fn addresses_that_do_not_answer_leave_time_for_silent_ones() {
    let [(_silent, first), (_also, second)] = [listener(), listener()];
    let timeouts = Timeouts { connect: LONG, ..Timeouts::default() };
    let list = format!("{first},{second}");
    let mut others = Box::new(Others::new(&list, Chosen { timeouts, token: None }));
    let half = LONG / 2;
    assert!(others.time_to_connect() > half);
    others.addresses.remove(0);
    others.silent.push(first);
    assert!(others.time_to_connect() <= half);
    // So they have if this host lacked a descriptor for the others.
    let lacks = Failure::new(Code::System, "too many open files");
    let next = others.next(None, lacks).ok().unwrap();
    let Connecting::Begun(mut link, mut others) = next else { panic!("no other is tried") };
    assert_eq!(answered(&mut link, &mut others), first);
    assert!(others.time_to_connect() > half);
    // It was the last, and the reason is not that of another address.
    others.refused = Some(Failure::new(Code::Link, "refused"));
    let lacks = Failure::new(Code::System, "too many open files");
    let ended = others.next(None, lacks).err().unwrap();
    assert_eq!(ended.code, Code::System);
}
