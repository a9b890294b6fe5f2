//! Runs contenders under callgrind and reads its counts.
//!
//! For each contender the program runs itself again under valgrind, so that no contender finds a
//! heap that another one has left. There it warms up, then does its bursts within
//! [`collected`](crate::contender::collected), to which callgrind limits its counting. What
//! callgrind writes is kept, in files named after row and contender, for `callgrind_annotate`.

use super::Counts;
use crate::rows::Row;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

/// Bursts before those that are counted: rings have wrapped, and vectors have grown.
const WARM_UP: u32 = 32;

/// Bursts that are counted.
const BURSTS: u32 = 512;

/// Why counting failed.
#[derive(Debug, thiserror::Error)]
pub enum CountError {
    /// Valgrind is missing or cannot be started.
    #[error("cannot run valgrind, which `benches/instructions.sh` installs")]
    NoValgrind(#[source] io::Error),
    /// It ran and failed.
    #[error("callgrind failed: {0}")]
    Callgrind(String),
    /// The output of callgrind cannot be read.
    #[error("cannot read what callgrind wrote")]
    Output(#[from] io::Error),
    /// Its output is not what was expected.
    #[error("{} does not contain the number of instructions", .0.display())]
    NoTotal(PathBuf),
}

/// Runs a contender, named as in [`Row::contenders`]; meant to run under callgrind.
pub fn run(row: &Row, name: &str) {
    for (_, make) in row.contenders().into_iter().filter(|(contender, _)| *contender == name) {
        let mut contender = make();
        contender.time(WARM_UP);
        contender.count(BURSTS);
    }
}

/// Counts the instructions of a row. The program, started with the arguments that `arguments`
/// returns for a row and a contender, has to [`run`] that contender.
///
/// # Errors
///
/// Valgrind is missing, fails, or writes unexpected output.
pub fn count(
    row: &Row,
    arguments: impl Fn(&'static str, &'static str) -> Vec<&'static str>,
) -> Result<Counts, CountError> {
    let program = env::current_exe()?;
    let directory = program.with_file_name("instructions.callgrind");
    fs::create_dir_all(&directory)?;
    let mut per_operation = [0.0; 3];
    for (count, (contender, _)) in per_operation.iter_mut().zip(row.contenders()) {
        let out_file = directory.join(format!("{}.{contender}", row.name));
        run_callgrind(&out_file, &program, &arguments(row.name, contender))?;
        let total = total(&fs::read_to_string(&out_file)?).ok_or(CountError::NoTotal(out_file))?;
        *count = rounded(total as f64 / f64::from(BURSTS) / row.operations as f64);
    }
    let [floor, baseline, engine] = per_operation;
    Ok(Counts { name: row.name.to_owned(), floor, baseline, engine })
}

fn run_callgrind(out_file: &Path, program: &Path, arguments: &[&str]) -> Result<(), CountError> {
    let mut out_option = OsString::from("--callgrind-out-file=");
    out_option.push(out_file);
    let mut command = Command::new("valgrind");
    command
        .args(["--tool=callgrind", "--quiet", "--toggle-collect=*contender*collected*"])
        .args([&out_option, program.as_os_str()])
        .args(arguments);
    let output = command.output().map_err(CountError::NoValgrind)?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(CountError::Callgrind(format!("{}, {message}", output.status)));
    }
    Ok(())
}

/// The number of instructions that callgrind's output gives, if it counted any.
fn total(output: &str) -> Option<u64> {
    let total = output.lines().find_map(|line| line.strip_prefix("totals: "))?;
    total.trim().parse().ok().filter(|total| *total > 0)
}

/// To two places: what is printed is what is compared.
fn rounded(count: f64) -> f64 {
    (count * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::total;

    #[test]
    fn the_total_is_read_from_the_last_lines() {
        let output = "version: 1\nevents: Ir\nsummary: 77\n\nfn=(1) one\n3 77\n\ntotals: 77\n";
        assert_eq!(total(output), Some(77));
    }

    #[test]
    fn a_missing_total_is_none_and_so_is_a_total_of_zero() {
        assert_eq!(total("version: 1\n"), None);
        assert_eq!(total("totals: 0\n"), None);
    }
}
