//! Log lines for a function of the program: the events that programs in Rust get through the crate
//! `tracing`.

use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::types::{LogLevel, Logger};
use polyrail_process::Process;
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::fmt::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// The registered logger, with its context and level.
struct Told {
    most: u32,
    logger: unsafe extern "C" fn(*mut c_void, u32, *const std::ffi::c_char),
    context: *mut c_void,
}

// SAFETY: the caller of `polyrail_log` guarantees that any thread may call the function.
unsafe impl Send for Told {}
// SAFETY: the same.
unsafe impl Sync for Told {}

/// Locked for reading during every call of the logger, so that replacing the logger waits for those
/// calls.
static TOLD: RwLock<Option<Told>> = RwLock::new(None);

/// Whether [`ToLogger`] is the subscriber of `tracing`, which cannot be undone. Locked while the
/// subscriber or the logger changes.
static SUBSCRIBED: Mutex<bool> = Mutex::new(false);

/// The process that first called [`polyrail_log`]; 0 before that.
static OWNER: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Whether this thread is in the logger.
    static IN_LOGGER: Cell<bool> = const { Cell::new(false) };
}

/// Sets the function that receives log lines about the connections of this process: when they are
/// made, when rails fail and return, when links break, and why connections end. `logger` receives
/// lines of `level` (a polyrail_log_level) and lower levels, together with `context`. NULL, the
/// initial value: nothing is logged. After this returns, no thread is in an earlier `logger`.
/// POLYRAIL_CODE_STATE: `logger` itself made this call, or Rust code of the program has already set
/// another subscriber of `tracing`. POLYRAIL_CODE_FORKED: the parent of this process has called
/// this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_log(level: u32, logger: Logger, context: *mut c_void) -> Code {
    call(|| {
        if level > LogLevel::Debug as u32 {
            return refuse(Code::Argument, format_args!("unknown log level {level}"));
        }
        if IN_LOGGER.get() {
            return refuse(
                Code::State,
                "called by the logger itself, which the call would wait for",
            );
        }
        // A thread of the parent may have been in the logger, and would never leave it here.
        let owner = Process::from_bits(OWNER.load(Ordering::Relaxed));
        if owner.id() != 0 {
            owner.check().map_err(|forked| Failure::of(Code::Forked, &forked))?;
        }
        OWNER.store(Process::current().to_bits(), Ordering::Relaxed);
        let told = logger.map(|logger| Told { most: level, logger, context });
        let mut subscribed = SUBSCRIBED.lock().unwrap_or_else(PoisonError::into_inner);
        if told.is_some() && !*subscribed {
            subscribe()?;
            *subscribed = true;
        }
        *TOLD.write().unwrap_or_else(PoisonError::into_inner) = told;
        Ok(())
    })
}

/// Locks the logger for a call of it.
fn told() -> Option<RwLockReadGuard<'static, Option<Told>>> {
    if Process::from_bits(OWNER.load(Ordering::Relaxed)).is_current() {
        return Some(TOLD.read().unwrap_or_else(PoisonError::into_inner));
    }
    // A thread of the parent may have been replacing the logger, and would never finish here.
    match TOLD.try_read() {
        Ok(told) => Some(told),
        Err(TryLockError::Poisoned(told)) => Some(told.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

fn subscribe() -> Result<(), Refusal> {
    let failed =
        |_| Failure::new(Code::State, "this process already has another subscriber of `tracing`");
    Ok(set_global_default(ToLogger).map_err(failed)?)
}

/// The subscriber of `tracing`, which turns events of the library into calls of the logger. Spans
/// are ignored, because events contain everything that they do.
struct ToLogger;

impl Subscriber for ToLogger {
    /// The logger can change later.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // Events of calls that the logger itself makes are dropped: this thread holds the read lock
        // already.
        if IN_LOGGER.get() {
            return false;
        }
        let told = told();
        let told = told.as_ref().and_then(|told| told.as_ref());
        metadata.is_event() && told.is_some_and(|told| number(*metadata.level()) <= told.most)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        tell(number(*event.metadata().level()), line);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn number(level: Level) -> u32 {
    let level = match level {
        Level::ERROR => LogLevel::Error,
        Level::WARN => LogLevel::Warn,
        Level::INFO => LogLevel::Info,
        _ => LogLevel::Debug,
    };
    level as u32
}

fn tell(level: u32, line: Line) {
    IN_LOGGER.set(true);
    if let Some(told) = told().as_ref().and_then(|told| told.as_ref()) {
        // A 0 within would end them early.
        let words = (line.words + &line.fields).replace('\0', "\u{fffd}");
        let words = CString::new(words).unwrap_or_default();
        // SAFETY: the caller of `polyrail_log` guarantees that the function may be called like
        // this.
        unsafe { (told.logger)(told.context, level, words.as_ptr()) };
    }
    IN_LOGGER.set(false);
}

/// The text of an event: its message, then each field as ` name=value`.
#[derive(Default)]
struct Line {
    words: String,
    fields: String,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        // Writing to a text does not fail.
        _ = match field.name() {
            "message" => write!(self.words, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}
