//! The metrics of a process: what owners of connections publish, and what is read by others.

use super::folder::TextFile;
use super::render::{self, Collected, Format};
use super::snapshot::ConnectionMetrics;
use super::totals::Totals;
use crate::backend::Domain;
use crate::memory::{CacheCounters, RegistrationCache};
use polyrail_process::{Forked, Process};
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Waker;
use std::time::{Duration, Instant};

/// How long a reader waits for owners to publish.
const PATIENCE: Duration = Duration::from_millis(100);

/// The metrics of a process, or of a part of it. A cheap handle: clones share everything, and any
/// thread may use them. See the [module](super).
#[derive(Clone, Debug)]
pub struct Metrics(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    component: String,
    process: Process,
    /// How often readers have asked for new snapshots. Owners compare it with the number of their
    /// last one.
    wanted: AtomicU64,
    state: Mutex<State>,
    /// Notified when an owner has published.
    published: Condvar,
}

#[derive(Debug, Default)]
struct State {
    totals: Totals,
    sources: BTreeMap<u64, Published>,
    caches: Vec<WatchedCache>,
    /// The number of the next source.
    next: u64,
    /// The file that is also written when the last source ends, because the process may end soon.
    /// Its exporter owns it.
    file: Weak<TextFile>,
}

/// The last snapshots of an owner.
#[derive(Debug)]
struct Published {
    name: String,
    /// The number of readings that they are for.
    reading: u64,
    at: Instant,
    connections: BTreeMap<u64, ConnectionMetrics>,
    /// Wakes the owner, if it may sleep.
    waker: Option<Waker>,
}

impl Published {
    /// Adds what a connection has counted since its last snapshot.
    fn count(&self, connection: &ConnectionMetrics, totals: &mut Totals) {
        totals.add(&self.name, connection, self.connections.get(&connection.id));
    }
}

/// Reads the counters of a cache; `None` once the cache is gone.
type ReadCache = Box<dyn Fn() -> Option<CacheCounters> + Send + Sync>;

struct WatchedCache {
    name: String,
    read: ReadCache,
    last: CacheCounters,
}

