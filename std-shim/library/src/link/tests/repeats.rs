//! Messages that a peer repeats over a new stream: each once, so that no peer can keep its reader
//! busy with repeats.

use super::given::hello;
use super::{Hello, Incoming, Message};
use crate::link::channel::{Channel, Fault, NewStream};
use crate::link::stream::Stream;
use crate::link::timeouts::MESSAGE_TIMEOUT;
use crate::link::{HandshakeError, LinkError, NoOutcome, NoPurpose};
use quickcheck::Gen;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

const READY: Message = Message::Ready {};
const DONE: Message = Message::Done(NoOutcome {});
const ALIVE: Message = Message::Alive {};

/// Reads of a stream after which a reader is taken to go on without end.
const ENDLESS: usize = 10_000;

/// The first messages of a peer, up to the last of `more`.
fn begun(more: &[Message]) -> Vec<Message> {
    let hello =
        Message::Hello(Hello { session: None, ..hello(&mut Gen::from_size_and_seed(10, 1)) });
    [&[hello], more].concat()
}

fn fill(incoming: &mut Incoming, messages: &[Message]) {
    for bytes in messages.iter().map(Message::encode) {
        incoming.room()[..bytes.len()].copy_from_slice(&bytes);
        incoming.filled(bytes.len());
    }
}

/// Takes messages until there are none, or one is refused.
fn take_all(incoming: &mut Incoming) -> (Vec<Message>, Option<HandshakeError>) {
    let mut taken = Vec::new();
    loop {
        match incoming.next_message() {
            Ok(Some(message)) => taken.push(message),
            Ok(None) => return (taken, None),
            Err(error) => return (taken, Some(error)),
        }
    }
}

#[test]
fn a_new_stream_repeats_each_message_once() {
    let out_of_turn = |message: &Message, expected| {
        Some(HandshakeError::OutOfTurn { message: message.name(), expected })
    };
    type Case<'a> = (&'a [Message], &'a [Message], &'a [Message], Option<HandshakeError>);
    let cases: [Case<'_>; 7] = [
        (&[READY], &[READY, ALIVE, DONE], &[ALIVE, DONE], None),
        (&[READY, DONE], &[READY, DONE], &[], None),
        // Lost over the old stream, and so not a repeat.
        (&[], &[READY, DONE], &[READY, DONE], None),
        (&[], &[READY, READY], &[READY], out_of_turn(&READY, "\"done\"")),
        (&[READY], &[READY, READY], &[], out_of_turn(&READY, "\"done\"")),
        (&[READY, DONE], &[READY, DONE, READY], &[], out_of_turn(&READY, "nothing more")),
        (&[READY, DONE], &[READY, DONE, DONE], &[], out_of_turn(&DONE, "nothing more")),
    ];
    for (before, after, taken, error) in cases {
        let mut incoming = Incoming::new();
        let begun = begun(before);
        fill(&mut incoming, &begun);
        assert_eq!(take_all(&mut incoming), (begun, None));
        // A stream that breaks early, and the next one.
        for _ in 0..2 {
            incoming.go_on(&[]);
        }
        fill(&mut incoming, after);
        assert_eq!(take_all(&mut incoming), (taken.to_vec(), error), "{before:?} {after:?}");
    }
}

#[test]
fn each_new_stream_may_repeat() {
    let mut incoming = Incoming::new();
    fill(&mut incoming, &begun(&[READY, DONE]));
    assert_eq!(take_all(&mut incoming).1, None);
    for _ in 0..3 {
        incoming.go_on(&READY.encode());
        fill(&mut incoming, &[DONE]);
        assert_eq!(take_all(&mut incoming), (vec![], None));
    }
}

/// A stream with these bytes, and then with `flood` again and again.
#[derive(Debug)]
struct Flood {
    bytes: Vec<u8>,
    flood: Vec<u8>,
    reads: usize,
    fd: UnixStream,
}

impl Flood {
    fn new(messages: &[Message], flood: &[Message]) -> Self {
        let [bytes, flood] = [messages, flood]
            .map(|messages| messages.iter().flat_map(Message::encode).collect::<Vec<u8>>());
        Self { bytes, flood, reads: 0, fd: UnixStream::pair().unwrap().0 }
    }
}

impl Read for Flood {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.reads += 1;
        if self.reads == ENDLESS {
            return Err(io::Error::other("the reader goes on without end"));
        }
        if self.bytes.is_empty() {
            self.bytes.clone_from(&self.flood);
        }
        if self.bytes.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let taken = self.bytes.len().min(room.len());
        room[..taken].copy_from_slice(&self.bytes[..taken]);
        self.bytes.drain(..taken);
        Ok(taken)
    }
}

impl Write for Flood {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl AsFd for Flood {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Stream for Flood {
    fn is_connected(&self) -> io::Result<bool> {
        Ok(true)
    }

    fn watch(&self, _: Duration) {}

    fn reset(&self) {}
}

#[test]
fn a_peer_that_resumes_and_floods_the_link_with_repeats_is_refused() {
    let now = Instant::now();
    for (before, flood) in [(&[READY][..], READY), (&[READY, DONE], READY), (&[READY, DONE], DONE)]
    {
        let first = Flood::new(&begun(before), &[]);
        let mut channel = Channel::<NoPurpose>::over(Box::new(first), MESSAGE_TIMEOUT, None);
        while channel.receive(now).unwrap().is_some() {}
        let stream = Box::new(Flood::new(&[], std::slice::from_ref(&flood)));
        channel.replace(NewStream { stream, unread: Vec::new() });
        let fault = channel.receive(now).unwrap_err();
        assert!(
            matches!(
                &fault,
                Fault::Over(LinkError::Handshake(HandshakeError::OutOfTurn { message, .. }))
                    if *message == flood.name()
            ),
            "{fault:?}"
        );
    }
}
