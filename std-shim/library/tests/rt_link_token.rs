//! Sides that want to know whether the other one has their token.

mod fixture;

use fixture::LONG;
use fixture::link::{accepted, next_link};
use polyrail::link::{
    Arrivals, Link, LinkError, Listener, MAGIC, Message, NoPurpose, Session, Timeouts, Token,
    VERSION,
};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

fn timeouts() -> Timeouts {
    Timeouts { message: Duration::from_secs(20), ..Timeouts::default() }
}

fn token(byte: u8) -> Token {
    Token::new([byte; 32]).unwrap()
}

fn listener(token: Option<u8>) -> (Listener, String) {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let listener = match token {
        Some(byte) => listener.with_token(self::token(byte)),
        None => listener,
    };
    (listener, address)
}

/// The reason why the next peer is refused.
fn refusal(listener: &Listener) -> LinkError {
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let mut refused = Vec::new();
    while refused.is_empty() {
        let arrived = arrivals.step(listener, &timeouts(), |_, why| refused.push(why)).unwrap();
        assert!(arrived.is_empty(), "{arrived:?}");
        thread::sleep(Duration::from_millis(1));
    }
    refused.remove(0)
}

/// A message as it travels.
fn framed(json: &str) -> Vec<u8> {
    let length = (json.len() as u32).to_be_bytes();
    [&MAGIC[..], &VERSION.to_be_bytes(), &length, json.as_bytes()].concat()
}

#[test]
fn sides_with_one_token_meet() {
    let (listener, address) = listener(Some(1));
    let (mut near, mut far) = thread::scope(|scope| {
        let near = scope
            .spawn(|| <Link>::connect_with_token(&address, &timeouts(), Some(&token(1))).unwrap());
        let far = accepted::<NoPurpose>(&listener, &timeouts());
        (near.join().unwrap(), far)
    });
    let failed = Message::Failed { reason: polyrail::link::Reason::new("enough") };
    near.send(&failed).unwrap();
    assert_eq!(far.try_recv().unwrap().or_else(|| far.try_recv().unwrap()), Some(failed));
}

#[test]
fn a_side_that_has_proved_what_it_had_to_may_be_gone() {
    for _ in 0..200 {
        let (listener, address) = listener(Some(1));
        let peer = thread::spawn(move || {
            <Link>::connect_with_token(&address, &timeouts(), Some(&token(1))).map(drop)
        });
        let error = refusal(&listener);
        peer.join().unwrap().unwrap();
        assert!(matches!(error, LinkError::HungUp { .. }), "{error}");
    }
}

#[test]
fn a_wrong_token_is_refused_at_both_ends() {
    let (listener, address) = listener(Some(2));
    let peer = thread::spawn(move || {
        <Link>::connect_with_token(&address, &timeouts(), Some(&token(1))).unwrap_err()
    });
    assert!(matches!(refusal(&listener), LinkError::WrongToken));
    let LinkError::TokenRefused { reason } = peer.join().unwrap() else { panic!() };
    assert_eq!(reason.to_string(), "the peer has another token than this side");
}

#[test]
fn a_side_without_a_token_is_told_that_it_needs_one() {
    let (listener, address) = listener(Some(1));
    let answer = |first: Message| {
        let address = address.clone();
        let peer = thread::spawn(move || {
            let mut control = <Link>::connect(&address, &timeouts()).unwrap();
            control.send(&first).unwrap();
            control.expect(LONG).unwrap_err()
        });
        (refusal(&listener), peer.join().unwrap())
    };
    let (refusal, error) = answer(Message::Resume { session: Session::random().unwrap() });
    assert!(matches!(refusal, LinkError::TokenWanted), "{refusal}");
    assert!(matches!(error, LinkError::TokenRefused { .. }), "{error}");
    assert!(refusal.is_about_token() && error.is_about_token());
    // A message that no side begins with is another fault.
    let (refusal, error) = answer(Message::Alive {});
    assert!(matches!(refusal, LinkError::Handshake(_)), "{refusal}");
    assert!(matches!(error, LinkError::GaveUp { .. }), "{error}");
}

