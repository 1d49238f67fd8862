//! A connection with TLS or without, of a client or to a server: one type for whoever has it.
//!
//! A plain one costs a branch a call. On the thread of its core.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::task::{Context, Poll, ready};

use super::stream::{Stream, connect};
use super::tls::{HandshakeError, TlsStream};
use super::trust::Peer;

/// See the module.
pub enum Wire {
    /// As it is.
    Plain(Stream),
    /// With TLS.
    Tls(Box<TlsStream>),
}

impl Wire {
    /// Connects to `addr`, with TLS if there is a `peer` to speak it with. It has no time limit of
    /// its own; the attempt may be given up at any time.
    ///
    /// # Errors
    /// As [`connect`]; [`io::ErrorKind::InvalidData`] with the reason in words where TLS fails.
    pub async fn connect(addr: SocketAddr, peer: Option<&Peer>) -> io::Result<Wire> {
        let socket = connect(addr).await?;
        let Some(peer) = peer else { return Ok(Wire::Plain(socket)) };
        let mut tls = Box::new(peer.begin(socket)?);
        let shaken = poll_fn(|cx| tls.poll_handshake(cx)).await;
        let why = match shaken {
            Ok(()) => return Ok(Wire::Tls(tls)),
            Err(HandshakeError::PlainHttp) => "it speaks HTTP without TLS".to_owned(),
            Err(HandshakeError::Failed(error)) => error.to_string(),
        };
        Err(io::Error::new(io::ErrorKind::InvalidData, format!("no TLS with it: {why}")))
    }

    /// Goes on with the handshake, if there is one; ready when it is over. A client that speaks
    /// HTTP without TLS is left with a plain connection, for an answer that it can read.
    pub fn poll_handshake(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), HandshakeError>> {
        match self {
            Wire::Plain(_) => Poll::Ready(Ok(())),
            Wire::Tls(tls) => tls.poll_handshake(cx),
        }
    }

    /// The connection without TLS, for a client that never began it.
    #[must_use]
    pub fn into_plain(self) -> Wire {
        match self {
            Wire::Plain(_) => self,
            Wire::Tls(tls) => Wire::Plain(tls.into_plain()),
        }
    }

    /// As [`Stream::poll_readable`].
    #[inline]
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match self {
            Wire::Plain(socket) => socket.poll_readable(cx),
            Wire::Tls(tls) => tls.poll_readable(cx),
        }
    }

    /// As [`Stream::try_recv`].
    ///
    /// # Errors
    /// As there; with TLS also what is not sound, and an end that the peer did not confirm.
    #[inline]
    pub fn try_recv(&mut self, space: &mut [u8]) -> io::Result<Option<usize>> {
        match self {
            Wire::Plain(socket) => socket.try_recv(space),
            Wire::Tls(tls) => tls.try_recv(space),
        }
    }

    /// As [`Stream::poll_send_vectored`]. After it has waited it must be called with the same
    /// bytes again, or the connection be closed.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn poll_send_vectored(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match self {
            Wire::Plain(socket) => socket.poll_send_vectored(cx, slices),
            Wire::Tls(tls) => tls.poll_send_vectored(cx, slices),
        }
    }

    /// Receives into `space`, waiting for bytes or the end.
    ///
    /// # Errors
    /// As [`try_recv`](Self::try_recv).
    pub async fn recv(&mut self, space: &mut [u8]) -> io::Result<usize> {
        poll_fn(|cx| {
            loop {
                ready!(self.poll_readable(cx));
                if let Some(received) = self.try_recv(space).transpose() {
                    return Poll::Ready(received);
                }
            }
        })
        .await
    }

    /// Sends all of `bytes`.
    ///
    /// # Errors
    /// As [`poll_send_vectored`](Self::poll_send_vectored); an unknown part has been sent then.
    pub async fn send_all(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let sent = poll_fn(|cx| self.poll_send_vectored(cx, &[IoSlice::new(bytes)])).await?;
            bytes = bytes.get(sent..).unwrap_or_default();
        }
        Ok(())
    }

    /// As [`Stream::breathe`].
    pub fn breathe(&mut self) {
        match self {
            Wire::Plain(socket) => socket.breathe(),
            Wire::Tls(tls) => tls.breathe(),
        }
    }

    /// With TLS, tells the peer that everything was said.
    pub fn close_notify(&mut self) {
        if let Wire::Tls(tls) = self {
            tls.close_notify();
        }
    }

    /// As [`Stream::shut`]: the peer is not told that everything was said.
    pub fn shut(&mut self) {
        match self {
            Wire::Plain(socket) => socket.shut(),
            Wire::Tls(tls) => tls.shut(),
        }
    }

    /// As [`Stream::reset_on_close`]; with TLS its missing last word says as much.
    pub fn reset_on_close(&mut self) {
        match self {
            Wire::Plain(socket) => socket.reset_on_close(),
            Wire::Tls(tls) => tls.shut(),
        }
    }

    /// As [`Stream::shut_write`].
    pub fn shut_write(&mut self) {
        match self {
            Wire::Plain(socket) => socket.shut_write(),
            Wire::Tls(tls) => tls.shut_write(),
        }
    }
}
