//! The files that TLS clients are shown: read at the start, at a reload, and by `check`.
//!
//! On the control thread, never on a core.

use std::path::Path;

use crate::config::Config;
use crate::net::{Identity, IdentityError};
use crate::runtime::clock;

/// A certificate with its chain has some kilobytes; a bundle of roots some hundred.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// Reads what `[server]` `tls` names; `None`: clients speak without TLS.
///
/// # Errors
/// A file cannot be read, is not what it should be, or the key is not the certificate's.
pub fn load(config: &Config) -> Result<Option<Identity>, IdentityError> {
    let Some(tls) = &config.server.tls else { return Ok(None) };
    let cert = read("cert", &tls.cert)?;
    let key = read("key", &tls.key)?;
    let roots = tls.client_ca.as_ref().map(|path| read("client_ca", path)).transpose()?;
    let in_file = |error: IdentityError| {
        let path = match error.part {
            "cert" => &tls.cert,
            "key" => &tls.key,
            _ => tls.client_ca.as_ref().unwrap_or(&tls.cert),
        };
        IdentityError { what: format!("{path}: {}", error.what), ..error }
    };
    Identity::from_pem(&cert, &key, roots.as_deref()).map(Some).map_err(in_file)
}

/// What is wrong with the time of the certificate that clients are shown, or soon will be.
pub fn remark(config: &Config, identity: &Identity) -> Option<String> {
    let path = &config.server.tls.as_ref()?.cert;
    let remark = identity.validity()?.remark(clock::unix_ms() / 1000)?;
    Some(format!("tls.cert: {path}: {remark}"))
}

fn read(part: &'static str, path: &str) -> Result<Vec<u8>, IdentityError> {
    let fault = |what: String| IdentityError { part, what: format!("{path}: {what}") };
    let read = |path: &Path| match std::fs::metadata(path)?.len() {
        0..=FILE_BYTES_MAX => std::fs::read(path),
        _ => Err(std::io::Error::other("too long for a file of certificates")),
    };
    read(Path::new(path)).map_err(|error| fault(error.to_string()))
}
