//! Drives every table of the built plugin as NCCL does: two ranks in this process, over NICs in
//! memory.
//!
//!     cargo test -p polyrail-nccl --features test-hooks --test rt_plugin [-- NAME]
//!
//! Each test runs in its own process, because settings are environment variables, and a test that
//! hangs fails. With TELL in the environment, what the plugin logs is shown.

mod elf;
mod faults;
mod flushes;
#[path = "../../../process/tests/in_fork/mod.rs"]
mod in_fork;
mod leaks;
mod misuse;
mod nccl;
mod nulls;
mod over_tcp;
mod paths;
mod plugin_thread;
mod random;
mod ranks;
mod reconnect;
mod settings;
mod sockets;
mod table;
mod traffic;
mod works;

use libtest_mimic::{Arguments, Failed, Trial};
use std::env;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};
use table::{Pointer, Table};

/// Every version, the newest first, as NCCL looks for them.
pub(crate) const VERSIONS: [u32; 5] = [12, 11, 10, 9, 8];

/// How long a test may take. What hangs is named before, by the test itself.
const LIMIT: Duration = Duration::from_secs(900);

/// Which test a process is to run.
const CHILD: &str = "PLUGIN_TEST";

/// A test: its name, the settings that it runs with, and what it does.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) settings: &'static [(&'static str, &'static str)],
    pub(crate) run: fn(&Plugin),
}

/// The tests of a module: each is the function of its name, with the settings that it runs with.
macro_rules! cases {
    ($($name:ident $(: $settings:expr)?),* $(,)?) => {
        pub(crate) const CASES: &[$crate::Case] = &[$($crate::Case {
            name: stringify!($name),
            settings: cases!(@settings $($settings)?),
            run: $name,
        }),*];
    };
    (@settings) => {
        &[]
    };
    (@settings $settings:expr) => {
        $settings
    };
}

pub(crate) use cases;

/// The plugin, loaded.
pub(crate) struct Plugin {
    library: libloading::Library,
}

impl Plugin {
    /// Loads what cargo built for this test.
    fn load() -> Self {
        // SAFETY: it has nothing that runs when it is loaded.
        let library = unsafe { libloading::Library::new(Self::path()) };
        Self {
            library: library.unwrap_or_else(|error| panic!("{}: {error}", Self::path().display())),
        }
    }

    pub(crate) fn path() -> PathBuf {
        let here = env::current_exe().unwrap();
        here.parent().unwrap().join("libnccl_net_polyrail.so")
    }

    pub(crate) fn table(&self, version: u32) -> Table {
        let name = format!("ncclNetPlugin_v{version}");
        // SAFETY: the tables are what the headers say.
        let table = unsafe { self.library.get::<*const c_void>(name.as_bytes()) };
        let table = table.unwrap_or_else(|error| panic!("{name}: {error}"));
        // SAFETY: the library stays loaded.
        unsafe { Table::new(table.into_raw().into_raw(), version) }
    }

    /// Something happens to a software NIC: 0 its link goes down, 1 it comes up, 2 the device is
    /// gone, 3 it loses acknowledgements, 4 it does not any more, 7 it drops what arrives, 8 it
    /// finds no path three times, 9 it never finds one, 10 it finds paths again, 11 it searches for
    /// paths for 4 s, 12 it finds them at once.
    pub(crate) fn fault(&self, device: &str, after_bytes: u64, fault: c_int) {
        type Fault = unsafe extern "C" fn(*const c_char, u64, c_int) -> c_int;
        let name = CString::new(device).unwrap();
        // SAFETY: that is its type.
        let inject = unsafe { self.library.get::<Fault>(b"polyrail_nccl_test_fault") }.unwrap();
        // SAFETY: a text of C.
        assert_eq!(unsafe { inject(name.as_ptr(), after_bytes, fault) }, 0, "{device}");
    }

    pub(crate) fn panic(&self, connection: Pointer) -> c_int {
        type Panic = unsafe extern "C" fn(Pointer) -> c_int;
        // SAFETY: that is its type.
        let panic = unsafe { self.library.get::<Panic>(b"polyrail_nccl_test_panic") }.unwrap();
        // SAFETY: any handle will do.
        unsafe { panic(connection) }
    }
}

fn all_cases() -> Vec<&'static Case> {
    [
        works::CASES,
        flushes::CASES,
        faults::CASES,
        paths::CASES,
        misuse::CASES,
        leaks::CASES,
        plugin_thread::CASES,
        reconnect::CASES,
        settings::CASES,
        nccl::CASES,
        over_tcp::CASES,
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn main() -> ExitCode {
    if let Ok(name) = env::var(CHILD) {
        let case = all_cases().into_iter().find(|case| case.name == name).unwrap();
        (case.run)(&Plugin::load());
        return ExitCode::SUCCESS;
    }
    let trial = |case: &'static Case| Trial::test(case.name, || run(case).map_err(Failed::from));
    let trials = all_cases().into_iter().map(trial).collect();
    // One at a time: each has threads that poll.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Runs a test in its own process.
fn run(case: &Case) -> Result<(), String> {
    let mut command = Command::new(env::current_exe().unwrap());
    for (name, _) in
        env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("POLYRAIL_"))
    {
        command.env_remove(name);
    }
    command.env("POLYRAIL_BACKEND", "software").env("POLYRAIL_DEVICES", "s0,s1,s2,s3");
    command.env("POLYRAIL_INTERFACE", "lo");
    command.envs(case.settings.iter().copied()).env(CHILD, case.name);
    let mut child = command.stdin(Stdio::null()).spawn().map_err(|error| error.to_string())?;
    let begin = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(status.to_string()),
            Ok(None) if begin.elapsed() < LIMIT => std::thread::sleep(Duration::from_millis(10)),
            other => {
                _ = child.kill();
                _ = child.wait();
                return Err(format!("{other:?} after {LIMIT:?}"));
            }
        }
    }
}

/// Text of C, for people.
pub(crate) fn text(text: &CStr) -> &str {
    text.to_str().unwrap()
}
