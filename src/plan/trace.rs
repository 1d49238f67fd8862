//! Recorded traffic as a workload: JSON lines, one request a line.
//!
//! Read are Mooncake's form (`timestamp` in ms, `input_length`, `output_length`, `hash_ids` that
//! each name 512 tokens and all before them), Bailian's (the same with `chat_id`, seconds, and 16
//! tokens a name), and lengths without names (Azure's): then every prompt is unlike any other.

use std::collections::HashMap;

use serde::Deserialize;

use super::random::mix;
use super::workload::{BLOCK_TOKENS, Session, Text, Turn, Workload};

/// Tokens that a name stands for.
const MOONCAKE_TOKENS: u64 = 512;
const BAILIAN_TOKENS: u64 = 16;
/// Longest prompt and answer that are taken.
const TOKENS_MAX: u64 = 4_000_000;

/// A line of a trace; what else it has is not read.
#[derive(Deserialize)]
struct Line {
    timestamp: f64,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: Vec<i64>,
    chat_id: Option<serde_json::Value>,
}

/// A recorded workload.
#[derive(Clone, Debug)]
pub struct Trace {
    /// One session a line, its start in us since the first.
    sessions: Vec<Session>,
    /// Requests a second as recorded.
    rate: f64,
}

impl Trace {
    /// Reads the lines; the error names the first that makes no sense.
    ///
    /// # Errors
    /// A line that is none of the forms, or no line at all.
    pub fn parse(text: &str) -> Result<Trace, String> {
        let mut lines = Vec::new();
        for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let line: Line = serde_json::from_str(line)
                .map_err(|error| format!("line {}: not a request: {error}", number + 1))?;
            line.check().map_err(|what| format!("line {}: {what}", number + 1))?;
            lines.push(line);
        }
        let bailian = lines.iter().any(|line| line.chat_id.is_some());
        let (name_tokens, tick_us) =
            if bailian { (BAILIAN_TOKENS, 1e6) } else { (MOONCAKE_TOKENS, 1e3) };
        lines.sort_by(|a, b| a.timestamp.total_cmp(&b.timestamp));
        let first = lines.first().ok_or("no request in it")?.timestamp;
        let last = lines.last().map_or(first, |line| line.timestamp);
        let mut names = Names::default();
        let sessions: Vec<Session> = lines
            .iter()
            .enumerate()
            .map(|(i, line)| {
                let start_us = ((line.timestamp - first) * tick_us) as u64;
                line.session(i as u64, start_us, name_tokens, &mut names)
            })
            .collect();
        // As many gaps as requests: the mean gap follows the last one, too.
        let gaps = sessions.len().saturating_sub(1).max(1) as f64;
        let seconds = (last - first) * tick_us / 1e6;
        let rate = if seconds > 0.0 { gaps / seconds } else { sessions.len() as f64 };
        Ok(Trace { sessions, rate })
    }

    /// Requests a second as recorded.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// The trace at another rate, its first `seconds` of virtual time if that is given.
    #[must_use]
    pub fn workload(&self, rate: f64, seconds: Option<f64>) -> Workload {
        let stretch = self.rate / rate;
        let at = |session: &Session| (session.start_us as f64 * stretch) as u64;
        let all_us = self.sessions.last().map_or(0, at) + (1e6 / rate) as u64;
        let end_us = seconds.map_or(all_us, |s| ((s * 1e6) as u64).min(all_us)).max(1);
        let sessions = self.sessions.iter().take_while(|session| at(session) < end_us);
        let sessions = sessions.map(|s| Session { start_us: at(s), ..s.clone() }).collect();
        Workload { sessions, end_us, think_us: 0, token_us: 0 }
    }
}

/// The trace's names as keys of blocks.
#[derive(Default)]
struct Names(HashMap<i64, u64>);

impl Names {
    fn key(&mut self, name: i64) -> u64 {
        let next = mix(self.0.len() as u64 | 1 << 40);
        *self.0.entry(name).or_insert(next)
    }
}

impl Line {
    fn check(&self) -> Result<(), String> {
        if !self.timestamp.is_finite() || self.timestamp < 0.0 {
            return Err(format!("timestamp {} is no time", self.timestamp));
        }
        if self.input_length.max(self.output_length) > TOKENS_MAX {
            return Err(format!("more than {TOKENS_MAX} tokens"));
        }
        Ok(())
    }

