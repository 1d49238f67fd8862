//! One thing to say to the store, and what waits for the answer. Lives on its core.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use super::advance::Message;
use super::resp::Reply;
use super::script::Scripts;
use super::stats::Trouble;
use super::who::Who;
use crate::net;
use crate::tenants::quota::Ask;

/// What is said.
pub(super) enum What {
    Reserve {
        who: Arc<Who>,
        ask: Ask,
    },
    Settle {
        who: Arc<Who>,
        ask: Ask,
        used: u64,
        guard: bool,
    },
    Renew {
        who: Arc<Who>,
        asks: Vec<Ask>,
    },
    Advance {
        who: Arc<Who>,
        name: String,
        message: Message,
    },
    Beat {
        gateway: u64,
        bye: bool,
    },
    /// Can this server, which has let us down, write again? Any key of that tag.
    Probe {
        tag: String,
    },
}

/// See the module.
pub(super) struct Op {
    pub what: What,
    /// Said already, on a connection that ended: somebody may have heard it.
    pub resent: Cell<bool>,
    /// On the wire, now or before.
    pub sent: Cell<bool>,
    pub sent_ms: Cell<u64>,
    /// Nobody waits any more.
    pub gone: Cell<bool>,
    pub by_source: Cell<bool>,
    /// A slot on its way between two nodes: ask this one all the same.
    pub asking: Cell<bool>,
    pub hops: Cell<u8>,
    answer: RefCell<Option<Result<Reply, Trouble>>>,
    waker: RefCell<Option<Waker>>,
}

impl Op {
    pub(super) fn new(what: What) -> Rc<Op> {
        Rc::new(Op {
            what,
            resent: Cell::new(false),
            sent: Cell::new(false),
            sent_ms: Cell::new(0),
            gone: Cell::new(false),
            by_source: Cell::new(false),
            asking: Cell::new(false),
            hops: Cell::new(0),
            answer: RefCell::new(None),
            waker: RefCell::new(None),
        })
    }

    /// As it goes over the wire.
    pub(super) fn pack(&self, scripts: &Scripts, out: &mut Vec<u8>) {
        if self.asking.get() {
            redis::cmd("ASKING").write_packed_command(out);
        }
        let source = self.by_source.get();
        let call = match &self.what {
            What::Reserve { who, ask } => scripts.reserve(source, who, ask),
            What::Settle { who, ask, used, guard } => {
                scripts.settle(source, who, ask, *used, *guard || self.resent.get())
            }
            What::Renew { who, asks } => scripts.renew(source, who, asks),
            What::Advance { who, name, message } => scripts.advance(source, who, name, message),
            What::Beat { gateway, bye } => scripts.beat(source, *gateway, *bye),
            What::Probe { tag } => probe(tag),
        };
        call.write_packed_command(out);
    }

    /// The slot of its keys.
    pub(super) fn slot(&self) -> u16 {
        match &self.what {
            What::Reserve { who, .. }
            | What::Settle { who, .. }
            | What::Renew { who, .. }
            | What::Advance { who, .. } => who.slot,
            What::Beat { .. } => super::script::gateways_slot(),
            What::Probe { tag } => super::slot::slot(tag.as_bytes()),
        }
    }

    /// The hash tag of its keys, for a probe of the same server.
    pub(super) fn tag(&self) -> String {
        let key = match &self.what {
            What::Reserve { who, .. }
            | What::Settle { who, .. }
            | What::Renew { who, .. }
            | What::Advance { who, .. } => who.keys.first(),
            What::Beat { .. } | What::Probe { .. } => None,
        };
        let tag = key.and_then(|key| key.split_once('{')?.1.split_once('}'));
        tag.map_or_else(String::new, |(tag, _)| tag.to_owned())
    }

    pub(super) fn answer(&self, answer: Result<Reply, Trouble>) {
        *self.answer.borrow_mut() = Some(answer);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }

    /// Waits for the answer, at most so long; `None`: none came.
    pub(super) async fn within(&self, ms: u64) -> Option<Result<Reply, Trouble>> {
        let mut over = std::pin::pin!(net::sleep(Duration::from_millis(ms)));
        poll_fn(|cx| {
            if let Some(answer) = self.answer.borrow_mut().take() {
                return Poll::Ready(Some(answer));
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            over.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// Waits for the answer; the connection sees to it that there is one.
    pub(super) async fn answered(&self) -> Result<Reply, Trouble> {
        poll_fn(|cx| {
            if let Some(answer) = self.answer.borrow_mut().take() {
                return Poll::Ready(answer);
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

/// A write that leaves nothing behind.
pub(super) fn probe(tag: &str) -> redis::Cmd {
    let key = format!("expedite:{{{tag}}}:probe");
    redis::cmd("SET").arg(key).arg(1).arg("PX").arg(1_000).to_owned()
}
