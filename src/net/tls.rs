//! TLS on a socket, of a client or to a replica: rustls over a [`Stream`], readiness first like it.
//!
//! rustls does no I/O of its own: what the socket has is handed to it, what it wants sent is sent.
//! On the thread of its core; an idle connection keeps some kilobytes. TLS 1.2 and 1.3, HTTP/1.1 by
//! ALPN. Never blocks, reads no file and no clock but rustls's own for the lifetime of its tickets.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{Connection, RootCertStore, ServerConfig, ServerConnection};

use super::stream::Stream;
use super::validity::Validity;

/// The protocol that we speak.
pub(super) const HTTP_1_1: &[u8] = b"http/1.1";
/// Plaintext that is encrypted at once, one record: what a client does not take waits in the
/// caller's buffers, and a slow one shows that it takes something.
const ENCRYPTED_BYTES_MAX: usize = 16 * 1024;

/// Receives in one call that bring no plaintext: empty records must not hold a core.
const PULLS_A_CALL: usize = 16;

/// What the gateway proves itself by, and whom it lets in. Cheap to clone.
#[derive(Clone)]
pub struct Identity {
    config: Arc<ServerConfig>,
    validity: Option<Validity>,
}

/// Which of an identity's parts is at fault, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IdentityError {
    /// The key of the configuration: `cert`, `key` or `client_ca`.
    pub part: &'static str,
    /// For people.
    pub what: String,
}

impl fmt::Display for IdentityError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tls.{}: {}", self.part, self.what)
    }
}

impl std::error::Error for IdentityError {}

pub(super) fn fault(part: &'static str, what: impl Into<String>) -> IdentityError {
    IdentityError { part, what: what.into() }
}

impl Identity {
    /// From PEM: a certificate with what is between it and its root, its private key (PKCS #8, #1
    /// or SEC 1, not encrypted), and the roots of the clients' certificates, if clients must have
    /// one.
    ///
    /// # Errors
    /// A part is not what it should be, or the key is not the certificate's.
    pub fn from_pem(
        cert: &[u8],
        key: &[u8],
        client_ca: Option<&[u8]>,
    ) -> Result<Identity, IdentityError> {
        let provider = Arc::new(ring::default_provider());
        let chain = certificates("cert", cert)?;
        let validity = chain.first().and_then(Validity::of);
        let certified = certified(chain, key, &provider)?;
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| fault("cert", error.to_string()))?;
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let roots = Arc::new(roots("client_ca", certificates("client_ca", pem)?)?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider).build();
                let verifier = verifier.map_err(|error| fault("client_ca", error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_cert_resolver(Arc::new(One(Arc::new(certified))));
        config.alpn_protocols = vec![HTTP_1_1.to_vec()];
        // Nothing is kept here of a session that may come back: the client keeps it, sealed.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = ring::Ticketer::new().map_err(|error| fault("key", error.to_string()))?;
        Ok(Identity { config: Arc::new(config), validity })
    }

    /// When its certificate holds; `None`: it does not say so in a way that can be read.
    #[must_use]
    pub fn validity(&self) -> Option<Validity> {
        self.validity
    }

    /// Begins TLS on an accepted connection.
    ///
    /// # Errors
    /// rustls refuses its configuration; not seen.
    pub fn accept(&self, socket: Stream) -> io::Result<TlsStream> {
        let tls = ServerConnection::new(Arc::clone(&self.config)).map_err(io::Error::other)?;
        Ok(TlsStream::new(socket, Connection::Server(tls)))
    }
}

/// The one certificate, whatever name a client asks for.
#[derive(Debug)]
struct One(Arc<CertifiedKey>);

impl rustls::server::ResolvesServerCert for One {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0))
    }
}

/// The certificates of a PEM; at least one.
pub(super) fn certificates(
    part: &'static str,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match read {
        Ok(all) if !all.is_empty() => Ok(all),
        Ok(_) => Err(fault(part, "no certificate in PEM is in it")),
        Err(error) => Err(fault(part, format!("not PEM: {error}"))),
    }
}

/// A certificate with its private key, which is in `key` as PEM.
pub(super) fn certified(
    chain: Vec<CertificateDer<'static>>,
    key: &[u8],
    provider: &CryptoProvider,
) -> Result<CertifiedKey, IdentityError> {
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        fault("key", "no private key in PEM is in it (an encrypted one cannot be read)")
    })?;
    let key = provider.key_provider.load_private_key(key);
    let key = key.map_err(|error| fault("key", format!("of no known kind: {error}")))?;
    let certified = CertifiedKey::new(chain, key);
    certified.keys_match().map_err(|error| match error {
        rustls::Error::InconsistentKeys(_) => fault("key", "it is not the key of the certificate"),
        error => fault("cert", error.to_string()),
    })?;
    Ok(certified)
}

pub(super) fn roots(
    part: &'static str,
    certificates: Vec<CertificateDer<'static>>,
) -> Result<RootCertStore, IdentityError> {
    let mut roots = RootCertStore::empty();
    for root in certificates {
        roots.add(root).map_err(|error| fault(part, error.to_string()))?;
    }
    Ok(roots)
}

/// Why a handshake has failed.
#[derive(Debug)]
pub enum HandshakeError {
    /// The peer speaks HTTP without TLS.
    PlainHttp,
    /// Anything else; an alert told it where the protocol has one.
    Failed(io::Error),
}

