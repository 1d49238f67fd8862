//! What the TLS tests are made of: certificates made on the spot, a client, a gateway behind TLS.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
};

use crate::common::engine::{Engine, adapter};
use crate::common::faults::IN_TURN;
use crate::common::gateway::{AUTH, Bed, Settings};
use crate::common::{Ended, Response, eventually};

/// No test waits longer for a byte.
const WAIT: Duration = Duration::from_secs(20);

/// One that signs certificates.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub(crate) pem: String,
}

/// A certificate and its key, as PEM.
pub(crate) struct Pair {
    pub(crate) cert: String,
    pub(crate) key: String,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::<String>::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().expect("key");
        let pem = params.self_signed(&key).expect("certificate").pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A certificate for `localhost` and 127.0.0.1.
    pub(crate) fn sign(&self) -> Pair {
        self.sign_with(|_| {})
    }

    /// The same with other parameters.
    pub(crate) fn sign_with(&self, change: impl FnOnce(&mut CertificateParams)) -> Pair {
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let mut params = CertificateParams::new(names).expect("parameters");
        change(&mut params);
        let key = KeyPair::generate().expect("key");
        let cert = params.signed_by(&key, &self.issuer).expect("certificate").pem();
        Pair { cert, key: key.serialize_pem() }
    }
}

/// The files that a gateway is given.
pub(crate) struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    pub(crate) fn new(pair: &Pair) -> Files {
        let files = Files { folder: tempfile::tempdir().expect("folder") };
        files.put(pair);
        files
    }

    pub(crate) fn put(&self, pair: &Pair) {
        self.write("cert.pem", &pair.cert);
        self.write("key.pem", &pair.key);
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path
    }

    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The line of `[server]` that names them.
    pub(crate) fn line(&self, more: &str) -> String {
        let folder = self.folder.path().display();
        format!("tls = {{ cert = \"{folder}/cert.pem\", key = \"{folder}/key.pem\"{more} }}")
    }
}

/// A gateway behind TLS, and who signed its certificate.
pub(crate) struct Secure {
    pub(crate) bed: Bed,
    pub(crate) authority: Authority,
    pub(crate) files: Files,
    pub(crate) engine: Engine,
}

impl Secure {
    /// In front of this engine, on `driver`; `more` are further sections.
    pub(crate) fn start(engine: Engine, driver: &'static str, more: &str) -> Secure {
        let authority = Authority::new();
        let files = Files::new(&authority.sign());
        let (server, more) = (files.line(""), format!("{IN_TURN}{more}"));
        let bed =
            Bed::unready(&[engine.addr], Settings { driver, server, more, ..Settings::default() });
        let secure = Secure { bed, authority, files, engine };
        let list = format!("GET /v1/models HTTP/1.1\r\nHost: gw.test\r\n{AUTH}\r\n");
        eventually("the engine's models are known", || {
            let mut client = secure.client();
            client.send(list.as_bytes());
            client.response().text().contains(&adapter(secure.engine.addr))
        });
        secure
    }

    pub(crate) fn client(&self) -> TlsClient {
        TlsClient::connect(self.bed.addr, config(&self.authority.pem, None, rustls::ALL_VERSIONS))
    }
}

/// How a client checks the server, and what it proves itself by.
pub(crate) fn config(
    roots: &str,
    own: Option<&Pair>,
    versions: &[&'static SupportedProtocolVersion],
) -> ClientConfig {
    let mut store = RootCertStore::empty();
    store.add(CertificateDer::from_pem_slice(roots.as_bytes()).expect("PEM")).expect("root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(versions)
        .expect("versions")
        .with_root_certificates(store);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let chain = CertificateDer::from_pem_slice(pair.cert.as_bytes()).expect("PEM");
            let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).expect("PEM");
            builder.with_client_auth_cert(vec![chain], key).expect("pair")
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// How a connection with TLS ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TlsEnd {
    /// The gateway said that this is all.
    Confirmed,
    /// It did not.
    Cut(Ended),
}

/// One connection with TLS.
pub(crate) struct TlsClient(pub(crate) StreamOwned<ClientConnection, TcpStream>);

impl TlsClient {
    pub(crate) fn connect(addr: SocketAddr, config: ClientConfig) -> TlsClient {
        let stream = TcpStream::connect(addr).expect("connect");
        stream.set_nodelay(true).expect("nodelay");
        stream.set_read_timeout(Some(WAIT)).expect("timeout");
        let name = ServerName::try_from("localhost").expect("name");
        let tls = ClientConnection::new(Arc::new(config), name).expect("client");
        TlsClient(StreamOwned::new(tls, stream))
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.0.write_all(bytes).expect("send");
        self.0.flush().expect("flush");
    }

    /// Reads what is there, also when what was sent is not taken any more. A socket with a time
    /// limit is not restarted after a signal.
    pub(crate) fn read(&mut self, piece: &mut [u8]) -> std::io::Result<usize> {
        let StreamOwned { conn, sock } = &mut self.0;
        loop {
            match conn.reader().read(piece) {
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                done => return done,
            }
            match conn.read_tls(sock) {
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
                Ok(_) => {
                    conn.process_new_packets().map_err(std::io::Error::other)?;
                }
            }
        }
    }

    /// Reads until the response is complete or the connection over.
    pub(crate) fn response(&mut self) -> Response {
        let (mut bytes, mut piece) = (Vec::new(), [0; 1 << 14]);
        loop {
            let response = Response::parse(&bytes);
            if response.complete {
                return response;
            }
            match self.read(&mut piece) {
                Ok(0) => return response,
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return response,
                Err(e) => panic!("after {} bytes: {e}", bytes.len()),
                Ok(n) => bytes.extend_from_slice(&piece[..n]),
            }
        }
    }

    /// Reads to the end of the connection.
    pub(crate) fn rest(&mut self) -> (Vec<u8>, TlsEnd) {
        let (mut bytes, mut piece) = (Vec::new(), [0; 1 << 14]);
        loop {
            match self.read(&mut piece) {
                Ok(0) => return (bytes, TlsEnd::Confirmed),
                Ok(n) => bytes.extend_from_slice(&piece[..n]),
                Err(e) => match e.kind() {
                    ErrorKind::UnexpectedEof => return (bytes, TlsEnd::Cut(Ended::Fin)),
                    ErrorKind::ConnectionReset => return (bytes, TlsEnd::Cut(Ended::Reset)),
                    _ => panic!("after {} bytes: {e}", bytes.len()),
                },
            }
        }
    }

    /// The certificate that the gateway showed.
    pub(crate) fn shown(&self) -> Vec<u8> {
        let shown = self.0.conn.peer_certificates().expect("handshake");
        shown.first().expect("a certificate").to_vec()
    }
}
