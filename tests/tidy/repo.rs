//! The repository as the rules see it: its text files, and its Rust files as tokens.
//!
//! Owns the texts it read; reads the working tree once and never writes.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::scan::{self, Token};

/// Folders that hold no text of ours: outputs, installed packages, recorded inputs.
const SKIPPED: [&str; 7] =
    [".git", ".cache", "target", "node_modules", "__pycache__", "artifacts", "corpus"];

/// A text file of the repository.
pub(crate) struct Text {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// What it holds.
    pub(crate) text: String,
}

/// A Rust file.
pub(crate) struct Source {
    /// Path from the root, with `/`.
    pub(crate) path: String,
    /// As written.
    pub(crate) raw: String,
    /// Its comments, every other character blank, line by line as in `raw`.
    pub(crate) comments: String,
    /// Its code.
    pub(crate) tokens: Vec<Token>,
}

impl Source {
    /// The tokens that are not only for tests.
    pub(crate) fn shipped(&self) -> Vec<Token> {
        self.tokens.iter().filter(|token| !token.test).cloned().collect()
    }

    /// The module under `src/` that the file belongs to: `http1` for `src/http1/head.rs`.
    pub(crate) fn module(&self) -> Option<&str> {
        let inner = self.path.strip_prefix("src/")?;
        Some(inner.split('/').next().unwrap_or(inner).trim_end_matches(".rs"))
    }

    /// Every path that the shipped code names, its own crate always as `crate::...`.
    pub(crate) fn paths(&self) -> Vec<(usize, String)> {
        let depth = self.depth();
        let mut paths = scan::paths(&self.shipped());
        for (_, path) in &mut paths {
            let up = path.split("::").take_while(|part| *part == "super").count();
            if up > 0 && up >= depth {
                *path = "crate::".to_string() + &path["super::".len() * up..];
            } else if let Some(rest) = path.strip_prefix("expedite::") {
                *path = "crate::".to_string() + rest;
            }
        }
        paths
    }

    /// How many `super` lead from this file to the root of the crate.
    fn depth(&self) -> usize {
        let inner = self.path.strip_prefix("src/").unwrap_or(&self.path);
        let folders = inner.matches('/').count();
        let own = !["mod.rs", "lib.rs", "main.rs"].iter().any(|name| inner.ends_with(name));
        folders + usize::from(own)
    }
}

/// All that the rules look at.
pub(crate) struct Repo {
    /// Every text file, Rust or not.
    pub(crate) texts: Vec<Text>,
    /// The Rust files.
    pub(crate) sources: Vec<Source>,
}

impl Repo {
    /// Reads the working tree that this test was built from.
    pub(crate) fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut files = Vec::new();
        walk(root, &mut files);
        files.sort();
        Self::of(files.iter().filter_map(|file| {
            let path = file.strip_prefix(root).ok()?.to_str()?.to_string();
            Some((path, std::fs::read_to_string(file).ok()?))
        }))
    }

    /// A repository of these `(path, text)` files.
    pub(crate) fn of(files: impl IntoIterator<Item = (String, String)>) -> Self {
        let texts: Vec<Text> = files.into_iter().map(|(path, text)| Text { path, text }).collect();
        let mut sources: Vec<Source> =
            texts.iter().filter(|file| file.path.ends_with(".rs")).map(source).collect();
        let tests: BTreeSet<String> = sources.iter().flat_map(test_modules).collect();
        for source in &mut sources {
            let stem = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
            let in_tests = |test: &String| stem == test || stem.starts_with(&format!("{test}/"));
            if !source.path.starts_with("src/") || tests.iter().any(in_tests) {
                source.tokens.iter_mut().for_each(|token| token.test = true);
            }
        }
        Self { texts, sources }
    }

    /// The text of `path`, empty when there is none.
    pub(crate) fn text(&self, path: &str) -> &str {
        self.texts.iter().find(|file| file.path == path).map_or("", |file| &file.text)
    }

    /// Whether the file is there.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.texts.iter().any(|file| file.path == path)
    }
}

fn source(file: &Text) -> Source {
    let (code, comments) = scan::split(&file.text);
    let (path, raw) = (file.path.clone(), file.text.clone());
    Source { path, raw, comments, tokens: scan::tokens(&code) }
}

/// The modules that `source` declares as `#[cfg(test)] mod NAME;`, as paths without `.rs`.
fn test_modules(source: &Source) -> Vec<String> {
    let (folder, file) = source.path.rsplit_once('/').unwrap_or(("", &source.path));
    let base = match file {
        "mod.rs" | "lib.rs" | "main.rs" => folder.to_string(),
        file => format!("{folder}/{}", file.trim_end_matches(".rs")),
    };
    let lines: Vec<&str> = source.raw.lines().collect();
    let tokens = &source.tokens;
    scan::find(tokens, &["mod"])
        .filter(|&at| tokens[at].test && tokens.get(at + 2).is_some_and(|t| t.text == ";"))
        .map(|at| match path_attribute(&lines[..tokens[at].line]) {
            Some(path) => format!("{folder}/{}", path.trim_end_matches(".rs")),
            None => format!("{base}/{}", tokens[at + 1].text),
        })
        .collect()
}

/// The file that `#[path = "..."]` names, on the last of `lines` or on an attribute above it.
fn path_attribute<'a>(lines: &[&'a str]) -> Option<&'a str> {
    let (last, above) = lines.split_last()?;
    let attributes = above.iter().rev().take_while(|line| line.trim_start().starts_with("#["));
    let mut all = std::iter::once(last).chain(attributes);
    all.find_map(|line| line.split_once("#[path = \"")?.1.split('"').next())
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).expect("the tree can be read").flatten() {
        let (path, name) = (entry.path(), entry.file_name());
        if SKIPPED.iter().any(|skipped| name == *skipped) {
            continue;
        }
        if path.is_dir() {
            walk(&path, files);
        } else {
            files.push(path);
        }
    }
}
