//! What happens to connections, told to a function of the program's: what programs in Rust get by the crate `tracing`.

use crate::call::call;
use crate::code::Code;
use crate::error::{Failure, Refusal, refuse};
use crate::types::{LogLevel, Logger};
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::fmt::{self, Write};
use std::sync::{Mutex, PoisonError, RwLock};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::{Interest, set_global_default};
use tracing::{Event, Level, Metadata, Subscriber};

/// Who is told, and how much.
struct Told {
    most: u32,
    logger: unsafe extern "C" fn(*mut c_void, u32, *const std::ffi::c_char),
    context: *mut c_void,
}

// SAFETY: whoever gave the function and its context promised that any thread may call it.
unsafe impl Send for Told {}
// SAFETY: the same.
unsafe impl Sync for Told {}

/// Read by whoever calls the logger, for as long as that takes.
static TOLD: RwLock<Option<Told>> = RwLock::new(None);

/// Whether `tracing` knows of [`ToLogger`], which cannot be undone. Locked while that, or who is told, changes.
static SUBSCRIBED: Mutex<bool> = Mutex::new(false);

thread_local! {
    /// Whether this thread is in the logger.
    static IN_LOGGER: Cell<bool> = const { Cell::new(false) };
}

/// From now on what happens to connections of this process is told to `logger`, with `context`, as far as it is of
/// `level` (a polyrail_log_level) or a lower one: that they are made, that rails fail and come back, that links break, why
/// connections end. NULL: nobody is told, as at the beginning. Once this returns, no thread is in an earlier `logger`.
/// POLYRAIL_CODE_STATE: it was called by `logger`, or, in a program with Rust of its own, something else is told by
/// `tracing` already.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_log(level: u32, logger: Logger, context: *mut c_void) -> Code {
    call(|| {
        if level > LogLevel::Debug as u32 {
            return refuse(Code::Argument, format_args!("there is no log level {level}"));
        }
        if IN_LOGGER.get() {
            return refuse(Code::State, "called by the logger, which it would wait for");
        }
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

fn subscribe() -> Result<(), Refusal> {
    let failed = |_| Failure::new(Code::State, "something else in this process logs what happens");
    Ok(set_global_default(ToLogger).map_err(failed)?)
}

/// Of `tracing`: events of the library become calls of the logger. Spans say nothing that events do not.
struct ToLogger;

impl Subscriber for ToLogger {
    /// Who is told changes.
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        // What the logger's own calls of the library would have it told is not: this thread reads already.
        if IN_LOGGER.get() {
            return false;
        }
        let told = TOLD.read().unwrap_or_else(PoisonError::into_inner);
        metadata.is_event()
            && told.as_ref().is_some_and(|told| number(*metadata.level()) <= told.most)
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
    if let Some(told) = TOLD.read().unwrap_or_else(PoisonError::into_inner).as_ref() {
        // A 0 within would end them early.
        let words = (line.words + &line.fields).replace('\0', "\u{fffd}");
        let words = CString::new(words).unwrap_or_default();
        // SAFETY: whoever gave it promised that it may be called so.
        unsafe { (told.logger)(told.context, level, words.as_ptr()) };
    }
    IN_LOGGER.set(false);
}

/// What an event says: its words, then each field as ` name=value`.
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
