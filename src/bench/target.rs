//! An endpoint under load: its URL, address, model and key; and what is asked of it beforehand.
//!
//! Names are resolved here, on the caller's thread, before any request.

use std::cell::RefCell;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use super::answer::Answer;
use super::failure::{Failure, Kind};
use super::prompt::Prompts;
use super::wire::{self, Wire};
use super::{Answers, Lengths, Load, Options, Words, block_on};
use crate::config::Secret;
use crate::net::{Peer, Trust};
use crate::openai::models;

/// How long the model list and the probe may take.
const PROBE_LIMIT: Duration = Duration::from_secs(30);

/// Where requests go.
#[derive(Clone, Debug)]
pub struct Target {
    /// Address to connect to.
    pub addr: SocketAddr,
    /// What to begin TLS with; `None`: plain HTTP.
    pub peer: Option<Peer>,
    /// `Host` field.
    pub authority: String,
    /// What stands before `/v1` in its paths, without a slash at the end.
    pub base: String,
    /// Name of the model in requests.
    pub model: String,
    /// Sent as `Authorization: Bearer`.
    pub key: Option<Secret>,
}

impl Target {
    /// Reads `http[s]://HOST[:PORT][/BASE]` (a `/v1` at the end is taken off) and resolves the
    /// host. Behind https it believes what the system trusts. The model stays empty.
    ///
    /// # Errors
    /// Not such a URL, the host has no address, or https without a root certificate.
    pub fn from_url(url: &str, key: Option<Secret>) -> Result<Target, String> {
        Target::believing(url, key, None)
    }

    /// As [`Target::from_url`]; behind https it believes the certificates in `ca`, a PEM.
    ///
    /// # Errors
    /// As there, or `ca` is no such thing.
    pub fn believing(url: &str, key: Option<Secret>, ca: Option<&[u8]>) -> Result<Target, String> {
        let (secure, rest) = match url.split_once("://") {
            Some(("http", rest)) => (false, rest),
            Some(("https", rest)) => (true, rest),
            _ => return Err(format!("{url}: must begin with http:// or https://")),
        };
        let (authority, base) = rest.find('/').map_or((rest, ""), |slash| rest.split_at(slash));
        let base = base.trim_end_matches('/');
        let base = base.strip_suffix("/v1").unwrap_or(base);
        let plain = |text: &str| text.bytes().all(|b| b.is_ascii_graphic() && b != b'@');
        if authority.is_empty() || !plain(authority) || !plain(base) {
            return Err(format!("{url}: must be http://HOST:PORT"));
        }
        let (host, with_port) = match authority.rsplit_once(':') {
            Some((host, port)) if port.parse::<u16>().is_ok() => (host, authority.to_owned()),
            _ => (authority, format!("{authority}:{}", if secure { 443 } else { 80 })),
        };
        let peer = secure.then(|| peer(host.trim_matches(['[', ']']), ca)).transpose();
        let peer = peer.map_err(|what| format!("{url}: {what}"))?;
        let addr = with_port.to_socket_addrs().map_err(|e| format!("{url}: {e}"))?.next();
        Ok(Target {
            addr: addr.ok_or_else(|| format!("{url}: the host has no address"))?,
            peer,
            authority: authority.to_owned(),
            base: base.to_owned(),
            model: String::new(),
            key,
        })
    }

    /// Asks `/v1/models` and takes `wanted`, or the first one listed. A name that is not listed is
    /// kept only if `keep`.
    ///
    /// # Errors
    /// The list cannot be had or is empty.
    pub fn choose_model(&mut self, wanted: Option<&str>, keep: bool) -> Result<(), String> {
        if let (Some(name), true) = (wanted, keep) {
            name.clone_into(&mut self.model);
            return Ok(());
        }
        let fetched = block_on(in_time(wire::fetch(self, "/v1/models")));
        let body = fetched.map_err(|e| self.told(&e))?;
        let body = body.map_err(|e| self.told(&format_args!("{}: {}", e.kind, e.detail)))?;
        let entries = models::parse(&body);
        let entries = entries.map_err(|what| self.told(&what))?;
        let named = entries.iter().find(|entry| Some(entry.id.as_str()) == wanted);
        let chosen = named.or(entries.first()).ok_or_else(|| self.told(&"lists no model"))?;
        chosen.id.clone_into(&mut self.model);
        Ok(())
    }

    /// What `/version` says, as vLLM has it; `None` where there is no such thing.
    #[must_use]
    pub fn version(&self) -> Option<String> {
        let body = block_on(in_time(wire::fetch(self, "/version"))).ok()?.ok()?;
        let told: serde_json::Value = serde_json::from_slice(&body).ok()?;
        told["version"].as_str().map(str::to_owned)
    }

    fn told(&self, what: &dyn std::fmt::Display) -> String {
        format!("{}/v1/models: {what}", self.authority)
    }
}

fn peer(host: &str, ca: Option<&[u8]>) -> Result<Peer, String> {
    let trust = match ca {
        Some(pem) => Trust::from_pem(pem, None),
        None => Trust::of_system(None),
    };
    let trust = trust.map_err(|error| error.what)?;
    trust.peer(host).ok_or_else(|| "its host is no name that a certificate can have".to_owned())
}

/// What a server answered to the tag protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// It says the words that the tag orders: every token of it can be checked.
    Words,
    /// It is some other model.
    Other,
}

/// Sends one short request and sees whether the server says `words`.
///
/// # Errors
/// A connection cannot be had.
pub fn probe(options: &Options, words: Words) -> io::Result<Probe> {
    const TOKENS: u64 = 2;
    let small = Arc::new(Options {
        answers: Answers::Whole,
        output_tokens: Lengths::Fixed(TOKENS),
        prompt_tokens: Lengths::Fixed(0),
        prefix_tokens: 0,
        load: Load::Concurrency(1),
        long: None,
        cancel: 0.0,
        turns: 1,
        words: Some(words),
        ..options.clone()
    });
    let mut prompts = Prompts::new(&small, 0);
    let mut talk = prompts.begin(0, 0, 0);
    let request = prompts.next(&mut talk, &small.target, 0);
    let judged = block_on(in_time(async {
        let connected = Wire::connect(&small.target).await;
        let mut wire = connected.map_err(|e| Failure::new(Kind::Connect, e))?;
        let mut answer = Answer::new(request.expected);
        wire.exchange(&request, &mut answer, &RefCell::default()).await?;
        answer.finish()
    }))?;
    match judged {
        Ok(_) => Ok(Probe::Words),
        Err(failure) if failure.kind == Kind::Connect => Err(io::Error::other(failure.detail)),
        Err(_) => Ok(Probe::Other),
    }
}

async fn in_time<T>(work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = |_| Err(Failure::new(Kind::Timeout, "no answer in time"));
    monoio::time::timeout(PROBE_LIMIT, work).await.unwrap_or_else(late)
}
