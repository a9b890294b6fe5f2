//! Network namespaces as hosts. They take iproute2 and root.

use super::{PROGRAM, Place};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Network namespaces, which end with this.
pub struct Namespaces<const N: usize>(pub [String; N]);

/// Runs `ip ARGUMENTS`, and returns whether it succeeds.
pub fn ip(line: &str) -> bool {
    let output = Command::new("ip").args(line.split_whitespace()).output();
    output.is_ok_and(|output| output.status.success())
}

impl<const N: usize> Namespaces<N> {
    /// `None`: the system has no `ip`, or does not permit it.
    pub fn new() -> Option<Self> {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let set = MADE.fetch_add(1, Ordering::Relaxed);
        let name = |host| format!("polyrail-{}-{set}-{host}", std::process::id());
        let hosts = Self(std::array::from_fn(name));
        hosts.0.iter().all(|name| ip(&format!("netns add {name}"))).then_some(hosts)
    }

    /// Returns a program as a command on a host.
    pub fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.0[host], program]);
        command
    }

    /// Returns the program as a command on a host.
    pub fn on(&self, host: usize, place: &Place) -> Command {
        let mut command = self.command(host, PROGRAM);
        command.current_dir(&place.directory);
        command
    }
}

impl<const N: usize> Drop for Namespaces<N> {
    fn drop(&mut self) {
        for name in &self.0 {
            _ = Command::new("ip").args(["netns", "del", name]).stderr(Stdio::null()).status();
        }
    }
}
