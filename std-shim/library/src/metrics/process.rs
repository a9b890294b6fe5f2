//! Metrics of the whole process, if its environment asks for them.

use super::exporter::Exporter;
use super::registry::Metrics;
use super::target::Target;
use polyrail_process::PerProcess;
use std::error::Error;
use std::ffi::{OsStr, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// The environment variable that says where metrics of a process go.
pub const VARIABLE: &str = "POLYRAIL_METRICS";

/// The metrics of the process and the thread that exports them, until the process ends.
type Exported = Option<(Metrics, Exporter)>;

// `PerProcess`, because a fork has no such thread; `OnceLock`, because two threads that need it at
// the same time must not both bind the address.
static EXPORTED: PerProcess<OnceLock<Exported>> = PerProcess::new();

/// Returns the metrics of this process, which are exported from the first call on, if
/// `POLYRAIL_METRICS` is an address or a folder; `None` if the variable is missing or empty. The
/// first call decides about `component`. If metrics cannot be exported, the first call passes the
/// reason to `refused`, and all calls return `None`.
///
/// This is for libraries that have no settings in code, such as plugins. Each library that contains
/// this crate has metrics of its own, and needs a `component` of its own.
pub fn of_process(
    component: &str,
    refused: impl FnOnce(&(dyn Error + 'static)),
) -> Option<Metrics> {
    let exported = EXPORTED.get_or_make(OnceLock::new).get_or_init(|| {
        let value = std::env::var_os(VARIABLE).filter(|value| !value.is_empty())?;
        match start(component, &value) {
            Ok(exported) => Some(exported),
            Err(error) => {
                refused(&*error);
                None
            }
        }
    });
    exported.as_ref().map(|(metrics, _)| metrics.clone())
}

fn start(component: &str, value: &OsStr) -> Result<(Metrics, Exporter), Box<dyn Error>> {
    let target = match value.to_str() {
        Some(text) => text.parse()?,
        // No address has such bytes.
        None => Target::Folder(value.into()),
    };
    let metrics = Metrics::new(component);
    stay_loaded();
    let exporter = Exporter::start(metrics.clone(), &target)?;
    Ok((metrics, exporter))
}

/// Keeps the library that contains this code loaded, because its thread never ends: a program may
/// unload a plugin. Does nothing in a program that contains the code itself.
fn stay_loaded() {
    let here = stay_loaded as *const c_void;
    let mut found = MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: `dladdr` accepts any address, and there is room for what it finds.
    if unsafe { libc::dladdr(here, found.as_mut_ptr()) } == 0 {
        return;
    }
    // SAFETY: `dladdr` found the library, and has written all of it.
    let name = unsafe { found.assume_init() }.dli_fname;
    if !name.is_null() {
        let flags = libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE;
        // SAFETY: a text that lives as long as the library, which is loaded, so that nothing of it
        // runs here. The handle is not needed: the flag stays without it.
        unsafe { libc::dlopen(name, flags) };
    }
}
