//! Servers that require a token of their peers.

use super::*;
use crate::session::ServerAddress;
use polyrail::link::Token;

fn token(byte: u8) -> Token {
    Token::new([byte; 32]).unwrap()
}

fn server() -> Server {
    Server::bind("127.0.0.1:0").unwrap().with_token(token(1))
}

#[test]
fn a_peer_with_the_token_copies_and_measures_and_others_are_told_nothing() {
    let (_directory, source, copies) = place_with_source();
    let options = ServeOptions::new(&copies);
    let (refused, served, strays) = run_this_server(server(), &options, 2, |address, host| {
        let come = |token: Option<Token>| {
            let server = ServerAddress { address: address.into(), token };
            let domains = host.all_domains();
            let options = CopyOptions::default();
            send_to(&source, None, server, domains, &options, &CopyProgress::default(), || ())
        };
        let refused =
            [None, Some(token(2))].map(|token| Chain(&come(token).unwrap_err()).to_string());
        come(Some(token(1))).unwrap();
        let server = ServerAddress { address: address.into(), token: Some(token(1)) };
        let config = PerfConfig { limit: Limit::Count(100), ..PerfConfig::default() };
        let domains = host.all_domains();
        measure_to(&config, server, domains, &PerfProgress::default()).unwrap();
        refused
    });
    assert!(refused[0].contains("start both sides with the same token"), "{}", refused[0]);
    assert!(refused[1].contains("the peer has another token than this side"), "{}", refused[1]);
    assert!(matches!(served[..], [Ok(Served::Copy(_)), Ok(Served::Perf(_))]), "{served:?}");
    assert!(
        matches!(
            strays[..],
            [SessionError::Link(LinkError::TokenWanted), SessionError::Link(LinkError::WrongToken)]
        ),
        "{strays:?}"
    );
    assert_eq!(names(&copies), ["source"]);
}

#[test]
fn a_peer_that_knocks_and_says_nothing_more_delays_nobody() {
    let (_directory, source, copies) = place_with_source();
    let timeouts = PeerTimeouts { answer: Duration::from_secs(3), ..PeerTimeouts::default() };
    let options = ServeOptions { timeouts, ..ServeOptions::new(&copies) };
    let (_, served, _) = run_this_server(server(), &options, 1, |address, host| {
        let mut knocks: Vec<TcpStream> =
            (0..8).map(|_| TcpStream::connect(address).unwrap()).collect();
        for stranger in &mut knocks {
            let json = br#"{"knock":{"nonce":"0123456789abcdef0123456789abcdef"}}"#;
            let frame = [b"PLYR\0\0\0\x08\0\0\0".as_slice(), &[json.len() as u8], json].concat();
            stranger.write_all(&frame).unwrap();
            let mut heard = [0; 24];
            stranger.read_exact(&mut heard).unwrap();
            assert!(heard.ends_with(br#"{"challenge""#), "{heard:?}");
        }
        let server = ServerAddress { address: address.into(), token: Some(token(1)) };
        let options = CopyOptions::default();
        let domains = host.all_domains();
        send_to(&source, None, server, domains, &options, &CopyProgress::default(), || ()).unwrap();
    });
    assert!(served[0].is_ok(), "{served:?}");
}