impl fmt::Debug for WatchedCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedCache").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Metrics {
    /// Makes metrics without sources. `component` is a label of all series, which distinguishes the
    /// parts of a process that have metrics of their own, such as a program and a plugin.
    pub fn new(component: &str) -> Self {
        Self(Arc::new(Shared {
            component: component.to_owned(),
            process: Process::current(),
            wanted: AtomicU64::new(0),
            state: Mutex::default(),
            published: Condvar::new(),
        }))
    }

    /// Returns the label that distinguishes them from others in the process.
    pub fn component(&self) -> &str {
        &self.0.component
    }

    /// Registers an owner of connections. `name` is a label of their series. Connections with the
    /// same name are added up, so the number of names limits the number of series: name purposes or
    /// jobs, and peers only if they are few.
    pub fn source(&self, name: &str) -> Source {
        let shared = &self.0;
        let reading = shared.wanted.load(Ordering::Relaxed);
        let mut source = Source { shared: Arc::clone(shared), number: None, reading };
        if let Ok(mut state) = shared.lock() {
            let number = state.next;
            state.next += 1;
            let (name, at) = (name.to_owned(), Instant::now());
            let connections = BTreeMap::new();
            let published = Published { name, reading, at, connections, waker: None };
            state.sources.insert(number, published);
            source.number = Some(number);
        }
        source
    }

    /// Watches a registration cache until it is dropped. Caches with the same name are added up.
    /// Only readers read the counters, so what the cache counted after the last reading is lost when
    /// it is dropped. To keep these counts, call [`text`](Self::text) before you drop the cache.
    pub fn watch_cache<D: Domain>(&self, name: &str, cache: &RegistrationCache<D>) {
        if let Ok(mut state) = self.0.lock() {
            let (name, read) = (name.to_owned(), Box::new(cache.watch()));
            state.caches.push(WatchedCache { name, read, last: CacheCounters::default() });
        }
    }

    /// Returns the connections of all owners, each with the name of its source, after asking the
    /// owners for new snapshots as [`text`](Self::text) does.
    ///
    /// # Errors
    ///
    /// The process is a fork of the one that made the metrics.
    pub fn connections(&self) -> Result<Vec<(String, ConnectionMetrics)>, Forked> {
        let state = self.0.read()?;
        let each = state.sources.values().flat_map(|Published { name, connections, .. }| {
            connections.values().map(|connection| (name.clone(), connection.clone()))
        });
        Ok(each.collect())
    }

    /// Returns all metrics as text. Asks the owners for new snapshots, and waits for up to 100 ms
    /// until all have published. What an owner published last stands for one that does not poll;
    /// `polyrail_snapshot_age_seconds` has its age.
    ///
    /// # Errors
    ///
    /// The process is a fork of the one that made the metrics.
    pub fn text(&self, format: Format) -> Result<String, Forked> {
        self.text_with(format, &[])
    }

    /// Writes the file whenever the last source ends, as long as its exporter exists. Only the file
    /// of the newest exporter is written then.
    pub(super) fn write_at_ends(&self, file: &Arc<TextFile>) {
        if let Ok(mut state) = self.0.lock() {
            state.file = Arc::downgrade(file);
        }
    }

    /// Writes all metrics to a file, with the number of the process as a label: files of several
    /// processes are read together, and no two series may be equal.
    ///
    /// # Errors
    ///
    /// The process is a fork of the one that made the metrics, or the file cannot be written.
    pub(super) fn write_to(&self, file: &TextFile) -> io::Result<()> {
        let pid = ("pid", std::process::id().to_string());
        file.write(|| self.text_with(Format::Prometheus, &[pid]))
    }

    /// As [`text`](Self::text), with more labels for all series.
    fn text_with(
        &self,
        format: Format,
        labels: &[(&'static str, String)],
    ) -> Result<String, Forked> {
        let collected = self.0.read()?.collect(Instant::now());
        let component = ("component", self.0.component.clone());
        let labels = std::iter::once(component).chain(labels.iter().cloned());
        Ok(render::text(collected, labels, format))
    }
}

impl Shared {
    /// # Errors
    ///
    /// The process is a fork, where another thread may hold the lock for ever.
    fn lock(&self) -> Result<MutexGuard<'_, State>, Forked> {
        self.process.check()?;
        Ok(self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Asks all owners for new snapshots, and waits until they have published, or for too long.
    fn read(&self) -> Result<MutexGuard<'_, State>, Forked> {
        let state = self.lock()?;
        let reading = self.wanted.fetch_add(1, Ordering::Relaxed) + 1;
        let wakers: Vec<Waker> =
            state.sources.values().filter_map(|each| each.waker.clone()).collect();
        // Without the lock, since owners that wake publish.
        drop(state);
        wakers.iter().for_each(Waker::wake_by_ref);
        let state = self.lock()?;
        let is_missing =
            |state: &mut State| state.sources.values().any(|each| each.reading < reading);
        let waited = self.published.wait_timeout_while(state, PATIENCE, is_missing);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.read_caches();
        Ok(state)
    }
}

impl State {
    fn publish(&mut self, source: u64, reading: u64, connections: Vec<ConnectionMetrics>) {
        let Self { totals, sources, .. } = self;
        let Some(published) = sources.get_mut(&source) else { return };
        for connection in &connections {
            published.count(connection, totals);
        }
        published.connections = connections.into_iter().map(|each| (each.id, each)).collect();
        published.reading = reading;
        published.at = Instant::now();
    }

    fn publish_one(&mut self, source: u64, connection: ConnectionMetrics) {
        let Self { totals, sources, .. } = self;
        let Some(published) = sources.get_mut(&source) else { return };
        published.count(&connection, totals);
        published.connections.insert(connection.id, connection);
    }

    /// Moves what an earlier source has published to another source.
    fn take_over(&mut self, source: u64, earlier: u64) {
        let Some(earlier) = self.sources.get_mut(&earlier) else { return };
        let connections = std::mem::take(&mut earlier.connections);
        if let Some(published) = self.sources.get_mut(&source) {
            published.connections.extend(connections);
        }
    }

    fn read_caches(&mut self) {
        let Self { totals, caches, .. } = self;
        caches.retain_mut(|WatchedCache { name, read, last }| {
            let now = read();
            if let Some(now) = now {
                totals.add_cache(name, now, *last);
                *last = now;
            }
            now.is_some()
        });
    }

    fn collect(&self, now: Instant) -> Collected {
        let mut collected = Collected::default();
        for Published { name, at, connections, .. } in self.sources.values() {
            collected.age(name, now.saturating_duration_since(*at));
            connections.values().for_each(|connection| collected.connection(name, connection));
        }
        self.totals.rails.iter().for_each(|(key, totals)| collected.rail(key, totals));
        self.totals.caches.iter().for_each(|(name, counts)| collected.cache(name, *counts));
        for WatchedCache { name, last, .. } in &self.caches {
            collected.cache_size(name, *last);
        }
        collected.process();
        collected
    }
}

/// The owner's side of the metrics of its connections. The owner is the thread that polls them: it
/// publishes snapshots when a reader asks for them. Dropping the source ends the connections; what
/// they have counted until the last snapshot stays in the totals.
///
/// ```
/// use polyrail::endpoint::{EndpointBuilder, connect_endpoints};
/// use polyrail::metrics::{Format, Metrics};
/// use polyrail::nic::{DeviceConfig, Fabric};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let fabric = Fabric::threaded();
/// # let device = |name| fabric.create_device(DeviceConfig::named(name)).alloc_pd();
/// let mut sender = EndpointBuilder::new().build(&[&device("here")?])?;
/// let mut receiver = EndpointBuilder::new().build(&[&device("there")?])?;
/// connect_endpoints(&mut sender, &mut receiver)?;
///
/// let metrics = Metrics::new("example");
/// let mut source = metrics.source("transfers");
/// source.publish(vec![sender.metrics()]); // what a reader gets if the next polls are late
/// let reader = std::thread::spawn(move || metrics.text(Format::OpenMetrics));
/// while !reader.is_finished() {
///     for done in sender.poll(16).completions {
///         println!("{done:?}");
///     }
///     source.publish_if_wanted(|| vec![sender.metrics()]); // between polls: an atomic load
/// }
/// let text = reader.join().expect("it does not panic")?;
/// assert!(text.contains("polyrail_connections{component=\"example\",name=\"transfers\""));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Source {
    shared: Arc<Shared>,
    /// `None` in a fork of the process, which has no metrics.
    number: Option<u64>,
    /// The number of readings that the last snapshot is for.
    reading: u64,
}

