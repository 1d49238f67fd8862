//! Mistakes in a configuration, each with its line, and the nearest right name.

use std::fmt;

/// One mistake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    /// Name of the file; empty when the mistake is on the command line.
    pub file: String,
    /// Line from 1; 0 when no line is to blame.
    pub line: u32,
    /// What is wrong and what would be right. Never holds the value of a secret.
    pub what: String,
}

/// All mistakes of one configuration, in the order of their lines; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.file.as_str(), self.line) {
            ("", _) => f.write_str(&self.what),
            (file, 0) => write!(f, "{file}: {}", self.what),
            (file, line) => write!(f, "{file}:{line}: {}", self.what),
        }
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.0.iter().enumerate() {
            let gap = if n == 0 { "" } else { "\n" };
            write!(f, "{gap}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigError {}
impl std::error::Error for ConfigErrors {}

/// `; did you mean "NAME"?` for the name nearest to a mistaken one, or nothing when none is near:
/// within a third of its length, two edits at least, or begun by it (`ttft` for `ttft_ms`).
pub(super) fn did_you_mean<'n>(wrong: &str, names: impl IntoIterator<Item = &'n str>) -> String {
    let near = names.into_iter().map(|name| (edit_distance(wrong, name), name)).min();
    let begins = |name: &str| wrong.len() >= 3 && name.starts_with(wrong);
    match near {
        Some((distance, name)) if distance <= (name.len() / 3).max(2) || begins(name) => {
            format!("; did you mean \"{name}\"?")
        }
        _ => String::new(),
    }
}

/// Damerau's distance restricted to adjacent swaps (optimal string alignment), over characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().take(64).collect();
    let b: Vec<char> = b.chars().take(64).collect();
    let mut above: Vec<usize> = vec![0; b.len() + 1];
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut next = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let differs = usize::from(a[i - 1] != b[j - 1]);
            let mut best = (row[j - 1] + differs).min(row[j] + 1).min(next[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(above[j - 2] + 1);
            }
            next[j] = best;
        }
        above = std::mem::replace(&mut row, next);
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        assert_eq!(edit_distance("replcias", "replicas"), 1);
        assert_eq!(edit_distance("same", "same"), 0);
    }

    #[test]
    fn suggests_only_what_is_near() {
        assert_eq!(did_you_mean("nmae", ["model", "name"]), "; did you mean \"name\"?");
        assert_eq!(did_you_mean("zebra", ["model", "name"]), "");
        assert_eq!(did_you_mean("zebra", []), "");
    }
}
