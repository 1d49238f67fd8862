//! What the watchers of the control thread tell: that the shape of the fleet has changed, and a
//! line for the log, once for each change and never once a round.

use tokio::sync::Notify;

/// How grave a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// Something came, went or changed.
    Info,
    /// An operator should look at it.
    Warn,
}

/// Where lines go.
pub type Lines = Box<dyn Fn(Tone, &str)>;

/// Where watchers tell. Shared by all of them within the control thread.
pub(super) struct Report {
    changed: Notify,
    log: Lines,
}

impl Report {
    /// Lines go to `log`.
    pub(super) fn new(log: Lines) -> Report {
        Report { changed: Notify::new(), log }
    }

    /// What was learned changes what is published.
    pub(super) fn changed(&self) {
        self.changed.notify_one();
    }

    /// Waits for the next such change.
    pub(super) async fn change(&self) {
        self.changed.notified().await;
    }

    pub(super) fn info(&self, line: &str) {
        (self.log)(Tone::Info, line);
    }

    pub(super) fn warn(&self, line: &str) {
        (self.log)(Tone::Warn, line);
    }
}
