use super::*;

mod messages {
    use super::*;
    use polyrail_core::virtual_qp::{RailReport, ReportedState};
    use quickcheck::{Gen, QuickCheck};

    type HealingMessage = super::HealingMessage<RailId>;
    type ReplacementAddress = super::ReplacementAddress<RailId>;

    const ADDRESS: &str = concat!(
        r#"{"rail":"2","generation":1,"qpNum":291,"address":{"device":2,"gid":"::ffff:10.0.0.2","#,
        r#""lid":0,"mtu":4096,"psn":4711,"rdAtomic":16}}"#
    );
    const CONTROL: &str = r#"{"control":"50520102010000000000002a00000000"}"#;

    fn texts() -> [String; 5] {
        [
            CONTROL.to_owned(),
            format!(r#"{{"offer":{ADDRESS}}}"#),
            format!(r#"{{"answer":{{"to":17,"with":{ADDRESS}}}}}"#),
            r#"{"refused":{"rail":"notify","generation":65535}}"#.to_owned(),
            r#"{"wanted":{"rail":"0"}}"#.to_owned(),
        ]
    }

    #[test]
    fn each_is_read_and_written_as_documented() {
        let [control, offer, answer, refused, wanted] =
            texts().map(|text| HealingMessage::from_json(text.as_bytes()).unwrap());
        let rail = RailId::Data(1);
        let state = ReportedState::Fenced;
        let news = RailReport {
            rail,
            generation: 0,
            state,
            arrived: 42,
            previous_arrived: 0,
            on_purpose: false,
        };
        assert_eq!(control, HealingMessage::Control(ControlMessage::Rail(news)));
        let address: ReplacementAddress = serde_json::from_str(ADDRESS).unwrap();
        assert_eq!(offer, HealingMessage::Offer(address));
        assert_eq!(answer, HealingMessage::Answer { to: 17, with: address });
        let generation = 65535;
        assert_eq!(refused, HealingMessage::Refused { rail: RailId::Notify, generation });
        assert_eq!(wanted, HealingMessage::Wanted { rail: RailId::Data(0) });
        for text in texts() {
            let message = HealingMessage::from_json(text.as_bytes()).unwrap();
            assert_eq!(message.to_json(), text);
        }
    }

    #[test]
    fn everything_else_is_refused() {
        let [control, offer, answer, refused, wanted] = texts();
        for (text, good, bad) in [
            (&control, "2a00000000", "2a000000"),
            (&control, "2a00000000", "2A00000000"),
            (&control, "2a00000000", "2ä0000000"),
            (&control, "505201", "505202"),
            (&control, "control", "controls"),
            (&control, "{", "[{"),
            (&control, "}", r#","refused":{"rail":"1","generation":1}}"#),
            (&offer, r#""rail":"2""#, r#""rail":"9""#),
            (&offer, r#""rail":"2","#, ""),
            (&refused, "65535", "65536"),
            (&answer, r#""to":17,"#, ""),
            (&answer, r#""to":17"#, r#""to":4294967296"#),
            (&wanted, r#""0""#, "0"),
            (&refused, r#""generation""#, r#""x":0,"generation""#),
        ] {
            let text = text.replacen(good, bad, 1);
            let error = HealingMessage::from_json(text.as_bytes()).unwrap_err();
            assert!(error.to_string().len() < 300, "{error}");
        }
        let long = format!("{CONTROL}{}", " ".repeat(MAX_HEALING_BYTES));
        assert!(HealingMessage::from_json(long.as_bytes()).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        fn mutated(which: usize, at: usize, byte: u8) -> bool {
            let mut text = texts()[which % 5].clone().into_bytes();
            let length = text.len();
            text[at % length] = byte;
            let read = HealingMessage::from_json(&text);
            read.is_ok() || read.unwrap_err().to_string().len() < 300
        }
        QuickCheck::new()
            .rng(Gen::from_size_and_seed(100, 1))
            .tests(5000)
            .quickcheck(mutated as fn(usize, usize, u8) -> bool);
    }
}

mod addresses {
    use super::*;
    use quickcheck::{Gen, QuickCheck};

    type ReplacementAddress = super::ReplacementAddress<RailId>;

    const TEXT: &str = concat!(
        r#"{"rail":"2","generation":1,"qpNum":291,"address":{"device":2,"gid":"::ffff:10.0.0.2","#,
        r#""lid":0,"mtu":4096,"psn":4711,"rdAtomic":16}}"#
    );

    const MAX_BYTES: usize = 1024;

    fn read(text: &[u8]) -> Result<ReplacementAddress, String> {
        json::read(text, MAX_BYTES)
    }

    fn written(address: &ReplacementAddress) -> String {
        serde_json::to_string(address).unwrap()
    }

    fn address() -> ReplacementAddress {
        read(TEXT.as_bytes()).unwrap()
    }

    #[test]
    fn it_is_read_and_written_as_documented() {
        let address = address();
        assert_eq!((address.rail, address.generation), (RailId::Data(2), 1));
        assert_eq!((address.qp_num, address.address.psn), (291, 4711));
        assert_eq!(written(&address), TEXT);
    }

    #[test]
    fn every_rail_has_a_name() {
        for rail in (0..MAX_RAILS as u8).map(RailId::Data).chain([RailId::Notify]) {
            let named = ReplacementAddress { rail, ..address() };
            assert_eq!(read(written(&named).as_bytes()), Ok(named));
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for (good, bad) in [
            (r#""rail":"2""#, r#""rail":"8""#),
            (r#""rail":"2""#, r#""rail":"02""#),
            (r#""rail":"2""#, r#""rail":2"#),
            (r#""rail":"2""#, r#""rail":"2","rail":"2""#),
            (r#""generation":1"#, r#""generation":65536"#),
            (r#""generation":1"#, r#""generation":-1"#),
            (r#""qpNum":291,"#, ""),
            (r#""device":2"#, r#""device":8"#),
            (r#""device":2"#, r#""device":2,"x":0"#),
            (r#""mtu":4096"#, r#""mtu":4097"#),
            (r#""psn":4711"#, r#""psn":16777216"#),
            ("::ffff:10.0.0.2", "10.0.0"),
            ("{", "[{"),
        ] {
            let text = TEXT.replacen(good, bad, 1);
            let error = read(text.as_bytes()).unwrap_err();
            assert!(error.len() < 300, "{error}");
        }
        let long = format!("{TEXT}{}", " ".repeat(MAX_BYTES));
        assert!(read(long.as_bytes()).is_err());
    }

    #[test]
    fn a_meeting_has_a_port() {
        let key = "00".repeat(16);
        let with = |port: u32| {
            let meeting = format!(r#""psn":4711,"meeting":{{"port":{port},"key":"{key}"}}"#);
            read(TEXT.replacen(r#""psn":4711"#, &meeting, 1).as_bytes())
        };
        assert!(with(7500).is_ok());
        let error = with(0).unwrap_err();
        assert!(error.contains("a TCP port from 1 to 65535"), "{error}");
        assert!(with(65536).is_err());
    }

    #[test]
    fn no_bytes_make_the_reader_panic() {
        fn mutated(at: usize, byte: u8) -> bool {
            let mut text = TEXT.as_bytes().to_vec();
            let length = text.len();
            text[at % length] = byte;
            let read = read(&text);
            read.is_ok() || read.unwrap_err().len() < 300
        }
        QuickCheck::new()
            .rng(Gen::from_size_and_seed(100, 1))
            .tests(5000)
            .quickcheck(mutated as fn(usize, u8) -> bool);
    }
}
