//! A client's connection, with TLS or without: one type for whoever serves it.
//!
//! A plain one costs a branch a call. On the thread of its core.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::stream::Stream;
use super::tls::{HandshakeError, TlsStream};

/// See the module.
pub enum Wire {
    /// As it is.
    Plain(Stream),
    /// With TLS.
    Tls(Box<TlsStream>),
}

impl Wire {
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
    /// As there; with TLS also what is not sound, and an end that the client did not confirm.
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

    /// With TLS, tells the client that everything was said.
    pub fn close_notify(&mut self) {
        if let Wire::Tls(tls) = self {
            tls.close_notify();
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
