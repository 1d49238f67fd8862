//! Waiting until a socket may be read or written, without an allocation per wait.
//!
//! monoio's `readable()` is an `async fn`, whose future has no name and cannot be a field. A
//! [`Wait`] keeps the place of one such future and makes a new one in it for each wait.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

/// A wait that can be polled again and again; object-safe face of [`Slot`].
pub(super) trait Wait {
    /// Ready once per arming: the socket became ready, or failed (the next call tells).
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()>;
}

struct Slot<M, F> {
    make: M,
    future: Pin<Box<Option<F>>>,
}

impl<M, F> Wait for Slot<M, F>
where
    M: FnMut() -> F,
    F: Future<Output = io::Result<()>>,
{
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.future.is_none() {
            let future = (self.make)();
            self.future.as_mut().set(Some(future));
        }
        let Some(future) = self.future.as_mut().as_pin_mut() else { return Poll::Ready(()) };
        match future.poll(cx) {
            Poll::Pending => Poll::Pending,
            // An error here (a full ring, a cancelled poll) is no verdict on the socket: the
            // system call that follows gives that.
            Poll::Ready(_) => {
                self.future.as_mut().set(None);
                Poll::Ready(())
            }
        }
    }
}

/// A wait whose futures come from `make`.
pub(super) fn slot<M, F>(make: M) -> Box<dyn Wait>
where
    M: FnMut() -> F + 'static,
    F: Future<Output = io::Result<()>> + 'static,
{
    Box::new(Slot { make, future: Box::pin(None) })
}
