//! Reading a whole file with a limit, for tables that are loaded before they serve; not on a core.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// The bytes of the file at `path`.
///
/// # Errors
/// It cannot be read, or it is longer than `bytes_max`.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = File::open(path)?.take(bytes_max.saturating_add(1)).read_to_end(&mut bytes)?;
    if read as u64 > bytes_max {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            format!("longer than {bytes_max} bytes"),
        ));
    }
    Ok(bytes)
}

/// The same, or nothing when there is no such file.
///
/// # Errors
/// As for [`read`], but for a file that is not there.
pub fn read_if_any(path: &Path, bytes_max: u64) -> io::Result<Option<Vec<u8>>> {
    match read(path, bytes_max) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        assert_eq!(read(&path, 4).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(read_if_any(&path, 4).unwrap(), None);
        std::fs::write(&path, "four").unwrap();
        assert_eq!(read(&path, 4).unwrap(), b"four");
        assert_eq!(read_if_any(&path, 4).unwrap().unwrap(), b"four");
        assert_eq!(read_if_any(&path, 3).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
    }
}