    fn session(&self, index: u64, start_us: u64, name_tokens: u64, names: &mut Names) -> Session {
        let turn = Turn {
            prompt_tokens: self.input_length.max(1) as u32,
            output_tokens: self.output_length.max(1) as u32,
        };
        let text = Text::Named {
            names: self.hash_ids.iter().map(|&name| names.key(name)).collect(),
            blocks_each: (name_tokens / BLOCK_TOKENS) as u32,
            own: mix(index | 1 << 41),
        };
        Session { start_us, adapter: 0, tenant: 0, turns: [turn].into(), text }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A line of Mooncake's form.
    fn line(timestamp: u64, input: u64, output: u64, names: &str) -> String {
        format!(
            "{{\"timestamp\": {timestamp}, \"input_length\": {input}, \
             \"output_length\": {output}, \"hash_ids\": [{names}]}}\n"
        )
    }

    fn mooncake() -> String {
        let second = line(3000, 1600, 20, "0, 1, 7, 8");
        line(1000, 1100, 10, "0, 1, 2") + &second + "\n" + &line(2000, 520, 0, "5, 6")
    }

    #[test]
    fn mooncake_names_stand_for_512_tokens() {
        let trace = Trace::parse(&mooncake()).expect("a trace");
        assert!((trace.rate() - 1.0).abs() < 1e-9);
        let workload = trace.workload(1.0, None);
        let starts: Vec<u64> = workload.sessions.iter().map(|s| s.start_us).collect();
        assert_eq!(starts, [0, 1_000_000, 2_000_000]);
        let chains: Vec<_> = workload.sessions.iter().map(Session::chain).collect();
        assert_eq!(chains[0].len(), 1110 / 16);
        assert_eq!(chains[0][..64], chains[2][..64]);
        assert_ne!(chains[0][64], chains[2][64]);
        assert_ne!(chains[0][0], chains[1][0]);
    }

    #[test]
    fn a_rate_stretches_the_time() {
        let trace = Trace::parse(&mooncake()).expect("a trace");
        let workload = trace.workload(4.0, None);
        assert_eq!(workload.sessions[2].start_us, 500_000);
        assert_eq!(workload.end_us, 750_000);
        let short = trace.workload(4.0, Some(0.3));
        assert_eq!((short.sessions.len(), short.end_us), (2, 300_000));
    }

    #[test]
    fn bailian_counts_seconds_and_blocks_of_sixteen() {
        let chat = |chat: u32, seconds: &str, names: &str| {
            line(0, 40, 1, names)
                .replace("\"timestamp\": 0", &format!("\"timestamp\": {seconds}"))
                .replace('{', &format!("{{\"chat_id\": {chat}, \"type\": \"text\", \"turn\": 1, "))
        };
        let text = chat(1, "0.0", "1, 2, 3") + &chat(2, "2.5", "1, 9, 3");
        let workload = Trace::parse(&text).expect("a trace").workload(0.4, None);
        assert_eq!(workload.sessions[1].start_us, 2_500_000);
        let (a, b) = (workload.sessions[0].chain(), workload.sessions[1].chain());
        assert_eq!((a[0], a.len()), (b[0], 2));
        assert_ne!(a[1], b[1]);
    }

    #[test]
    fn without_names_nothing_is_shared() {
        let line = "{\"timestamp\": 0, \"input_length\": 64, \"output_length\": 4}\n";
        let workload = Trace::parse(&line.repeat(2)).expect("a trace").workload(1.0, None);
        let (a, b) = (workload.sessions[0].chain(), workload.sessions[1].chain());
        assert!(a.len() == 4 && a.iter().zip(b.iter()).all(|(x, y)| x != y));
    }

    #[test]
    fn nonsense_is_named_by_its_line() {
        let bad = |text: &str| Trace::parse(text).expect_err("no trace");
        assert!(bad("").contains("no request"));
        assert!(bad(&mooncake().replace("520", "\"x\"")).starts_with("line 4: not a request"));
        assert!(
            bad("{\"timestamp\": -1, \"input_length\": 1, \"output_length\": 1}").contains("time")
        );
        let huge = "{\"timestamp\": 0, \"input_length\": 99999999999, \"output_length\": 1}";
        assert!(bad(huge).contains("tokens"));
    }
}
