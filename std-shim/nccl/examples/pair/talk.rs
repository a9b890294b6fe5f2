//! The two processes: the first starts the second, and they exchange lines of text.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};

/// Which of the two a process is.
const END: &str = "PAIR_END";

/// The pipes between the two processes.
pub(crate) struct Talk {
    /// The second process; only in the first process.
    second: Option<Child>,
    is_killed: bool,
    to: Box<dyn Write>,
    from: Box<dyn BufRead>,
}

impl Talk {
    /// Opens the pipes; the first process starts the second.
    pub(crate) fn new() -> Result<Self, String> {
        if env::var(END).as_deref() == Ok("there") {
            let (to, from) = (Box::new(std::io::stdout()), Box::new(std::io::stdin().lock()));
            return Ok(Self { second: None, is_killed: false, to, from });
        }
        let mut second = second().map_err(|error| format!("the other process: {error}"))?;
        let to = Box::new(second.stdin.take().ok_or("no pipe")?);
        let from = Box::new(BufReader::new(second.stdout.take().ok_or("no pipe")?));
        Ok(Self { second: Some(second), is_killed: false, to, from })
    }

    pub(crate) const fn is_first(&self) -> bool {
        self.second.is_some()
    }

    /// Sends a line, and returns the line that the other process sent.
    pub(crate) fn swap(&mut self, line: &str) -> Result<String, String> {
        let mut theirs = String::new();
        let swapped = writeln!(self.to, "{line}").and_then(|()| self.to.flush());
        swapped
            .and_then(|()| self.from.read_line(&mut theirs))
            .map_err(|error| format!("the other process: {error}"))?;
        let told = theirs.strip_suffix('\n');
        told.map(str::to_owned).ok_or("the other process has ended".into())
    }

    /// Kills the second process, if this is the first.
    pub(crate) fn kill_other(&mut self) -> Result<(), String> {
        let Some(second) = &mut self.second else { return Ok(()) };
        self.is_killed = true;
        second.kill().map_err(|error| format!("the other process: {error}"))
    }

    /// Waits for the second process.
    pub(crate) fn finish(self) -> Result<(), String> {
        let Some(mut second) = self.second else { return Ok(()) };
        let ended = second.wait().map_err(|error| error.to_string())?;
        let is_as_it_should = ended.success() != self.is_killed;
        if is_as_it_should { Ok(()) } else { Err(format!("the other process: {ended}")) }
    }
}

/// Starts the second process, with its environment.
fn second() -> std::io::Result<Child> {
    let mut command = Command::new(env::current_exe()?);
    command.args(env::args().skip(1)).env(END, "there");
    for (name, value) in env::vars() {
        if let Some(name) = name.strip_prefix("THERE_") {
            command.env(name, value);
        } else if let Some(name) = name.strip_prefix("HERE_") {
            // SAFETY: there is one thread.
            unsafe { env::set_var(name, value) };
        }
    }
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()
}
