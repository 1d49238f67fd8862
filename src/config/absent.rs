//! Documented keys whose feature this version does not have, in one table.
//!
//! Such a key is read and checked like any other. Where going on without the feature would be
//! unsafe the start is refused; elsewhere a warning says that it is ignored. A feature that lands
//! removes its line here.

use super::effective::{Effective, Entry};
use super::error::ConfigError;

enum Verdict {
    /// Ignored, and this is what that means.
    Warn(&'static str),
    /// Not started with, for this reason.
    Refuse(&'static str),
}
use Verdict::{Refuse, Warn};

/// Section, key (or the inline table that holds it), and the verdict when it is not the default.
const ABSENT: &[(&str, &str, Verdict)] = &[
    ("server", "tls", Refuse("requests and keys would travel in clear text")),
    ("server", "h2c", Warn("clients get HTTP/1.1")),
    ("pool", "role", Warn("the pool serves whole requests")),
    ("pool", "pair", Warn("the pool serves whole requests")),
    ("timeouts", "sse_keepalive_ms", Warn("no comments are sent while a stream is silent")),
];

/// Warnings, and what must not be started with. A key is named once, at its first line.
pub(super) fn judge(effective: &Effective) -> (Vec<String>, Vec<ConfigError>) {
    let (mut warnings, mut refusals) = (Vec::new(), Vec::new());
    for (kind, key, verdict) in ABSENT {
        let section = effective.sections.iter().find(|s| s.kind == *kind && has(s, key).is_some());
        let Some((section, entry)) = section.and_then(|s| Some((s, has(s, key)?))) else {
            continue;
        };
        let (file, line, header) = (&effective.file, entry.origin.line(), &section.header);
        match verdict {
            Warn(meaning) => warnings.push(format!(
                "{file}:{line}: {key} in {header} is not in this version: ignored; {meaning}"
            )),
            Refuse(reason) => refusals.push(ConfigError {
                file: file.clone(),
                line,
                what: format!("{key} in {header} is not in this version: refused, since {reason}"),
            }),
        }
    }
    (warnings, refusals)
}

/// The entry by which a section sets a key to something else than its default.
fn has<'e>(section: &'e super::effective::Section, key: &str) -> Option<&'e Entry> {
    let owns = |entry: &&Entry| {
        let rest = entry.key.strip_prefix(key);
        entry.changed && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    section.entries.iter().find(owns)
}
