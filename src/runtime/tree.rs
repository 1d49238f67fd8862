//! Files of `/proc` and `/sys` below a root, and the notations that they use.

use std::path::{Path, PathBuf};

use super::files;

/// No file of the kernel's that is read here is longer; a longer one is not read.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// No machine has more CPUs; what a list names beyond is left out.
const CPUS_MAX: usize = 8192;

/// Where `/proc` and `/sys` are.
#[derive(Clone, Debug)]
pub struct Tree(PathBuf);

impl Tree {
    /// The machine's own for `/`; a recorded tree's folder in tests.
    pub fn at(root: impl AsRef<Path>) -> Tree {
        Tree(root.as_ref().to_owned())
    }

    /// The text of a file without the white space around it; `None` when it cannot be read.
    pub fn text(&self, path: &str) -> Option<String> {
        let bytes = files::read(&self.0.join(path), FILE_BYTES_MAX).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// A file that holds one number.
    pub fn number(&self, path: &str) -> Option<u64> {
        self.text(path)?.parse().ok()
    }

    /// A file that holds a list of CPUs.
    pub fn cpus(&self, path: &str) -> Option<Vec<usize>> {
        Some(cpus(&self.text(path)?))
    }

    /// Names in a folder, sorted; none when it cannot be read.
    pub fn names(&self, path: &str) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.join(path)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    /// Whether there is something at a path.
    pub fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }
}

/// The value behind `name` and a colon in a file such as `/proc/self/status`.
pub fn field<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    let value = |line: &'t str| line.strip_prefix(name)?.strip_prefix(':');
    text.lines().find_map(value).map(str::trim)
}

/// Reads a list of CPUs such as `0-3,8`; what is no number is left out.
pub fn cpus(list: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.trim().parse(), last.trim().parse::<usize>()) {
            all.extend(first..last.saturating_add(1).min(CPUS_MAX));
        }
    }
    all
}

/// Writes a list of CPUs as the kernel does: `0-3,8`.
pub fn list(cpus: &[usize]) -> String {
    let mut cpus = cpus.to_vec();
    cpus.sort_unstable();
    cpus.dedup();
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let run = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    runs.iter().map(run).collect::<Vec<_>>().join(",")
}

/// Writes CPUs as a mask of hexadecimal words of 32 bits, as `rps_cpus` takes it.
pub fn mask(cpus: &[usize]) -> String {
    let words = cpus.iter().max().map_or(0, |most| most / 32) + 1;
    let word = |at: usize| {
        let own = cpus.iter().filter(|cpu| *cpu / 32 == at);
        own.fold(0_u32, |word, cpu| word | 1 << (cpu % 32))
    };
    let all: Vec<_> = (0..words).rev().map(|at| format!("{:08x}", word(at))).collect();
    let text = all.join(",");
    match text.trim_start_matches(['0', ',']) {
        "" => "0".to_owned(),
        rest => rest.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read_and_written_as_the_kernel_does() {
        for (text, all) in [
            ("0-3,8", vec![0, 1, 2, 3, 8]),
            ("0", vec![0]),
            ("", vec![]),
            ("(null)", vec![]),
            ("1,x,3-2", vec![1]),
        ] {
            assert_eq!(cpus(text), all, "{text}");
        }
        assert_eq!(cpus("0-99999999999").len(), CPUS_MAX);
        assert_eq!(cpus("5-18446744073709551615").last(), Some(&(CPUS_MAX - 1)));
        assert_eq!(list(&[8, 0, 1, 2, 3, 3]), "0-3,8");
        assert_eq!(list(&[]), "");
    }

    #[test]
    fn masks_are_words_from_the_highest_down() {
        assert_eq!(mask(&[]), "0");
        assert_eq!(mask(&[0, 1]), "3");
        assert_eq!(mask(&[31]), "80000000");
        assert_eq!(mask(&[32, 0]), "1,00000001");
        assert_eq!(mask(&[65]), "2,00000000,00000000");
    }

    #[test]
    fn what_is_not_there_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let tree = Tree::at(folder.path());
        std::fs::write(folder.path().join("a"), "  12\n").unwrap();
        std::fs::write(folder.path().join("b"), [0xff, 0xfe]).unwrap();
        assert_eq!((tree.number("a"), tree.number("b"), tree.number("c")), (Some(12), None, None));
        assert_eq!(tree.names("no/such"), Vec::<String>::new());
        assert_eq!(tree.names(""), ["a", "b"]);
        assert!(tree.has("a") && !tree.has("c"));
        assert_eq!(field("Seccomp:\t2\nSeccomp_filters:\t1\n", "Seccomp"), Some("2"));
    }
}
