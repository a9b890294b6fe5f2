//! Begins and ends injected faults while a job runs. A device applies a fault at a number of bytes
//! by itself, at exactly that byte; a device has no clock, so a thread applies faults at a time,
//! and lifts faults.

use crate::fault::{Begin, Harm, RailFault, Side};
use crate::hosts::Host;
use crate::session::SessionError;
use polyrail::nic::{Device, When};
use std::convert::Infallible;
use std::fmt;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// Time between checks of the bytes that devices have carried, while a fault waits for them.
const WATCH_EVERY: Duration = Duration::from_millis(1);

/// A fault began or ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultEvent {
    /// Time since data began to move.
    pub at: Duration,
    /// Index of the fault among those of the job, from 0.
    pub fault: usize,
    /// The rail that the fault was requested for.
    pub rail: usize,
    /// Name of the device.
    pub device: String,
    /// What the fault does to the device.
    pub harm: Harm,
    /// Whether the fault began or ended.
    pub phase: Phase,
}

/// Whether a fault began or ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It began.
    Began,
    /// It ended.
    Ended,
    /// It ended, but another fault keeps the device in the same state.
    Outlasted,
}

impl fmt::Display for FaultEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rail, device, harm, phase, .. } = self;
        let what = match phase {
            Phase::Began => harm.began(),
            Phase::Ended => harm.ended(),
            Phase::Outlasted => "this fault ended, but another one of the same kind continues",
        };
        write!(f, "rail {rail} (device {device}): {what}")
    }
}

/// Events of faults. A cheap handle: clones share the log.
#[derive(Clone, Debug, Default)]
pub struct FaultLog(Arc<Mutex<Events>>);

#[derive(Debug, Default)]
struct Events {
    items: Vec<FaultEvent>,
    /// Number of items that were taken.
    taken: usize,
}

impl FaultLog {
    /// Takes the events since the last call, oldest first.
    pub fn take(&self) -> Vec<FaultEvent> {
        let mut events = self.lock();
        let new = events.items[events.taken..].to_vec();
        events.taken = events.items.len();
        new
    }

    /// Returns all events, oldest first.
    pub fn all(&self) -> Vec<FaultEvent> {
        self.lock().items.clone()
    }

