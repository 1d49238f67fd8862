//! Comment lines to the client of a silent stream (`timeouts.sse_keepalive_ms`): what lies between
//! client and gateway ends a connection that carries nothing for too long, and a prompt may be
//! prefilled for longer than that.
//!
//! The first comment may go out before the replica has answered at all; then the head of the
//! stream goes before it, and what fails later fails in band. A comment is only begun where the
//! client has seen whole events, and what is begun is finished before anything else is sent. It
//! says nothing of the replica: its time limits run on. One a streaming request, on its core, and
//! none when comments are off.

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

use super::sweep::Deadline;
use crate::net::{Wire, fill_slices};

/// The comment as a chunk of its own, and where the answer has no chunks.
const CHUNK: &[u8] = b"e\r\n: keep-alive\n\n\r\n";
const PLAIN: &[u8] = b": keep-alive\n\n";

/// See the module.
pub(super) struct Comments {
    every_ms: u64,
    due: Deadline,
    comment: &'static [u8],
    /// The head of the answer, while nothing else has brought it to the client.
    head: Vec<u8>,
    /// The client has seen a part of an event, or gets something else than a stream.
    hushed: bool,
    /// Bytes of head and comment that were sent, while both are not.
    sent: Option<usize>,
    begun: bool,
}

impl Comments {
    /// The first comment is due after `every_ms` of silence. `due` is a limit that is not set.
    pub(super) fn new(due: Deadline, every_ms: u64, chunked: bool) -> Comments {
        due.set(every_ms);
        let comment = if chunked { CHUNK } else { PLAIN };
        let (head, sent) = (Vec::new(), None);
        Comments { every_ms, due, comment, head, hushed: false, sent, begun: false }
    }

    /// An attempt begins: comments may come, with the head that `write` writes before the first.
    pub(super) fn may_come(&mut self, head_sent: bool, write: impl FnOnce(&mut Vec<u8>)) {
        self.hushed = false;
        if !self.begun {
            self.head.clear();
            if !head_sent {
                write(&mut self.head);
            }
        }
    }

    /// None from here on: the answer is no stream.
    pub(super) fn hush(&mut self) {
        self.hushed = true;
    }

    /// The head and events were sent; `within`: they ended inside of an event.
    pub(super) fn spoke(&mut self, within: bool) {
        self.hushed = within;
        self.head = Vec::new();
        self.due.set(self.every_ms);
    }

    /// A comment was begun, and the head before it: what fails now fails in band.
    pub(super) fn begun(&self) -> bool {
        self.begun
    }

    /// A part of a comment, or of the head before it, is still to be sent.
    pub(super) fn owes(&self) -> bool {
        self.sent.is_some()
    }

    /// Sends a comment if one is due. Adds what the socket has taken to `sent_bytes`.
    ///
    /// # Errors
    /// The client's connection is dead.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Wire,
        sent_bytes: &mut u64,
    ) -> io::Result<()> {
        if !self.owes() {
            if self.hushed || self.due.poll(cx).is_pending() {
                return Ok(());
            }
            self.sent = Some(0);
            self.begun = true;
        }
        match self.poll_send(cx, stream, sent_bytes) {
            Poll::Pending => Ok(()),
            Poll::Ready(Err(error)) => Err(error),
            Poll::Ready(Ok(())) => {
                // Asked again, so that it wakes this task.
                let _ = self.due.poll(cx);
                Ok(())
            }
        }
    }

    /// Sends the rest of what was begun. Adds what the socket has taken to `sent_bytes`.
    ///
    /// # Errors
    /// The client's connection is dead.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut Wire,
        sent_bytes: &mut u64,
    ) -> Poll<io::Result<()>> {
        while let Some(sent) = self.sent {
            if sent >= self.head.len().saturating_add(self.comment.len()) {
                self.head = Vec::new();
                self.sent = None;
                self.due.set(self.every_ms);
                break;
            }
            let mut slices = [IoSlice::new(&[]); 2];
            let pieces = [self.head.as_slice(), self.comment].into_iter();
            match stream.poll_send_vectored(cx, fill_slices(&mut slices, pieces, sent)) {
                Poll::Ready(Ok(n)) => {
                    self.sent = Some(sent.saturating_add(n));
                    *sent_bytes = sent_bytes.saturating_add(n as u64);
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chunk_is_framed_as_it_says() {
        let framed = format!("{:x}\r\n{}\r\n", PLAIN.len(), ": keep-alive\n\n");
        assert_eq!(CHUNK, framed.as_bytes());
    }
}
