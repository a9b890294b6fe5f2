//! Two processes of this program that exchange messages through a network plugin of NCCL:
//! polyrail's, or ncclNetIb, which is part of NCCL.
//!
//!     pair PLUGIN [--devices N] [--bytes N] [--rounds N] [--messages N]
//!
//! measures half round trips of 8 bytes, and the goodput of messages of `--bytes` bytes, whose
//! contents are checked.
//!
//!     pair PLUGIN [--devices N] [--bytes N] --until FILE
//!     pair PLUGIN [--devices N] [--bytes N] --ends-within MS
//!     pair PLUGIN [--devices N] [--bytes N] --outlives-within MS
//!
//! send messages of all sizes up to `--bytes` bytes in both directions at once, and check each.
//! With `--until`, no call may fail, and the processes end once FILE exists. With `--ends-within`,
//! network links must fail permanently: every request in flight must end with ncclRemoteError
//! within MS milliseconds after the last successful request, and closing must succeed. With
//! `--outlives-within`, the first process kills the second, and must then end its requests in the
//! same way.
//!
//!     pair PLUGIN [--devices N] --tables N
//!
//! sends N messages of one to eight buffers in both directions, with each version of the plugin's
//! function table.
//!
//!     pair PLUGIN --describe N,N
//!
//! prints the properties of each device, and of these NICs merged into one device. All versions of
//! the table must return the same properties.
//!
//! PLUGIN is the path of a plugin, or `ncclNetIb:PATH` with the path of NCCL's library, as in its
//! Python wheel. Environment variables HERE_* are passed to the first process and THERE_* to the
//! second, without the prefix. Several devices are merged into one. If TELL is set in the
//! environment, all log messages of the plugin are printed, not only warnings.

#[path = "../../tests/rt_plugin/elf.rs"]
mod elf;
mod end;
mod flow;
mod measure;
mod options;
#[path = "../../tests/rt_plugin/table/mod.rs"]
#[allow(dead_code, reason = "tests call what is not needed here")]
mod table;
mod tables;
mod talk;

use end::End;
use options::{Options, Task};
use std::process::ExitCode;
use talk::Talk;

fn main() -> ExitCode {
    match Options::from_arguments().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("pair: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), String> {
    let mut talk = Talk::new()?;
    let end = |talk: &mut Talk| End::new(options, talk);
    let bytes = options.bytes;
    let report = match &options.task {
        Task::Measure { rounds, messages } => {
            let end = end(&mut talk)?;
            let measure = if talk.is_first() { measure::run } else { measure::answer };
            measure(end, bytes, *rounds, *messages)?
        }
        Task::Until(file) => flow::until(end(&mut talk)?, &mut talk, bytes, file)?,
        Task::EndsWithin(time) => flow::ends_within(end(&mut talk)?, &mut talk, bytes, *time)?,
        Task::OutlivesWithin(time) => flow::outlives(end(&mut talk)?, &mut talk, bytes, *time)?,
        Task::Tables(messages) => tables::run(options, &mut talk, *messages)?,
        Task::Describe(nics) => tables::describe(&options.plugin, nics)?,
    };
    if talk.is_first() {
        talk.finish()?;
        println!("{report}");
    }
    Ok(())
}
