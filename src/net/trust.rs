//! TLS to a server: whom we believe, and what we prove ourselves by.
//!
//! A server must show a certificate of its name that a root vouches for, or the very certificate
//! that was named beforehand: what `openssl req -x509` makes is at once root and leaf, which the
//! usual check refuses. There is no switch that believes everybody. Reads no file but the system's
//! roots.

use std::fmt;
use std::io;
use std::sync::{Arc, OnceLock};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::ring;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, Error, SignatureScheme,
};

use super::stream::Stream;
use super::tls::{self, HTTP_1_1, IdentityError, TlsStream, fault};
use super::validity::Validity;

/// Whom we believe as a server. Cheap to clone; sessions are taken up again by all that share one.
#[derive(Clone, Debug)]
pub struct Trust {
    config: Arc<ClientConfig>,
}

impl Trust {
    /// Believes whom a root of `ca` vouches for, and who shows a certificate of `ca` itself, all in
    /// PEM; proves itself by `own`, a certificate with what is between it and its root, and its
    /// private key, if servers want one.
    ///
    /// # Errors
    /// A part is not what it should be, or the key is not the certificate's.
    pub fn from_pem(ca: &[u8], own: Option<(&[u8], &[u8])>) -> Result<Trust, IdentityError> {
        Trust::new(tls::certificates("ca", ca)?, own)
    }

    /// As [`Trust::from_pem`], with the roots that the system trusts.
    ///
    /// # Errors
    /// As there; or the system has none.
    pub fn of_system(own: Option<(&[u8], &[u8])>) -> Result<Trust, IdentityError> {
        let found = rustls_native_certs::load_native_certs();
        if found.certs.is_empty() {
            let why = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
            let what = format!("this system has no root certificates{why}: name a file of them");
            return Err(fault("ca", what));
        }
        // Of a system's hundreds one may be of no use; the others are.
        let usable = |cert: &CertificateDer<'static>| {
            rustls::RootCertStore::empty().add(cert.clone()).is_ok()
        };
        Trust::new(found.certs.into_iter().filter(usable).collect(), own)
    }

    /// The system's roots as they were when first wanted; `None`: it has none.
    #[must_use]
    pub fn usual() -> Option<Trust> {
        static USUAL: OnceLock<Option<Trust>> = OnceLock::new();
        USUAL.get_or_init(|| Trust::of_system(None).ok()).clone()
    }

    fn new(
        ca: Vec<CertificateDer<'static>>,
        own: Option<(&[u8], &[u8])>,
    ) -> Result<Trust, IdentityError> {
        let provider = Arc::new(ring::default_provider());
        let named = ca.clone();
        let roots = Arc::new(tls::roots("ca", ca)?);
        let roots = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider));
        let roots = roots.build().map_err(|error| fault("ca", error.to_string()))?;
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| fault("ca", error.to_string()))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(Known { roots, named }));
        let mut config = match own {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let chain = tls::certificates("cert", cert)?;
                let certified = tls::certified(chain, key, &provider)?;
                let one = rustls::sign::SingleCertAndKey::from(certified);
                builder.with_client_cert_resolver(Arc::new(one))
            }
        };
        config.alpn_protocols = vec![HTTP_1_1.to_vec()];
        Ok(Trust { config: Arc::new(config) })
    }

    /// What begins TLS with the server of this name or address; `None`: it is neither.
    #[must_use]
    pub fn peer(&self, name: &str) -> Option<Peer> {
        let name = ServerName::try_from(name.to_owned()).ok()?;
        Some(Peer { config: Arc::clone(&self.config), name })
    }
}

/// A server to speak TLS with. Cheap to clone.
#[derive(Clone)]
pub struct Peer {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.name)
    }
}

impl Peer {
    /// For a TLS that is not ours: the control thread's.
    #[must_use]
    pub fn parts(&self) -> (Arc<ClientConfig>, ServerName<'static>) {
        (Arc::clone(&self.config), self.name.clone())
    }

    /// Begins TLS on a connection to it.
    pub(super) fn begin(&self, socket: Stream) -> io::Result<TlsStream> {
        let tls = ClientConnection::new(Arc::clone(&self.config), self.name.clone());
        let tls = tls.map_err(io::Error::other)?;
        Ok(TlsStream::new(socket, Connection::Client(tls)))
    }
}

/// The usual check, but for certificates that were named.
#[derive(Debug)]
struct Known {
    roots: Arc<WebPkiServerVerifier>,
    named: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for Known {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let holds = |cert: &CertificateDer<'_>| {
            let holds = Validity::of(cert);
            holds.is_none_or(|it| (it.begins_s..=it.ends_s).contains(&now.as_secs()))
        };
        if self.named.contains(shown) && holds(shown) {
            return Ok(ServerCertVerified::assertion());
        }
        self.roots.verify_server_cert(shown, between, name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.roots.verify_tls12_signature(message, cert, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.roots.verify_tls13_signature(message, cert, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.roots.supported_verify_schemes()
    }
}