/// A connection with TLS.
pub struct TlsStream {
    socket: Stream,
    tls: Connection,
    /// Bytes that are decrypted and not yet taken.
    plain: usize,
    /// The peer has said that this is all; it may have come with the bytes before.
    closed: bool,
    /// Bytes of the caller's that are encrypted, of which the socket has not taken all.
    accepted: usize,
    /// The first byte that the peer sent.
    first: Option<u8>,
}

impl TlsStream {
    pub(super) fn new(socket: Stream, mut tls: Connection) -> TlsStream {
        tls.set_buffer_limit(Some(ENCRYPTED_BYTES_MAX));
        TlsStream { socket, tls, plain: 0, closed: false, accepted: 0, first: None }
    }

    /// Goes on with the handshake; ready when it is over.
    pub fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeError>> {
        loop {
            ready!(self.poll_flush(cx)).map_err(HandshakeError::Failed)?;
            if !self.tls.is_handshaking() {
                return Poll::Ready(Ok(()));
            }
            ready!(self.socket.poll_readable(cx));
            match self.pull() {
                Ok(Some(0)) => {
                    let end = io::ErrorKind::UnexpectedEof.into();
                    return Poll::Ready(Err(HandshakeError::Failed(end)));
                }
                Ok(_) => {}
                Err(_) if self.first.is_some_and(|byte| byte.is_ascii_uppercase()) => {
                    return Poll::Ready(Err(HandshakeError::PlainHttp));
                }
                Err(error) => {
                    self.flush_now();
                    return Poll::Ready(Err(HandshakeError::Failed(error)));
                }
            }
        }
    }

    /// The socket without TLS, for a client that never began it.
    #[must_use]
    pub fn into_plain(self) -> Stream {
        self.socket
    }

    /// As [`Stream::breathe`], as far as the socket is asked for more.
    pub fn breathe(&mut self) {
        self.socket.breathe();
    }

    /// As [`Stream::poll_readable`].
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.plain > 0 || self.closed {
            return Poll::Ready(());
        }
        self.socket.poll_readable(cx)
    }

    /// As [`Stream::try_recv`]; `Ok(Some(0))` is an end that the peer has confirmed.
    ///
    /// # Errors
    /// The connection is dead, has ended without a word, or is not sound.
    pub fn try_recv(&mut self, space: &mut [u8]) -> io::Result<Option<usize>> {
        for _ in 0..PULLS_A_CALL {
            match self.tls.reader().read(space) {
                Ok(n) => {
                    self.plain = self.plain.saturating_sub(n);
                    return Ok(Some(n));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match self.pull() {
                Ok(None) => return Ok(None),
                Ok(Some(_)) => {}
                Err(error) => {
                    self.flush_now();
                    return Err(error);
                }
            }
        }
        self.socket.breathe();
        Ok(None)
    }

    /// Receives once and decrypts. `Ok(None)`: nothing is there; `Ok(Some(0))`: an end.
    fn pull(&mut self) -> io::Result<Option<usize>> {
        let mut source = Source { socket: &mut self.socket, first: &mut self.first };
        let n = match self.tls.read_tls(&mut source) {
            Ok(n) => n,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let invalid = |error| io::Error::new(io::ErrorKind::InvalidData, error);
        let state = self.tls.process_new_packets().map_err(invalid)?;
        self.plain = state.plaintext_bytes_to_read();
        self.closed |= state.peer_has_closed();
        Ok(Some(n))
    }

    /// As [`Stream::poll_send_vectored`], but that a call that comes to wait has taken what it was
    /// given: the next one must begin with the same bytes, and answers for those.
    ///
    /// # Errors
    /// The connection is dead.
    pub fn poll_send_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.poll_flush(cx))?;
            if self.accepted > 0 {
                return Poll::Ready(Ok(std::mem::take(&mut self.accepted)));
            }
            self.accepted = self.tls.writer().write_vectored(slices)?;
            if self.accepted == 0 {
                return Poll::Ready(match slices.iter().all(|slice| slice.is_empty()) {
                    true => Ok(0),
                    false => Err(io::ErrorKind::WriteZero.into()),
                });
            }
        }
    }

    /// Sends what rustls has to send.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut Sink { socket: &mut self.socket, cx }) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Poll::Pending,
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Sends what the socket takes at once: an alert, a last word. What it does not take is lost
    /// on a peer that reads nothing.
    fn flush_now(&mut self) {
        let _ = self.poll_flush(&mut Context::from_waker(Waker::noop()));
    }

    /// Tells the peer that everything was said.
    pub fn close_notify(&mut self) {
        self.tls.send_close_notify();
        self.flush_now();
    }

    /// As [`Stream::shut`], with no word on whether everything was said.
    pub fn shut(&mut self) {
        self.socket.shut();
    }

    /// As [`Stream::shut_write`], with no word on whether everything was said.
    pub fn shut_write(&mut self) {
        self.socket.shut_write();
    }
}

/// A socket as rustls reads from one.
struct Source<'s> {
    socket: &'s mut Stream,
    first: &'s mut Option<u8>,
}

impl Read for Source<'_> {
    fn read(&mut self, space: &mut [u8]) -> io::Result<usize> {
        let n = self.socket.try_recv(space)?.ok_or(io::ErrorKind::WouldBlock)?;
        if n > 0 && self.first.is_none() {
            *self.first = space.first().copied();
        }
        Ok(n)
    }
}

/// A socket as rustls writes to one.
struct Sink<'s, 'c, 'w> {
    socket: &'s mut Stream,
    cx: &'c mut Context<'w>,
}

impl Write for Sink<'_, '_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        match self.socket.poll_send_vectored(self.cx, slices) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