    fn push(&self, event: FaultEvent) {
        self.lock().items.push(event);
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The thread that begins and ends the faults of a job. Dropping this stops the thread: a fault
/// that has begun continues, and others do not begin.
#[derive(Debug, Default)]
pub(crate) struct FaultSchedule(Option<Running>);

#[derive(Debug)]
struct Running {
    /// Dropped to stop the thread.
    stop: Sender<Infallible>,
    thread: JoinHandle<()>,
}

impl FaultSchedule {
    /// Schedules faults on the devices of two hosts, and starts the thread if there are any. Times
    /// count from the next byte that any of the devices carries.
    ///
    /// # Errors
    ///
    /// The system cannot start the thread. No fault has begun.
    pub(crate) fn start(
        faults: &[RailFault],
        here: &Host,
        there: &Host,
        log: &FaultLog,
    ) -> Result<Self, SessionError> {
        if faults.is_empty() {
            return Ok(Self(None));
        }
        let devices = [here, there].into_iter().flat_map(Host::devices).cloned().collect();
        let timetable = Timetable::new(faults, here, there, log.clone());
        let (stop, stopped) = mpsc::channel();
        let started = Builder::new().spawn(move || timetable.run(devices, &stopped));
        let task = "begins and ends faults";
        let thread = started.map_err(|source| SessionError::Thread { task, source })?;
        Ok(Self(Some(Running { stop, thread })))
    }

    /// Stops the thread: the log then has all events.
    pub(crate) fn end(mut self) {
        self.stop();
    }

    fn stop(&mut self) {
        let Some(Running { stop, thread }) = self.0.take() else { return };
        drop(stop);
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

impl Drop for FaultSchedule {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The faults of a job, with their states, and the log of their events.
#[derive(Debug)]
struct Timetable {
    faults: Vec<ScheduledFault>,
    log: FaultLog,
}

#[derive(Debug)]
struct ScheduledFault {
    fault: RailFault,
    device: Device,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It begins when the device has carried this many bytes in all; the device applies it.
    AtBytes(u64),
    /// It begins at this time.
    AtTime(Duration),
    /// It lasts until this time.
    Until(Duration),
    /// It lasts until the end.
    UntilTheEnd,
    Over,
}

impl State {
    const fn is_on(self) -> bool {
        matches!(self, Self::Until(_) | Self::UntilTheEnd)
    }
}

impl ScheduledFault {
    /// Schedules a fault. A device applies a fault that waits for bytes.
    fn new(fault: RailFault, device: &Device) -> Self {
        let state = match fault.begin {
            Begin::Time(time) => State::AtTime(time),
            Begin::Bytes(bytes) => {
                let mark = device.carried_bytes().saturating_add(bytes);
                device.inject(When::Bytes(bytes), fault.harm.inflicted());
                State::AtBytes(mark)
            }
        };
        Self { fault, device: device.clone(), state }
    }

    /// Returns whether the device has applied a fault that waited for bytes. The device counts the
    /// bytes before it applies the fault, so both have to be checked.
    fn was_applied(&self) -> bool {
        matches!(self.state, State::AtBytes(mark) if self.device.carried_bytes() >= mark)
            && self.device.suffers(self.fault.harm.inflicted())
    }

    fn begin(&mut self, now: Duration) {
        let until = self.fault.lasting.and_then(|lasting| now.checked_add(lasting));
        self.state = until.map_or(State::UntilTheEnd, State::Until);
    }

    /// Returns the time of its next change or check.
    fn next(&self, now: Duration) -> Option<Duration> {
        match self.state {
            State::AtBytes(_) => Some(now + WATCH_EVERY),
            State::AtTime(time) | State::Until(time) => Some(time),
            State::UntilTheEnd | State::Over => None,
        }
    }
}

impl Timetable {
    fn new(faults: &[RailFault], here: &Host, there: &Host, log: FaultLog) -> Self {
        let scheduled = |fault: &RailFault| {
            let host = if fault.side == Side::Near { here } else { there };
            ScheduledFault::new(*fault, host.device_of(fault.rail))
        };
        Self { faults: faults.iter().map(scheduled).collect(), log }
    }

    /// Waits until data moves, then applies and lifts faults until none is left or the thread is
    /// stopped.
    fn run(mut self, devices: Vec<Device>, stopped: &Receiver<Infallible>) {
        let carried = || devices.iter().map(Device::carried_bytes).sum::<u64>();
        let before = carried();
        // A fault at the first byte may keep any data from moving.
        let at_once = self.faults.iter().any(ScheduledFault::was_applied);
        while !at_once && carried() == before {
            if !sleep(WATCH_EVERY, stopped) {
                return self.note_applied(Duration::ZERO);
            }
        }
        let start = Instant::now();
        while let Some(next) = self.step(start.elapsed()) {
            if !sleep(next.saturating_sub(start.elapsed()), stopped) {
                return self.note_applied(start.elapsed());
            }
        }
    }

    /// Applies and lifts the faults that are due, and returns the time of the next call.
    fn step(&mut self, now: Duration) -> Option<Duration> {
        self.note_applied(now);
        for index in 0..self.faults.len() {
            match self.faults[index].state {
                State::AtTime(time) if time <= now => self.apply(index, now),
                _ => {}
            }
        }
        for index in 0..self.faults.len() {
            match self.faults[index].state {
                State::Until(time) if time <= now => self.lift(index, now),
                _ => {}
            }
        }
        self.faults.iter().filter_map(|fault| fault.next(now)).min()
    }

    /// Records the faults that devices have applied after a number of bytes.
    fn note_applied(&mut self, now: Duration) {
        for index in 0..self.faults.len() {
            if self.faults[index].was_applied() {
                self.faults[index].begin(now);
                self.note(index, now, Phase::Began);
            }
        }
    }

    fn apply(&mut self, index: usize, now: Duration) {
        let ScheduledFault { fault, device, .. } = &self.faults[index];
        device.inject(When::Now, fault.harm.inflicted());
        self.faults[index].begin(now);
        self.note(index, now, Phase::Began);
    }

    fn lift(&mut self, index: usize, now: Duration) {
        self.faults[index].state = State::Over;
        let ScheduledFault { fault, device, .. } = &self.faults[index];
        let same = |other: &&ScheduledFault| {
            other.fault.harm == fault.harm && other.device.id() == device.id()
        };
        let phase = if self.faults.iter().filter(same).any(|other| other.state.is_on()) {
            Phase::Outlasted
        } else {
            fault.harm.undone().into_iter().for_each(|undone| device.inject(When::Now, undone));
            Phase::Ended
        };
        self.note(index, now, phase);
    }

    fn note(&self, index: usize, at: Duration, phase: Phase) {
        let ScheduledFault { fault: RailFault { rail, harm, .. }, device, .. } =
            &self.faults[index];
        let device = device.name().to_owned();
        self.log.push(FaultEvent { at, fault: index, rail: *rail, device, harm: *harm, phase });
    }
}

/// Sleeps for `time`; returns `false` as soon as the thread is to stop.
fn sleep(time: Duration, stopped: &Receiver<Infallible>) -> bool {
    stopped.recv_timeout(time) == Err(RecvTimeoutError::Timeout)
}

#[cfg(test)]
mod rt_tests {
    use super::*;
    use crate::fault::SLOW;
    use crate::hosts::software_hosts;
    use polyrail::nic::Fault;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// Runs a timetable for two hosts of two devices at each of the times, and returns its events
    /// as text.
    fn events(faults: &[&str], times: &[u64]) -> (Vec<String>, Host, Host) {
        let (here, there) = software_hosts(2).unwrap();
        let faults: Vec<RailFault> = faults.iter().map(|text| text.parse().unwrap()).collect();
        let mut timetable = Timetable::new(&faults, &here, &there, FaultLog::default());
        for &time in times {
            timetable.step(ms(time));
        }
        let events = timetable.log.take();
        let text = |event: &FaultEvent| format!("{} {event}", event.at.as_millis());
        (events.iter().map(text).collect(), here, there)
    }

    #[test]
    fn faults_begin_and_end_at_their_times() {
        let faults = ["1:10ms:cut:5ms", "far.0:10ms:silent", "0:20ms:slow:1ms", "far.1:30ms:gone"];
        let (events, here, there) = events(&faults, &[0, 9, 10, 14, 15, 20, 21, 29]);
        assert_eq!(
            events,
            [
                "10 rail 1 (device tx1): link cut",
                "10 rail 0 (device rx0): stopped answering",
                "15 rail 1 (device tx1): link up again",
                "20 rail 0 (device tx0): completions 20 ms late",
                "21 rail 0 (device tx0): completions in time again",
            ]
        );
        assert!(here.device_of(1).suffers(Fault::LinkUp));
        assert!(here.device_of(0).suffers(Fault::DelayCompletions(Duration::ZERO)));
        assert!(there.device_of(0).suffers(Fault::Silent(true)));
        assert!(!there.device_of(1).suffers(Fault::DeviceGone));
    }

    #[test]
    fn every_kind_of_fault_is_applied_and_lifted() {
        let late = Fault::DelayCompletions(SLOW);
        for (name, inflicted, undone) in [
            ("cut", Fault::LinkDown, Fault::LinkUp),
            ("silent", Fault::Silent(true), Fault::Silent(false)),
            ("drop", Fault::DropArriving(true), Fault::DropArriving(false)),
            ("slow", late, Fault::DelayCompletions(Duration::ZERO)),
            ("corrupt", Fault::FailRequests(true), Fault::FailRequests(false)),
        ] {
            let (_, here, _) = events(&[&format!("0:1ms:{name}:1ms")], &[1]);
            assert!(here.device_of(0).suffers(inflicted), "{name}");
            let (_, here, _) = events(&[&format!("0:1ms:{name}:1ms")], &[1, 2]);
            assert!(here.device_of(0).suffers(undone), "{name}");
        }
        let (_, here, _) = events(&["0:1ms:gone"], &[1]);
        assert!(here.device_of(0).suffers(Fault::DeviceGone));
    }

    #[test]
    fn a_fault_at_the_first_byte_starts_the_clock() {
        let (here, there) = software_hosts(1).unwrap();
        let log = FaultLog::default();
        let fault = "0:0:cut:20ms".parse().unwrap();
        let schedule = FaultSchedule::start(&[fault], &here, &there, &log).unwrap();
        assert!(here.device_of(0).suffers(Fault::LinkDown));
        let begin = Instant::now();
        while here.device_of(0).suffers(Fault::LinkDown) {
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(ms(1));
        }
        schedule.end();
        let happened = log.take();
        assert_eq!([happened[0].phase, happened[1].phase], [Phase::Began, Phase::Ended]);
        assert!(happened[1].at - happened[0].at >= ms(20));
    }

    #[test]
    fn a_job_that_ends_stops_its_schedule() {
        let (here, there) = software_hosts(1).unwrap();
        let faults = ["0:600s:cut".parse().unwrap(), "0:1T:cut".parse().unwrap()];
        let begin = Instant::now();
        let log = FaultLog::default();
        let start = || FaultSchedule::start(&faults, &here, &there, &log).unwrap();
        start().end();
        drop(start());
        assert_eq!(log.all(), []);
        assert!(begin.elapsed() < Duration::from_secs(60));
        assert!(here.device_of(0).suffers(Fault::LinkUp));
    }

    #[test]
    fn a_device_recovers_when_the_last_of_its_equal_faults_ends() {
        let (events, here, _) = events(&["1:0ms:cut:10ms", "3:5ms:cut:10ms"], &[0, 5, 10]);
        assert_eq!(
            events[2],
            "10 rail 1 (device tx1): this fault ended, but another one of the same kind continues"
        );
        assert!(here.device_of(1).suffers(Fault::LinkDown));
        let (_, here, _) = self::events(&["1:0ms:cut:10ms", "3:5ms:cut:10ms"], &[0, 5, 10, 15]);
        assert!(here.device_of(1).suffers(Fault::LinkUp));
    }
}
