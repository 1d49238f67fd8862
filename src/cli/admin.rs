//! A command's own way to the admin listener of a running gateway: its address, the secret that it
//! wants, one exchange.
//!
//! Blocking sockets, on the command's thread. Never prints the secret.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

use super::{EXIT_USAGE, Failed};
use crate::config::{Config, Secret};

/// Stands in for `admin_secret` of the configuration file, and wins over it.
const SECRET_VARIABLE: &str = "EXPEDITE_ADMIN_SECRET";

/// A gateway that takes longer than this for an answer is not there.
const PATIENCE: Duration = Duration::from_secs(30);

/// An admin listener to ask.
pub(super) struct Admin {
    address: SocketAddr,
    secret: Option<Secret>,
}

impl Admin {
    /// The one at `url`, or else that of the configuration; with the secret from the environment,
    /// or else from the configuration.
    ///
    /// # Errors
    /// Neither names one, or the secret fits into no field line.
    pub(super) fn of(url: Option<&str>, config: Option<&Config>) -> Result<Admin, Failed> {
        let configured = || {
            let config = config.ok_or_else(|| "--config or --admin?".to_owned())?;
            let none = "server.admin is \"none\": there is nobody to ask";
            config.server.admin.ok_or_else(|| none.to_owned())
        };
        let found = match url {
            Some(url) => address(url),
            None => configured(),
        };
        let address = found.map_err(|what| (EXIT_USAGE, what))?;
        let given = std::env::var(SECRET_VARIABLE).ok().filter(|text| !text.is_empty());
        let in_file = || config.and_then(|config| config.server.admin_secret.clone());
        let secret = given.map(Secret::new).or_else(in_file);
        let plain = |of: &Secret| of.expose().bytes().all(|byte| byte.is_ascii_graphic());
        if !secret.as_ref().is_none_or(plain) {
            return Err((EXIT_USAGE, format!("{SECRET_VARIABLE} must be visible ASCII")));
        }
        Ok(Admin { address, secret })
    }

    /// One exchange: `line` is method and target, `body` is JSON. The answer in JSON.
    ///
    /// # Errors
    /// Nobody answers, or what they say in `error`.
    pub(super) fn ask(&self, line: &str, body: &[u8]) -> Result<Value, String> {
        let at = self.address;
        let secret = self.secret.as_ref().map_or(String::new(), |secret| {
            format!("authorization: Bearer {}\r\n", secret.expose())
        });
        let head = format!(
            "{line} HTTP/1.1\r\nhost: {at}\r\nconnection: close\r\n{secret}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let answer = exchange(at, &[head.as_bytes(), body].concat())
            .map_err(|error| format!("cannot ask {at}: {error}"))?;
        let text = String::from_utf8_lossy(&answer);
        let body = text.split_once("\r\n\r\n").map(|(_, body)| serde_json::from_str(body));
        let Some(Ok(said)) = body else { return Err(format!("{at} gave no answer in JSON")) };
        let said: Value = said;
        if text.split(' ').nth(1) == Some("401") {
            let hint = "its admin_secret comes from --config or the variable";
            return Err(format!("{at} wants another secret: {hint} {SECRET_VARIABLE}"));
        }
        match said.get("error").and_then(Value::as_str) {
            Some(error) => Err(format!("{at}: {error}")),
            None => Ok(said),
        }
    }
}

/// The address in `--admin`.
fn address(url: &str) -> Result<SocketAddr, String> {
    let host = url.strip_prefix("http://").unwrap_or(url).trim_end_matches('/');
    let found = std::net::ToSocketAddrs::to_socket_addrs(host).ok().and_then(|mut a| a.next());
    found.ok_or_else(|| format!("--admin {url} is no address and port"))
}

fn exchange(admin: SocketAddr, request: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut wire = TcpStream::connect_timeout(&admin, PATIENCE)?;
    wire.set_read_timeout(Some(PATIENCE))?;
    wire.write_all(request)?;
    let mut answer = Vec::new();
    wire.read_to_end(&mut answer)?;
    Ok(answer)
}
