//! Documented keys whose feature this version does not have, in one table.
//!
//! Such a key is read and checked like any other, and a warning says that it is ignored. A feature
//! that lands removes its line here.

use super::effective::{Effective, Entry};

/// Section, key (or the inline table that holds it), and what it means that it is ignored when it
/// is not the default.
const ABSENT: &[(&str, &str, &str)] = &[("server", "h2c", "clients get HTTP/1.1")];

/// The warnings. A key is named once, at its first line.
pub(super) fn judge(effective: &Effective) -> Vec<String> {
    let mut warnings = Vec::new();
    for (kind, key, meaning) in ABSENT {
        let section = effective.sections.iter().find(|s| s.kind == *kind && has(s, key).is_some());
        let Some((section, entry)) = section.and_then(|s| Some((s, has(s, key)?))) else {
            continue;
        };
        let (file, line, header) = (&effective.file, entry.origin.line(), &section.header);
        warnings.push(format!(
            "{file}:{line}: {key} in {header} is not in this version: ignored; {meaning}"
        ));
    }
    warnings
}

/// The entry by which a section sets a key to something else than its default.
fn has<'e>(section: &'e super::effective::Section, key: &str) -> Option<&'e Entry> {
    let owns = |entry: &&Entry| {
        let rest = entry.key.strip_prefix(key);
        entry.changed && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    section.entries.iter().find(owns)
}
