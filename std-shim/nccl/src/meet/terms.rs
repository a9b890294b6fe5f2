//! What both ends of a connection must agree on: the handle has the offer of the listening end, and
//! the connecting end decides.

use super::handle::Handle;
use crate::guard::{Code, Refusal};
use crate::settings::Settings;
use polyrail::backend::ConnectOptions;
use polyrail::heal::Healing;
use polyrail::p2p::{P2pBuilder, QUEUE_PAIRS};
use polyrail::virtual_qp::{MAX_RAILS, RailFailure};
use serde::Serialize;

/// What both ends must agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Terms {
    pub(crate) rails: u8,
    pub(crate) queue_pairs_per_rail: u8,
    pub(crate) reroutes: bool,
}

impl Terms {
    /// Returns the terms between an end with these settings and this number of devices, and the end
    /// that wrote the handle.
    pub(crate) fn between(
        settings: &Settings,
        devices: usize,
        peer: &Handle,
    ) -> Result<Self, Refusal> {
        let usage = |words| Err(Refusal::new(Code::Usage, words));
        if let (Some(here), Some(there)) = (settings.rails, peer.rails)
            && here != there
        {
            return usage(format!("POLYRAIL_RAILS is {here} here, and {there} at the peer"));
        }
        let (here, there) = (settings.queue_pairs_per_rail, peer.queue_pairs_per_rail);
        if here != there {
            let words =
                format!("POLYRAIL_QUEUE_PAIRS_PER_RAIL is {here} here, and {there} at the peer");
            return usage(words);
        }
        let of_devices = devices.max(peer.devices.into()).min(MAX_RAILS) as u8;
        let rails = settings.rails.or(peer.rails).unwrap_or(of_devices);
        // A single rail has no other rail that could carry its requests.
        let reroutes = settings.healing && peer.reroutes && rails > 1;
        Ok(Self { rails, queue_pairs_per_rail: here, reroutes })
    }

    /// Returns whether an end with these settings supports the terms.
    pub(crate) fn fit(self, settings: &Settings) -> bool {
        let Self { rails, queue_pairs_per_rail, reroutes } = self;
        (1..=MAX_RAILS).contains(&rails.into())
            && settings.rails.is_none_or(|wanted| wanted == rails)
            && queue_pairs_per_rail == settings.queue_pairs_per_rail
            && usize::from(rails) * usize::from(queue_pairs_per_rail) <= QUEUE_PAIRS
            && (!reroutes || settings.healing && rails > 1)
    }

    /// Returns the builder of an end with these terms.
    pub(crate) fn builder(self, settings: &Settings, traffic_class: u8) -> P2pBuilder {
        let options = ConnectOptions {
            timeout: settings.qp_timeout,
            retry_cnt: settings.retries,
            service_level: settings.service_level,
            traffic_class,
            ..ConnectOptions::default()
        };
        P2pBuilder::new()
            .rails(self.rails.into())
            .queue_pairs_per_rail(self.queue_pairs_per_rail.into())
            .rail_weights(settings.rail_weights)
            .split_threshold(settings.split_threshold)
            .separate_signal(settings.separate_signal)
            .connect_options(options)
            .healing(healing(settings))
            .rail_failure(match self.reroutes {
                true => RailFailure::Reroute,
                false => RailFailure::Fatal,
            })
    }
}

/// The time limits of repair. The peer's report about a failed rail arrives over the link, which
/// may be broken for up to its own timeout. Only that timeout may end the connection, so no limit
/// is shorter.
fn healing(settings: &Settings) -> Healing {
    Healing {
        stall_timeout: Some(settings.stall_timeout),
        rail_timeout: Some(settings.rail_timeout),
        fence_timeout: None,
        ..Healing::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Backend;

    fn peer() -> Handle {
        Handle {
            address: "10.0.0.1:1".parse().unwrap(),
            token: [0; 16],
            listener: 1,
            devices: 1,
            rails: None,
            queue_pairs_per_rail: 1,
            reroutes: true,
            backend: Backend::Software,
            process: 0,
        }
    }

    #[test]
    fn a_message_waits_for_a_report_as_long_as_the_link_may_be_broken() {
        let settings = Settings::default();
        let limit = healing(&settings).fence_timeout;
        assert!(limit.is_none_or(|limit| limit > settings.link_timeout), "{limit:?}");
    }

    #[test]
    fn the_end_with_more_devices_decides_how_many_rails_there_are() {
        let settings = Settings::default();
        let rails = |devices, theirs| {
            let peer = Handle { devices: theirs, ..peer() };
            let Terms { rails, reroutes, .. } = Terms::between(&settings, devices, &peer).unwrap();
            (rails, reroutes)
        };
        assert_eq!(rails(1, 1), (1, false), "there is nothing to re-route to");
        assert_eq!(rails(1, 2), (2, true));
        assert_eq!(rails(4, 2), (4, true));
        assert_eq!(rails(8, 200), (8, true));
    }

    #[test]
    fn settings_that_do_not_match_are_named() {
        let two = Settings { rails: Some(2), ..Settings::default() };
        let four = Handle { rails: Some(4), ..peer() };
        let refused = Terms::between(&two, 1, &four).unwrap_err();
        assert_eq!(refused.code, Code::Usage);
        assert!(refused.words.contains("POLYRAIL_RAILS is 2 here, and 4"), "{}", refused.words);
        assert_eq!(Terms::between(&two, 1, &peer()).unwrap().rails, 2);
        assert_eq!(Terms::between(&Settings::default(), 1, &four).unwrap().rails, 4);
        let each = Handle { queue_pairs_per_rail: 2, ..peer() };
        assert!(Terms::between(&two, 1, &each).unwrap_err().words.contains("QUEUE_PAIRS_PER_RAIL"));
        let deaf = Settings { healing: false, ..two };
        assert!(!Terms::between(&deaf, 1, &peer()).unwrap().reroutes);
    }

    #[test]
    fn impossible_terms_are_refused() {
        let settings = Settings::default();
        let fit = |rails, queue_pairs_per_rail, reroutes, settings: &Settings| {
            Terms { rails, queue_pairs_per_rail, reroutes }.fit(settings)
        };
        assert!(fit(4, 1, true, &settings) && fit(1, 1, false, &settings));
        for (rails, queue_pairs_per_rail, reroutes) in
            [(0, 1, false), (9, 1, false), (2, 0, false), (2, 2, false), (1, 1, true)]
        {
            assert!(!fit(rails, queue_pairs_per_rail, reroutes, &settings), "{rails}");
        }
        let two = Settings { rails: Some(2), healing: false, ..Settings::default() };
        assert!(!fit(4, 1, false, &two) && !fit(2, 1, true, &two) && fit(2, 1, false, &two));
    }
}
