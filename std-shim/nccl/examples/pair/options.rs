//! Command line options.

use std::ffi::c_int;
use std::path::PathBuf;
use std::time::Duration;

const USAGE: &str = "pair PLUGIN [--devices N] [--bytes N] [--rounds N] \
    [--messages N | --until FILE | --ends-within MS | --outlives-within MS | --tables N | --describe N,N]";

pub(crate) struct Options {
    pub(crate) plugin: String,
    pub(crate) devices: c_int,
    /// Length of a message in bytes.
    pub(crate) bytes: usize,
    pub(crate) task: Task,
}

pub(crate) enum Task {
    Measure {
        rounds: usize,
        messages: usize,
    },
    Until(PathBuf),
    EndsWithin(Duration),
    OutlivesWithin(Duration),
    /// The number of messages for each version of the table.
    Tables(usize),
    /// The NICs to merge.
    Describe(Vec<c_int>),
}

impl Options {
    pub(crate) fn from_arguments() -> Result<Self, String> {
        let mut arguments = std::env::args().skip(1);
        let plugin = arguments.next().ok_or(USAGE)?;
        let (mut devices, mut bytes, mut rounds, mut messages) = (1, 1 << 20, 1000, 200);
        let mut task = None;
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or(format!("{name} needs a value"))?;
            let number = || {
                let number = value.parse::<usize>().ok().filter(|number| *number > 0);
                number.ok_or(format!("{name} needs a number, not {value}"))
            };
            let time = || number().map(|ms| Duration::from_millis(ms as u64));
            match name.as_str() {
                "--devices" => devices = number()? as c_int,
                "--bytes" => bytes = number()?,
                "--rounds" => rounds = number()?,
                "--messages" => messages = number()?,
                "--until" => task = Some(Task::Until(value.into())),
                "--ends-within" => task = Some(Task::EndsWithin(time()?)),
                "--outlives-within" => task = Some(Task::OutlivesWithin(time()?)),
                "--tables" => task = Some(Task::Tables(number()?)),
                "--describe" => {
                    let nics: Result<_, _> = value.split(',').map(str::parse).collect();
                    let nics = nics.map_err(|_| format!("{name} needs numbers, not {value}"))?;
                    task = Some(Task::Describe(nics));
                }
                _ => return Err(format!("unknown option {name}; usage: {USAGE}")),
            }
        }
        let task = task.unwrap_or(Task::Measure { rounds, messages });
        Ok(Self { plugin, devices, bytes, task })
    }
}
