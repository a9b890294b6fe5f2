//! Which queue pairs of an endpoint are connected, while it is being connected.

use super::Place;
use super::attempts::PAUSE;
use crate::backend::{Connecting, DeviceError, Gid};
use std::thread;
use std::time::{Duration, Instant};

/// The queue pairs that are connected, by their names, and the peer's address.
#[derive(Debug)]
pub(crate) struct Joined<R, A> {
    /// The peer's address, once both ends are known to match.
    peer: Option<Box<A>>,
    rails: Vec<R>,
    /// Those that are being connected.
    under_way: Vec<(R, Connecting<()>)>,
    /// Those that were refused in the present attempt.
    refused: Vec<(R, DeviceError)>,
    /// An attempt has succeeded.
    is_over: bool,
}

impl<R: Copy + PartialEq, A: Clone + PartialEq> Joined<R, A> {
    pub(crate) const fn new() -> Self {
        Self {
            peer: None,
            rails: Vec::new(),
            under_way: Vec::new(),
            refused: Vec::new(),
            is_over: false,
        }
    }

    /// Whether an attempt to connect with this peer is to be continued.
    pub(crate) fn continues(&self, peer: &A) -> bool {
        self.peer.as_deref() == Some(peer)
    }

    /// Begins to connect with this peer.
    pub(crate) fn begin(&mut self, peer: &A) {
        let peer = Some(Box::new(peer.clone()));
        *self = Self { peer, is_over: self.is_over, ..Self::new() };
    }

    /// Ends the attempt, if an endpoint can begin without the queue pairs that were refused: the
    /// refusals may pass, all of the queue pairs `can_miss`, and what is connected `is_enough`.
    /// Returns these queue pairs, or the refusal that the failed call reports.
    pub(crate) fn begin_without(
        &mut self,
        refused: Vec<(R, DeviceError)>,
        can_miss: impl Fn(R) -> bool,
        is_enough: impl FnOnce(&Self) -> bool,
    ) -> Result<Vec<(R, DeviceError)>, (R, DeviceError)> {
        if let Some(reported) = reported(&refused) {
            let can_begin = |(rail, error): &(R, DeviceError)| error.may_pass() && can_miss(*rail);
            if !refused.iter().all(can_begin) || !is_enough(self) {
                return Err(reported);
            }
        }
        *self = Self { is_over: true, ..Self::new() };
        Ok(refused)
    }

    /// Whether an attempt has succeeded: the endpoint is connected.
    pub(crate) const fn is_over(&self) -> bool {
        self.is_over
    }

    /// Counts the connected queue pairs that are of this kind.
    pub(crate) fn count(&self, is_of_kind: impl Fn(R) -> bool) -> usize {
        self.rails.iter().filter(|rail| is_of_kind(**rail)).count()
    }

    /// Continues an attempt to connect the queue pairs that are not connected yet, each from its
    /// place to a peer's port, without waiting. When the attempt has ended, returns those that were
    /// refused, and why; the next call begins another attempt.
    ///
    /// An attempt begins with no queue pair after one was refused, unless all are to be tried. Of
    /// queue pairs between the same two ports one is tried first, and the others only if it was
    /// connected, because over RoCE the kernel searches for a path for a second.
    pub(crate) fn join<'p>(
        &mut self,
        rails: impl Iterator<Item = (R, &'p Place, Gid)>,
        tries_all: bool,
        mut join: impl FnMut(R) -> Connecting<()>,
    ) -> Option<Vec<(R, DeviceError)>> {
        self.collect();
        let path = |place: &Place, gid| (place.device, place.port.number, gid);
        let rails: Vec<_> = rails.map(|(rail, place, gid)| (rail, path(place, gid))).collect();
        for (rail, path) in &rails {
            let beside = |other: R| rails.contains(&(other, *path));
            let refused = self.refused.iter().find(|(other, _)| beside(*other));
            match refused.map(|(_, error)| error.clone()) {
                _ if self.is_begun(*rail) => {}
                _ if !tries_all && !self.refused.is_empty() => break,
                Some(error) => self.refused.push((*rail, error)),
                None if self.is_searching(beside) => {}
                None => {
                    self.under_way.push((*rail, join(*rail)));
                    self.collect();
                }
            }
        }
        if !self.under_way.is_empty() {
            return None;
        }
        let mut refused = std::mem::take(&mut self.refused);
        refused.sort_by_key(|(rail, _)| rails.iter().position(|(known, _)| known == rail));
        Some(refused)
    }

