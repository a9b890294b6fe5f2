//! Two processes that exchange messages through a network plugin of NCCL's: ours, or NCCL's own ncclNetIb, of the same
//! program.
//!
//!     pair PLUGIN [--devices N] [--bytes N] [--rounds N] [--messages N]
//!
//! measures half round trips of 8 bytes, and goodput of messages of so many bytes, which are checked.
//!
//!     pair PLUGIN [--devices N] [--bytes N] --until FILE
//!     pair PLUGIN [--devices N] [--bytes N] --ends-within MS
//!
//!     pair PLUGIN [--devices N] [--bytes N] --outlives-within MS
//!
//! send messages of all sizes up to so many bytes, both ways at once, and check each. With `--until` no call may fail,
//! and all ends well once there is such a file. With `--ends-within` links fail for good: then every request has to end
//! with ncclRemoteError, so soon after the last one that was done, and everything is closed. With `--outlives-within`
//! the second process is killed, and the same is so of the first.
//!
//!     pair PLUGIN [--devices N] --tables N
//!
//! sends N messages of one to eight buffers, both ways, by each version of the table.
//!
//!     pair PLUGIN --describe N,N
//!
//! tells what each device says of itself, and these NICs merged, which every version has to agree on.
//!
//! PLUGIN is the path of a plugin, or `ncclNetIb:PATH` of NCCL's library, as the wheel has it. The environment of each
//! process is HERE_* and THERE_* of this one's, without that prefix. Devices beyond one are merged. With TELL in the
//! environment everything that the plugin logs is told, not only warnings.

#[path = "../../tests/plugin/elf.rs"]
mod elf;
mod end;
mod flow;
mod measure;
mod options;
#[path = "../../tests/plugin/table/mod.rs"]
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
    let told = match &options.task {
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
        println!("{told}");
    }
    Ok(())
}