impl Source {
    /// Returns whether a reader has asked for new snapshots since the last ones: an atomic load.
    #[inline]
    pub fn is_wanted(&self) -> bool {
        self.shared.wanted.load(Ordering::Relaxed) != self.reading
    }

    /// Publishes snapshots of all connections of the owner, if a reader has asked for them. Call it
    /// every few polls.
    #[inline]
    pub fn publish_if_wanted(&mut self, connections: impl FnOnce() -> Vec<ConnectionMetrics>) {
        let reading = self.shared.wanted.load(Ordering::Relaxed);
        if reading != self.reading {
            self.publish_for(reading, connections());
        }
    }

    /// Publishes snapshots of all connections of the owner, for all readers so far: at its end, or
    /// before it stops to poll for long. Does nothing in a fork of the process.
    pub fn publish(&mut self, connections: Vec<ConnectionMetrics>) {
        self.publish_for(self.shared.wanted.load(Ordering::Relaxed), connections);
    }

    /// Publishes a snapshot of one connection of the owner, for example before it is removed. The
    /// other connections keep their last snapshots, and readers still wait for all. The next
    /// [`publish`](Self::publish) without the connection ends it. Does nothing in a fork of the
    /// process.
    pub fn publish_one(&mut self, connection: ConnectionMetrics) {
        if let (Some(number), Ok(mut state)) = (self.number, self.shared.lock()) {
            state.publish_one(number, connection);
        }
    }

    /// Replaces an earlier source of the same connections, and ends it. What the earlier source has
    /// published stays under its name and is not counted again, so let it publish for the last time
    /// before. If the earlier source belongs to other [`Metrics`], the new source counts everything
    /// from the beginning of the connections.
    pub fn after(&mut self, earlier: Self) {
        if Arc::ptr_eq(&self.shared, &earlier.shared)
            && let (Some(number), Some(earlier), Ok(mut state)) =
                (self.number, earlier.number, self.shared.lock())
        {
            state.take_over(number, earlier);
        }
    }

    /// Sets what wakes the owner, if it may sleep: otherwise a reader waits for up to 100 ms, and
    /// reads what the owner published last.
    pub fn set_waker(&mut self, waker: &Waker) {
        if let (Some(number), Ok(mut state)) = (self.number, self.shared.lock())
            && let Some(published) = state.sources.get_mut(&number)
        {
            published.waker = Some(waker.clone());
        }
    }

    #[cold]
    fn publish_for(&mut self, reading: u64, connections: Vec<ConnectionMetrics>) {
        self.reading = reading;
        let (Some(number), Ok(mut state)) = (self.number, self.shared.lock()) else { return };
        state.publish(number, reading, connections);
        drop(state);
        self.shared.published.notify_all();
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        if let (Some(number), Ok(mut state)) = (self.number, self.shared.lock()) {
            state.sources.remove(&number);
            let file = state.sources.is_empty().then(|| state.file.upgrade()).flatten();
            drop(state);
            self.shared.published.notify_all();
            if let Some(file) = file {
                // The exporter reports errors of its own writes.
                _ = Metrics(Arc::clone(&self.shared)).write_to(&file);
            }
        }
    }
}

#[cfg(test)]
mod rt_tests;
