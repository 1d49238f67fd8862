//! The files of TLS, of what clients are shown and of whom we believe as replicas: read at the
//! start, at a reload, and by `check`.
//!
//! On the control thread, never on a core.

use std::collections::HashMap;
use std::path::Path;

use crate::config::{Config, Pool, UpstreamTls};
use crate::net::{Identity, IdentityError, Trust};
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

/// Whom each pool with replicas behind https believes, by the pool's name: one that names no roots
/// believes those of the system.
///
/// # Errors
/// The pool's index, and what of its files cannot be read, is not what it should be, or is missing.
pub fn load_trusts(config: &Config) -> Result<HashMap<String, Trust>, (usize, IdentityError)> {
    // Read when first wanted, and once.
    let mut system = None;
    let mut trusts = HashMap::new();
    for (at, pool) in config.pools.iter().enumerate() {
        let trust = match &pool.tls {
            Some(tls) if *tls != UpstreamTls::default() => trust(tls),
            None if pool.replicas.iter().all(|replica| !replica.is_secure()) => continue,
            _ => system.get_or_insert_with(|| Trust::of_system(None)).clone(),
        };
        trusts.insert(pool.name.clone(), trust.map_err(|error| (at, error))?);
    }
    Ok(trusts)
}

fn trust(tls: &UpstreamTls) -> Result<Trust, IdentityError> {
    let part = |part, path: &Option<String>| path.as_ref().map(|path| read(part, path)).transpose();
    let (ca, cert, key) = (part("ca", &tls.ca)?, part("cert", &tls.cert)?, part("key", &tls.key)?);
    let own = cert.as_deref().zip(key.as_deref());
    let trust = match &ca {
        Some(ca) => Trust::from_pem(ca, own),
        None => Trust::of_system(own),
    };
    trust.map_err(|error| {
        let path = match error.part {
            "cert" => &tls.cert,
            "key" => &tls.key,
            _ => &tls.ca,
        };
        let what = path.iter().map(|path| format!("{path}: ")).collect::<String>() + &error.what;
        IdentityError { what, ..error }
    })
}

/// [`load_trusts`] with its error in words.
pub(super) fn trusts(config: &Config) -> Result<HashMap<String, Trust>, String> {
    load_trusts(config).map_err(|(at, error)| {
        let name = config.pools.get(at).map_or("", |pool: &Pool| &pool.name);
        format!("pool {name}: {error}")
    })
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
