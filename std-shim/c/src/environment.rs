//! Settings of programs in the environment.

use crate::arguments::{needed_text, out};
use crate::call::call;
use crate::code::Code;
use polyrail::service_variables::is_service_variable;
use std::ffi::c_char;

/// Stores in `is_service` 1 if Kubernetes made the environment variable for a Service, otherwise 0.
/// A Service named `polyrail` has variables such as POLYRAIL_PORT=tcp://10.96.0.7:7471, which begin
/// like settings of plugins.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn polyrail_is_service_variable(
    name: *const c_char,
    value: *const c_char,
    is_service: *mut u32,
) -> Code {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let place = unsafe { out(is_service, "is_service") }?;
        // SAFETY: guaranteed by the caller.
        let name = unsafe { needed_text(name, "name") }?;
        // SAFETY: guaranteed by the caller.
        let value = unsafe { needed_text(value, "value") }?;
        place.write(is_service_variable(name, value).into());
        Ok(())
    })
}
