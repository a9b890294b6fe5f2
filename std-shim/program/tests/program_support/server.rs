//! A server process, and what its tests share.

use super::{PROGRAM, Place, stderr};
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// Long enough for any machine.
pub const LONG: Duration = Duration::from_secs(600);

/// A server process, which ends with this.
pub struct Server {
    pub child: Child,
    /// Lines that it printed on stderr.
    pub said: Arc<Mutex<Vec<String>>>,
}

impl Server {
    /// Runs `polyrail serve --listen 127.0.0.1:0 ARGUMENTS`.
    pub fn start(place: &Place, arguments: &[&str]) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments);
        Self::run(command.current_dir(&place.directory))
    }

    /// Runs a command until the server that it starts listens.
    pub fn run(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let said = Arc::<Mutex<Vec<String>>>::default();
        let lines = Arc::clone(&said);
        thread::spawn(move || {
            stderr.lines().map_while(Result::ok).for_each(|line| lines.lock().unwrap().push(line));
        });
        let server = Self { child, said };
        server.line("polyrail: listening at ");
        server
    }

    /// Waits for a line that has these words.
    pub fn line(&self, words: &str) -> String {
        let begin = Instant::now();
        loop {
            let said = self.said.lock().unwrap().clone();
            if let Some(line) = said.iter().find(|line| line.contains(words)) {
                return line.clone();
            }
            assert!(begin.elapsed() < LONG, "no {words:?} in {said:?}");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Returns the address that it listens at.
    pub fn address(&self) -> String {
        let line = self.line("polyrail: listening at ");
        line.split([' ', ',']).nth(3).unwrap().to_owned()
    }

    /// Returns the number of its open descriptors.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already if a test killed it.
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

#[track_caller]
pub fn assert_ok(output: &Output) {
    assert!(output.status.success(), "{}: {}", output.status, stderr(output));
}
