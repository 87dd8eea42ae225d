//! A directory for one input, in memory.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A directory that is removed at the end.
pub struct Directory(TempDir);

impl Directory {
    /// An empty one.
    pub fn new() -> Directory {
        // Else the disk would be what is measured.
        let memory = Path::new("/dev/shm");
        let made = if memory.is_dir() {
            tempfile::tempdir_in(memory)
        } else {
            tempfile::tempdir()
        };
        Directory(made.expect("a temporary directory"))
    }

    /// A path below it.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes a file, and makes its directory.
    pub fn write(&self, name: &str, content: &[u8]) -> String {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("below the directory")).expect("a directory");
        fs::write(&path, content).expect("a file");
        path.display().to_string()
    }
}
