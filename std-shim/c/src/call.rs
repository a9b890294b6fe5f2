//! What every call goes through: no panic leaves it, and its error is kept.

use crate::code::Code;
use crate::error::{Failure, Refusal, keep};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Carries out a call. Objects that it was using when it panicked are poisoned by then.
#[inline]
pub(crate) fn call(carry_out: impl FnOnce() -> Result<(), Refusal>) -> Code {
    match catch_unwind(AssertUnwindSafe(carry_out)) {
        Ok(Ok(())) => Code::Ok,
        Ok(Err(Refusal::NotNow)) => Code::NotNow,
        Ok(Err(Refusal::Failure(failure))) => keep(failure),
        Err(payload) => panicked(payload),
    }
}

#[cold]
fn panicked(payload: Box<dyn Any + Send>) -> Code {
    let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    let text = text.unwrap_or_else(|| "no message".to_owned());
    // Whatever it is, dropping it may panic again.
    std::mem::forget(payload);
    keep(Failure::new(Code::Panic, format_args!("internal error of this library: {text}")))
}