#[test]
fn a_token_that_the_other_side_does_not_have_is_noticed() {
    let (listener, address) = listener(None);
    let peer = thread::spawn(move || {
        <Link>::connect_with_token(&address, &timeouts(), Some(&token(1))).unwrap_err()
    });
    let error = refusal(&listener);
    assert!(matches!(error, LinkError::NoToken), "{error}");
    let error = peer.join().unwrap();
    assert!(matches!(error, LinkError::TokenRefused { .. }), "{error}");
}

/// What a stranger hears who sends this, until the other side hangs up.
fn heard(listener: &Listener, address: &str, says: &[u8]) -> (String, LinkError) {
    let mut stranger = TcpStream::connect(address).unwrap();
    stranger.write_all(says).unwrap();
    let error = refusal(listener);
    let mut heard = Vec::new();
    // A side that hangs up with unread bytes resets the connection.
    _ = stranger.read_to_end(&mut heard);
    (String::from_utf8_lossy(&heard).into_owned(), error)
}

#[test]
fn strangers_are_told_nothing_but_that_they_are_refused() {
    let (listener, address) = listener(Some(1));
    let session = r#"{"resume":{"session":"0123456789abcdef0123456789abcdef"}}"#;
    for (says, wants_token) in [
        (framed(session), true),
        (framed(r#"{"proof":{"proof":"00"}}"#), false),
        (framed(&format!(r#"{{"proof":{{"proof":"{}"}}}}"#, "0".repeat(64))), false),
        (framed(r#"{"knock":{"nonce":"XY"}}"#), false),
    ] {
        let (heard, error) = heard(&listener, &address, &says);
        assert_eq!(matches!(error, LinkError::TokenWanted), wants_token, "{error}");
        let answer = if wants_token { "refused" } else { "failed" };
        assert!(heard.contains(&format!(r#"{{"{answer}":{{"reason":"#)), "{heard}");
        assert_eq!(heard.matches("PLYR").count(), 1, "{heard}");
    }
}

#[test]
fn a_proof_that_was_made_up_is_none() {
    let (listener, address) = listener(Some(1));
    let nonce = "0f".repeat(16);
    let knock = framed(&format!(r#"{{"knock":{{"nonce":"{nonce}"}}}}"#));
    // Such as one of another connection, whose nonces were others.
    let stale = framed(&format!(r#"{{"proof":{{"proof":"{}"}}}}"#, "1e".repeat(32)));
    let (heard, error) = heard(&listener, &address, &[knock, stale].concat());
    assert!(matches!(error, LinkError::WrongToken), "{error}");
    assert!(heard.contains("challenge") && heard.contains("has another token"), "{heard}");
    assert!(!heard.contains(r#"{"proof"#), "nothing is proved to a stranger: {heard}");
}

#[test]
fn nobody_is_told_a_hello_before_the_proof() {
    let (listener, address) = listener(Some(1));
    let _silent = TcpStream::connect(address).unwrap();
    let (mut control, _) = next_link::<NoPurpose>(&listener, &timeouts());
    for message in [Message::Ready {}, Message::Alive {}] {
        assert!(matches!(control.send(&message), Err(LinkError::TokenWanted)));
    }
    assert_eq!(control.try_recv().unwrap(), None);
}

#[test]
fn a_listener_that_only_pretends_to_know_the_token_learns_nothing() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let peer = thread::spawn(move || {
        <Link>::connect_with_token(&address, &timeouts(), Some(&token(1))).unwrap_err()
    });
    let (mut stream, _) = listener.accept().unwrap();
    let mut bytes = [0; 1024];
    let read = stream.read(&mut bytes).unwrap();
    assert!(String::from_utf8_lossy(&bytes[..read]).contains("knock"));
    let nonce = "00".repeat(16);
    stream.write_all(&framed(&format!(r#"{{"challenge":{{"nonce":"{nonce}"}}}}"#))).unwrap();
    let read = stream.read(&mut bytes).unwrap();
    // Its own proof, as an echo.
    stream.write_all(&bytes[..read]).unwrap();
    assert!(matches!(peer.join().unwrap(), LinkError::WrongToken));
    let mut rest = Vec::new();
    _ = stream.read_to_end(&mut rest);
    assert!(rest.is_empty());
}

/// Peers that connect and send nothing, and peers that stop in the middle of the proof, keep no
/// other peer out, and a peer that proves that it has the token does not wait for them.
#[test]
fn silent_strangers_keep_no_peer_out() {
    let (listener, address) = listener(Some(1));
    let nonce = "0f".repeat(16);
    let knock = framed(&format!(r#"{{"knock":{{"nonce":"{nonce}"}}}}"#));
    let timeouts = timeouts();
    let strangers = (0..120).map(|number| {
        let mut stranger = TcpStream::connect(&address).unwrap();
        if number % 2 == 0 {
            stranger.write_all(&knock).unwrap();
        }
        stranger
    });
    let _strangers: Vec<_> = strangers.collect();
    let begin = Instant::now();
    let peer = thread::spawn(move || {
        <Link>::connect_with_token(&address, &timeouts, Some(&token(1))).map(drop)
    });
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let mut refused = 0;
    while !peer.is_finished() {
        let arrived = arrivals.step(&listener, &timeouts, |_, _| refused += 1).unwrap();
        assert!(arrived.is_empty() && begin.elapsed() < Duration::from_secs(10));
        thread::sleep(Duration::from_millis(1));
    }
    peer.join().unwrap().unwrap();
    assert!(refused >= 50, "{refused}");
}

/// Between its proof and its hello a peer may create queue pairs, which takes time.
#[test]
fn a_peer_that_has_proved_its_token_keeps_its_place_among_strangers() {
    let (listener, address) = listener(Some(1));
    let timeouts = timeouts();
    let mut arrivals = Arrivals::<NoPurpose>::default();
    let connect = {
        let address = address.clone();
        move || <Link>::connect_with_token(&address, &timeouts, Some(&token(1))).unwrap()
    };
    let peer = thread::spawn(connect);
    let mut refused = Vec::new();
    while !peer.is_finished() {
        arrivals.step(&listener, &timeouts, |_, why| refused.push(why)).unwrap();
    }
    let mut peer = peer.join().unwrap();
    // More than there are places; the kernel holds the rest.
    let _strangers: Vec<_> = (0..120).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let begin = Instant::now();
    while refused.len() < 50 {
        arrivals.step(&listener, &timeouts, |_, why| refused.push(why)).unwrap();
        assert!(begin.elapsed() < LONG, "{} refused", refused.len());
        thread::sleep(Duration::from_millis(1));
    }
    peer.send(&Message::Ready {}).unwrap();
    // The peer is still there to be refused for a message that is not a hello.
    let is_answered = |why: &LinkError| why.to_string().contains("\"ready\"");
    while !refused.iter().any(is_answered) {
        arrivals.step(&listener, &timeouts, |_, why| refused.push(why)).unwrap();
        assert!(begin.elapsed() < LONG, "{refused:?}");
    }
}

/// Two processes that were one draw different numbers, and so do two threads.
#[test]
fn what_names_a_session_is_drawn_again_after_a_fork() {
    let mut ends = [0; 2];
    // SAFETY: there is room for two descriptors.
    assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
    let drawn = || {
        let mut text = [0; 32];
        write!(&mut text[..], "{}", Session::random().unwrap()).unwrap();
        text
    };
    // A process that keeps what it drew has drawn once.
    let before = drawn();
    // SAFETY: the child asks the system for numbers, writes them, and ends; it allocates nothing.
    let child = unsafe { libc::fork() };
    let mine = drawn();
    if child == 0 {
        // SAFETY: the bytes are there.
        unsafe {
            libc::write(ends[1], mine.as_ptr().cast(), mine.len());
            libc::_exit(0);
        }
    }
    assert!(child > 0);
    let mut theirs = [0; 32];
    // SAFETY: there is room for the bytes, and the child is this process's.
    unsafe {
        assert_eq!(libc::read(ends[0], theirs.as_mut_ptr().cast(), theirs.len()), 32);
        libc::waitpid(child, std::ptr::null_mut(), 0);
        ends.into_iter().for_each(|end| _ = libc::close(end));
    }
    assert!(mine != theirs && mine != before && theirs != before);
    assert!(thread::spawn(drawn).join().unwrap() != mine);
}
