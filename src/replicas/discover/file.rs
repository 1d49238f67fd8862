//! `discover = { file = "..." }`: looks at the file each second.
//!
//! A look is a read of some kilobytes off this thread, so that a hung file system holds up nobody.
//! Reading beats watching here: it works on every file system and through every way of replacing a
//! file (rename, symlink, mounted ConfigMap).

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Outlet;
use super::lines;
use crate::runtime::files;

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Thousands of replicas fit.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Follows the file until the task is dropped.
pub(super) async fn follow(path: String, mut outlet: Outlet) {
    let path = PathBuf::from(path);
    let mut before = String::new();
    loop {
        match look(&path).await {
            Ok(text) => {
                let same = text == before;
                // A last line without its end is believed when nobody goes on writing it.
                match lines::parse(&text) {
                    Ok(list) if same || lines::is_whole(&text) => outlet.list(list).await,
                    Ok(_) => {}
                    Err(what) => drop(outlet.fail(format!("{}: {what}", path.display()))),
                }
                before = text;
            }
            Err(what) => drop(outlet.fail(format!("{} cannot be read: {what}", path.display()))),
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn look(path: &Path) -> Result<String, String> {
    let path = path.to_owned();
    let read = tokio::task::spawn_blocking(move || files::read(&path, FILE_BYTES_MAX)).await;
    let bytes = read.map_err(|e| e.to_string())?.map_err(|e| e.to_string())?;
    String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())
}
