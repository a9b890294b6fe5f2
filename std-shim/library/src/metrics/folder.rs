//! A text file that is always whole.

use polyrail_process::Forked;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A file that is replaced by a new one at each write, so that no reader sees a part.
#[derive(Debug)]
pub(super) struct TextFile {
    path: PathBuf,
    /// Written first, and renamed. Collectors do not read it: its name does not end with `.prom`.
    part: PathBuf,
    /// Locked while the file is written.
    writing: Mutex<()>,
}

impl TextFile {
    /// The file of a component of this process, `polyrail-COMPONENT-PID.prom`.
    pub(super) fn new(folder: &Path, component: &str) -> Self {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let component: String =
            component.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        let name = format!("polyrail-{component}-{}", std::process::id());
        Self {
            path: folder.join(format!("{name}.prom")),
            part: folder.join(format!(".{name}.part")),
            writing: Mutex::new(()),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the text that `read` returns. No other thread writes between the two.
    ///
    /// # Errors
    ///
    /// There is no text, or the file cannot be written; the earlier one stays as it was.
    pub(super) fn write(&self, read: impl FnOnce() -> Result<String, Forked>) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let text = read().map_err(io::Error::other)?;
        let written = self.write_part(&text).and_then(|()| fs::rename(&self.part, &self.path));
        if written.is_err() {
            _ = fs::remove_file(&self.part);
        }
        written
    }

    fn write_part(&self, text: &str) -> io::Result<()> {
        // A file that is there is of a dead process with the same number, or a link that somebody
        // else made in a folder that all may write to: it is not opened.
        match fs::remove_file(&self.part) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).open(&self.part)?;
        file.write_all(text.as_bytes())
    }
}