    fn is_begun(&self, rail: R) -> bool {
        self.rails.contains(&rail)
            || self.under_way.iter().any(|(known, _)| *known == rail)
            || self.refused.iter().any(|(known, _)| *known == rail)
    }

    /// Whether one of these queue pairs is the first that is being connected.
    fn is_searching(&self, is_one: impl Fn(R) -> bool) -> bool {
        self.under_way.iter().any(|(rail, _)| is_one(*rail))
            && !self.rails.iter().any(|rail| is_one(*rail))
    }

    /// Takes the results of those that were being connected.
    fn collect(&mut self) {
        let Self { rails, under_way, refused, .. } = self;
        under_way.retain_mut(|(rail, connecting)| match connecting.take() {
            None => true,
            Some(Ok(())) => {
                rails.push(*rail);
                false
            }
            Some(Err(error)) => {
                refused.push((*rail, error));
                false
            }
        });
    }

    /// Whether queue pairs are being connected, and nothing can be done until one of them is.
    pub(crate) fn has_to_wait(&mut self) -> bool {
        let before = self.under_way.len();
        self.collect();
        before > 0 && before == self.under_way.len()
    }

    /// Waits until the one that began first is connected or refused; others may have ended before.
    pub(crate) fn wait(&mut self) {
        if let Some((_, connecting)) = self.under_way.first_mut() {
            connecting.wait();
        }
    }
}

/// Returns the refusal that a failed call reports: the first that does not pass, because it ends
/// the repetition of the call, or else the first.
fn reported<R: Copy>(refused: &[(R, DeviceError)]) -> Option<(R, DeviceError)> {
    let lasting = refused.iter().find(|(_, error)| !error.may_pass());
    lasting.or(refused.first()).cloned()
}

