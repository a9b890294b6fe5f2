//! Writes the bindings of the installed header into `polyrail-rdma-sys`.

use polyrail_verbs_header::{BINDINGS, DIRECTORY, INSTALLED, RELEASE};
use std::path::Path;
use std::process::ExitCode;
use std::{fs, io};

fn main() -> ExitCode {
    if INSTALLED != RELEASE {
        eprintln!(
            "the installed header is of libibverbs {INSTALLED}; the bindings are of {RELEASE}"
        );
        return ExitCode::FAILURE;
    }
    match write() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cannot write the bindings into {DIRECTORY}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write() -> io::Result<()> {
    for (file, bindings) in BINDINGS {
        fs::write(Path::new(DIRECTORY).join(file), bindings)?;
    }
    Ok(())
}
