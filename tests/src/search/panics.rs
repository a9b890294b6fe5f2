//! The text of a panic.

use std::any::Any;
use std::cell::RefCell;

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Keeps the messages of panics, with their places, instead of printing them. For programs only:
/// the setting is process-wide.
pub fn capture_panics() {
    std::panic::set_hook(Box::new(|info| {
        let message = info.to_string();
        PANIC.with(|panic| *panic.borrow_mut() = Some(message));
    }));
}

/// The text of this thread's last panic, whose payload this is.
pub(crate) fn message(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let captured = PANIC.with(|panic| panic.borrow_mut().take());
    captured.unwrap_or_else(|| text.unwrap_or("a panic without words").to_owned())
}