/// Repeats a call until it succeeds, fails for an error that does not pass, or has been repeated
/// for longer than the limit.
pub(crate) fn retry<E>(
    limit: Duration,
    may_pass: impl Fn(&E) -> bool,
    mut call: impl FnMut() -> Result<(), E>,
) -> Result<(), E> {
    let begin = Instant::now();
    loop {
        match call() {
            Err(error) if may_pass(&error) && begin.elapsed() < limit => thread::sleep(PAUSE),
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Mtu, Port};
    use std::sync::mpsc::{self, Sender};

    const DOWN: DeviceError = DeviceError::PortDown { port: 1 };

    fn place(device: usize) -> Place {
        let gid = Gid([0; 16]);
        let port =
            Port { number: 1, gid_index: 0, gid, lid: 0, mtu: Mtu::Mtu1024, max_rd_atomic: 1 };
        Place { device, port }
    }

    #[test]
    fn each_pair_of_ports_is_tried_once_in_vain_and_what_is_joined_stays_so() {
        let places = [0, 1, 0, 1].map(place);
        let rails = || (0..).zip(&places).map(|(rail, place)| (rail, place, Gid([9; 16])));
        let mut joined = Joined::<u8, u32>::new();
        joined.begin(&7);
        assert!(joined.continues(&7) && !joined.continues(&8));
        let mut tried = Vec::new();
        let mut join = |rail: u8| {
            tried.push(rail);
            Connecting::done(if rail.is_multiple_of(2) { Err(DOWN) } else { Ok(()) })
        };
        assert_eq!(joined.join(rails(), true, &mut join), Some(vec![(0, DOWN), (2, DOWN)]));
        assert_eq!(joined.join(rails(), false, &mut join), Some(vec![(0, DOWN)]));
        assert_eq!(tried, [0, 1, 3, 0]);
        assert_eq!(joined.count(|rail| rail > 1), 1);
        assert_eq!(joined.join(rails(), true, |_| Connecting::done(Ok(()))), Some(vec![]));
        assert_eq!(joined.count(|_| true), 4);
    }

    #[test]
    fn an_attempt_succeeds_without_what_can_be_missed_if_the_rest_is_enough() {
        let begin = |error: DeviceError, can_miss: bool, is_enough: bool| {
            let mut joined = Joined::<u8, u32>::new();
            joined.begin(&7);
            let begun = joined.begin_without(vec![(3, error)], |_| can_miss, |_| is_enough);
            assert_eq!((joined.is_over(), !joined.continues(&7)), (begun.is_ok(), begun.is_ok()));
            begun.map_err(|(rail, _)| rail)
        };
        assert_eq!(begin(DOWN, true, true), Ok(vec![(3, DOWN)]));
        assert_eq!(begin(DOWN, false, true), Err(3));
        assert_eq!(begin(DOWN, true, false), Err(3));
        assert_eq!(begin(DeviceError::NotOpened, true, true), Err(3));
        let mut whole = Joined::<u8, u32>::new();
        assert_eq!(whole.begin_without(Vec::new(), |_| false, |_| false), Ok(Vec::new()));
    }

    /// Searches for paths that are under way.
    #[derive(Default)]
    struct Searches(Vec<(u8, Sender<Result<(), DeviceError>>)>);

    impl Searches {
        fn begin(&mut self, rail: u8) -> Connecting<()> {
            let (ends, search) = mpsc::channel();
            self.0.push((rail, ends));
            Connecting::under_way(search)
        }

        fn under_way(&self) -> Vec<u8> {
            self.0.iter().map(|(rail, _)| *rail).collect()
        }

        fn end(&mut self, rail: u8, result: Result<(), DeviceError>) {
            let at = self.0.iter().position(|(known, _)| *known == rail).unwrap();
            self.0.remove(at).1.send(result).unwrap();
        }
    }

    #[test]
    fn searches_for_all_paths_go_on_at_the_same_time() {
        let places = [0, 1, 0, 1, 1].map(place);
        let rails = || (0..).zip(&places).map(|(rail, place)| (rail, place, Gid([9; 16])));
        for tries_all in [true, false] {
            let (mut joined, mut searches) = (Joined::<u8, u32>::new(), Searches::default());
            joined.begin(&7);
            assert!(!joined.has_to_wait());
            for _ in 0..2 {
                assert_eq!(joined.join(rails(), tries_all, |rail| searches.begin(rail)), None);
                assert_eq!(searches.under_way(), [0, 1], "one between the same two ports");
                assert!(joined.has_to_wait());
            }
            searches.end(1, Ok(()));
            assert!(!joined.has_to_wait());
            assert_eq!(joined.join(rails(), tries_all, |rail| searches.begin(rail)), None);
            assert_eq!(searches.under_way(), [0, 3, 4], "the others between these ports");
            searches.end(3, Ok(()));
            searches.end(0, Err(DOWN));
            assert_eq!(joined.join(rails(), tries_all, |rail| searches.begin(rail)), None);
            searches.end(4, Ok(()));
            joined.wait();
            let refused = if tries_all { vec![(0, DOWN), (2, DOWN)] } else { vec![(0, DOWN)] };
            let join = |rail| searches.begin(rail);
            assert_eq!(joined.join(rails(), tries_all, join), Some(refused));
            assert_eq!((searches.under_way(), joined.count(|_| true)), (vec![], 3));
            // The next attempt.
            assert_eq!(joined.join(rails(), tries_all, |rail| searches.begin(rail)), None);
            assert_eq!(searches.under_way(), [0]);
        }
    }

    #[test]
    fn a_refusal_that_does_not_pass_is_reported_before_those_that_do() {
        let gone = DeviceError::NotOpened;
        assert_eq!(reported(&[(0, DOWN), (1, gone.clone())]), Some((1, gone)));
        assert_eq!(reported(&[(0, DOWN), (1, DOWN)]), Some((0, DOWN)));
        assert_eq!(reported::<u8>(&[]), None);
    }

    #[test]
    fn a_call_is_repeated_while_its_error_may_pass() {
        let mut errors = vec![9, 1, 1];
        let mut call = || errors.pop().map_or(Ok(()), Err);
        assert_eq!(retry(Duration::ZERO, |_| true, &mut call), Err(1));
        assert_eq!(retry(Duration::from_secs(60), |error| *error == 1, &mut call), Err(9));
        assert_eq!(retry(Duration::from_secs(60), |_| true, &mut call), Ok(()));
    }
}
