//! Waits for a bench, and draws a line about it on a terminal.

use std::io::{IsTerminal, Write as _};
use std::time::{Duration, Instant};

use crate::bench::{Bench, Progress, Report};

/// How often the progress line is drawn anew, and over which time its rates are taken.
const REDRAW: Duration = Duration::from_millis(200);
const WINDOW: Duration = Duration::from_secs(1);

/// What ended it.
pub(super) struct Watched {
    pub(super) report: Report,
    /// The operator wants no more.
    pub(super) interrupted: bool,
}

/// Waits for the end; Ctrl-C, SIGTERM and `until` end it early. `title` begins the line.
pub(super) fn watch(
    bench: Bench,
    title: &str,
    seconds: u64,
    until: Option<Duration>,
) -> std::io::Result<Watched> {
    use tokio::signal::unix::{SignalKind, signal};
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let begun = Instant::now();
    let mut line = Line::new(begun);
    let interrupted = runtime.block_on(async {
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupted = false;
        while !bench.is_finished() {
            tokio::select! {
                _ = interrupt.recv() => interrupted = true,
                _ = terminate.recv() => interrupted = true,
                () = tokio::time::sleep(Duration::from_millis(10)) => {}
            }
            if interrupted || until.is_some_and(|limit| begun.elapsed() > limit) {
                bench.stop();
            }
            line.draw(&bench.progress(), title, seconds);
        }
        Ok::<bool, std::io::Error>(interrupted)
    })?;
    line.clear();
    Ok(Watched { report: bench.finish()?, interrupted })
}

/// The line on the terminal.
struct Line {
    begun: Instant,
    drawn: Instant,
    /// When the window began, and what there was then.
    since: (Instant, Progress),
    rates: String,
    shown: bool,
}

impl Line {
    fn new(begun: Instant) -> Line {
        let shown = std::io::stderr().is_terminal();
        let since = (begun, Progress::default());
        Line { begun, drawn: begun, since, rates: String::new(), shown }
    }

    fn draw(&mut self, now: &Progress, title: &str, seconds: u64) {
        if !self.shown || self.drawn.elapsed() < REDRAW {
            return;
        }
        self.drawn = Instant::now();
        let window = self.since.0.elapsed();
        if window >= WINDOW {
            self.rates = rates(&self.since.1, now, window);
            self.since = (Instant::now(), *now);
        }
        let _ = write!(
            std::io::stderr().lock(),
            "\r\x1b[K{title}{} s of {seconds}: {} requests ended, {} failed{}",
            self.begun.elapsed().as_secs(),
            now.done,
            now.failed,
            self.rates
        );
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
        }
    }
}

/// What happened between two moments.
fn rates(before: &Progress, now: &Progress, window: Duration) -> String {
    let a_second = |before: u64, now: u64| (now - before) as f64 / window.as_secs_f64();
    let mean_ms = |before: (u64, u64), now: (u64, u64)| {
        let (sum, count) = (now.0 - before.0, now.1 - before.1);
        (count > 0).then(|| sum as f64 / count as f64 / 1e6)
    };
    let mut told = format!(
        "; {:.0} requests/s, {:.0} tokens/s",
        a_second(before.done, now.done),
        a_second(before.tokens, now.tokens)
    );
    if let Some(ms) = mean_ms(before.ttft_ns, now.ttft_ns) {
        told += &format!(", first token {ms:.1} ms");
    }
    if let Some(ms) = mean_ms(before.tpot_ns, now.tpot_ns) {
        told += &format!(", {ms:.2} ms a token");
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_the_window() {
        let before =
            Progress { done: 10, failed: 0, tokens: 100, ttft_ns: (5, 1), tpot_ns: (7, 1) };
        let now =
            Progress { done: 30, tokens: 500, ttft_ns: (40_000_005, 3), tpot_ns: (7, 1), ..before };
        let told = rates(&before, &now, Duration::from_secs(2));
        assert_eq!(told, "; 10 requests/s, 200 tokens/s, first token 20.0 ms");
    }
}
