//! The house rules, one function each: a repository in, `path:line: what, and the mend` out.
//!
//! Pure; what a rule allows is a table at the top, so that a change of the rule is a line.

use crate::repo::{Repo, Source};
use crate::scan;

/// Most lines of a file, of a function, and most columns of a line.
const FILE_LINES_MAX: usize = 600;
const FUNCTION_LINES_MAX: usize = 70;
const COLUMNS_MAX: usize = 100;

/// Modules that read what a peer sends: nothing in them may panic on it.
const PEER_FACING: [&str; 9] =
    ["http1", "sse", "zmtp", "openai", "prompt", "gateway", "net", "prefix", "telemetry"];

/// Modules without I/O and without a clock (time is an argument), so that they run in virtual time.
const PURE: [&str; 10] = [
    "http1",
    "sse",
    "zmtp",
    "openai",
    "routing",
    "admission",
    "prompt",
    "prefix",
    "engine",
    "plan",
];
const PURE_FILES: [&str; 17] = [
    "src/usage/record.rs",
    "src/usage/sum.rs",
    "src/replicas/events/check.rs",
    "src/replicas/events/decode.rs",
    "src/replicas/events/map.rs",
    "src/replicas/events/msgpack.rs",
    "src/replicas/events/sequence.rs",
    "src/replicas/events/source.rs",
    "src/telemetry/context.rs",
    "src/telemetry/otlp.rs",
    "src/telemetry/request.rs",
    "src/telemetry/trace.rs",
    "src/tenants/accounts.rs",
    "src/tenants/quota/account.rs",
    "src/tenants/quota/bucket.rs",
    "src/tenants/quota/budget.rs",
    "src/tenants/quota/mod.rs",
];
/// What in them reads files all the same: a model's, where a pool is set up and never on a core.
const LOADERS: [&str; 1] = ["src/prompt/template/load.rs"];
const IMPURE: [&str; 9] = [
    "monoio",
    "tokio",
    "redis",
    "io_uring",
    "libc",
    "std::net",
    "std::fs",
    "std::time::Instant",
    "std::time::SystemTime",
];

/// What of these is only a value: an address does no I/O.
const VALUES: [&str; 5] = ["AddrParseError", "IpAddr", "Ipv4Addr", "Ipv6Addr", "SocketAddr"];

/// The only files with `unsafe`.
const UNSAFE: [&str; 2] = ["src/net/sys.rs", "tests/alloc.rs"];

/// Where the runtime may be named: the sockets, and those who build a runtime of their own.
const RUNTIME: [&str; 4] = ["src/net/", "src/gateway/core.rs", "src/sim/", "src/bench/"];

/// Imports run from top to bottom: a module uses modules of later rows only, or itself.
const LAYERS: [&[&str]; 15] = [
    &["main"],
    &["cli"],
    &["sim", "bench", "doctor"],
    &["plan"],
    &["gateway"],
    &["admission"],
    &["routing", "admin"],
    &["replicas"],
    &["prefix"],
    &["engine"],
    &["prompt"],
    &["telemetry"],
    &["openai", "tenants", "usage"],
    &["sse", "http1", "zmtp", "net"],
    &["config", "runtime"],
];

/// Scripts and test beds count as code too, but for what only Rust has.
const CODE: [&str; 5] = [".rs", ".py", ".mjs", ".sh", ".js"];

/// No file is longer than a person reads in one sitting.
pub(crate) fn long_files(repo: &Repo) -> Vec<String> {
    let code = repo.texts.iter().filter(|file| is_code(&file.path));
    code.map(|file| (file, file.text.lines().count()))
        .filter(|(_, lines)| *lines > FILE_LINES_MAX)
        .map(|(file, n)| at(&file.path, n, "the file is too long: split it by noun"))
        .collect()
}

/// No function is longer than a screen.
pub(crate) fn long_functions(repo: &Repo) -> Vec<String> {
    let mut found = Vec::new();
    for source in &repo.sources {
        for f in scan::functions(&source.tokens) {
            if f.lines > FUNCTION_LINES_MAX {
                let what = format!("`{}` has {} lines: name its parts", f.name, f.lines);
                found.push(at(&source.path, f.line, &what));
            }
        }
    }
    found
}

/// No line is wider than a review shows.
pub(crate) fn wide_lines(repo: &Repo) -> Vec<String> {
    let code = repo.texts.iter().filter(|file| is_code(&file.path));
    let lines = code.flat_map(|file| numbered(&file.text).map(move |line| (file, line)));
    lines
        .filter(|(_, (_, line))| line.chars().count() > COLUMNS_MAX)
        .map(|(file, (n, _))| at(&file.path, n, "over 100 columns: break the line"))
        .collect()
}

/// Every module begins by saying what it is.
pub(crate) fn nameless_modules(repo: &Repo) -> Vec<String> {
    let first = |source: &Source| {
        let mut lines = source.raw.lines().map(str::trim);
        lines.find(|l| !l.is_empty() && !l.starts_with("#!")).unwrap_or("").starts_with("//!")
    };
    let nameless = repo.sources.iter().filter(|source| !first(source));
    nameless.map(|s| at(&s.path, 1, "no `//!`: say what it is, owns, and never does")).collect()
}

/// Nothing is left for later.
pub(crate) fn leftovers(repo: &Repo) -> Vec<String> {
    let mut found = Vec::new();
    for source in &repo.sources {
        for (n, line) in numbered(&source.comments) {
            let mut words = line.split(|c: char| !c.is_alphanumeric());
            if words.any(|word| ["TODO", "FIXME", "XXX"].contains(&word)) {
                found.push(at(&source.path, n, "left for later: do it, or file an issue"));
            }
        }
        for name in ["todo", "dbg", "unimplemented"] {
            for i in scan::find(&source.tokens, &[name, "!"]) {
                let what = format!("`{name}!` left in: take it out");
                found.push(at(&source.path, source.tokens[i].line, &what));
            }
        }
        // What several tests share, each uses in part; only `src` may not keep what nothing calls.
        let shipped = source.shipped();
        for i in scan::find(&shipped, &["allow", "(", "dead_code"]) {
            let line = shipped[i].line;
            found.push(at(&source.path, line, "dead code kept: delete it, git remembers"));
        }
        for i in scan::find(&source.tokens, &["#", "[", "ignore"]) {
            let line = source.tokens[i].line;
            // What needs files that we may not keep runs where a script of ours has put them.
            let text = source.raw.lines().nth(line - 1).unwrap_or("");
            if !text.contains("ignore = \"needs scripts/") {
                found.push(at(&source.path, line, "a test that never runs: run it or delete it"));
            }
        }
    }
    found
}

/// Nothing that a peer sends reaches a panic.
pub(crate) fn panics(repo: &Repo) -> Vec<String> {
    let mut found = Vec::new();
    for source in repo.sources.iter().filter(|s| in_modules(s, &PEER_FACING)) {
        let tokens = source.shipped();
        let mut report = |i: usize, what: &str| {
            let mend = format!("`{what}` where a peer's bytes pass: return an error");
            found.push(at(&source.path, tokens[i].line, &mend));
        };
        scan::find(&tokens, &[".", "unwrap", "(", ")"]).for_each(|i| report(i, ".unwrap()"));
        // `.expect()` without an argument is an accessor (the `Expect` header), not a panic.
        scan::find(&tokens, &[".", "expect", "("])
            .filter(|&i| tokens.get(i + 3).is_some_and(|t| t.text != ")"))
            .for_each(|i| report(i, ".expect(..)"));
        for name in ["panic", "unreachable"] {
            scan::find(&tokens, &[name, "!"]).for_each(|i| report(i, &format!("{name}!")));
        }
    }
    found
}

/// `unsafe` stands in the files that were agreed on.
pub(crate) fn unsafe_code(repo: &Repo) -> Vec<String> {
    let fenced = |s: &&Source| !UNSAFE.contains(&s.path.as_str());
    let mut found = Vec::new();
    for source in repo.sources.iter().filter(fenced) {
        for i in scan::find(&source.tokens, &["unsafe"]) {
            let mend = "`unsafe` outside its files: use the safe call, or argue for a new file";
            found.push(at(&source.path, source.tokens[i].line, mend));
        }
    }
    found
}

/// The pure modules do no I/O and read no clock.
pub(crate) fn impure(repo: &Repo) -> Vec<String> {
    let pure = |s: &&Source| in_modules(s, &PURE) || PURE_FILES.contains(&s.path.as_str());
    let mut found = Vec::new();
    for source in repo.sources.iter().filter(pure) {
        for (line, path) in source.paths() {
            let value = path.strip_prefix("std::net::").is_some_and(|name| VALUES.contains(&name));
            let loads = LOADERS.contains(&source.path.as_str()) && is_under(&path, "std::fs");
            let io = !value && !loads && IMPURE.iter().any(|name| is_under(&path, name));
            if io || path.ends_with("Instant::now") || path.ends_with("SystemTime::now") {
                let mend = format!("`{path}` in a pure module: take bytes or the time as argument");
                found.push(at(&source.path, line, &mend));
            }
        }
    }
    found
}

/// Nothing builds on the gateway but the commands.
pub(crate) fn gateway_users(repo: &Repo) -> Vec<String> {
    let mut found = Vec::new();
    for source in &repo.sources {
        if matches!(source.module(), None | Some("gateway" | "cli")) {
            continue;
        }
        for (line, path) in source.paths() {
            if is_under(&path, "crate::gateway") {
                found.push(at(&source.path, line, "only `cli` may use the gateway: move it down"));
            }
        }
    }
    found
}

/// Imports run one way.
pub(crate) fn upward_imports(repo: &Repo) -> Vec<String> {
    let row = |module: &str| LAYERS.iter().position(|row| row.contains(&module));
    let mut found = Vec::new();
    for source in &repo.sources {
        let Some(own) = source.module().filter(|module| *module != "lib") else { continue };
        let Some(own_row) = row(own) else {
            found.push(at(&source.path, 1, "a module without a layer: give it one in tests/tidy"));
            continue;
        };
        for (line, path) in source.paths() {
            let Some(used) = path.strip_prefix("crate::").and_then(|p| p.split("::").next()) else {
                continue;
            };
            if used != own && row(used).is_some_and(|used_row| used_row <= own_row) {
                let mend = format!("`{own}` may not use `{used}`: move what both need down");
                found.push(at(&source.path, line, &mend));
            }
        }
    }
    found
}

/// The runtime is named where sockets and runtimes are made, nowhere else.
pub(crate) fn runtime_users(repo: &Repo) -> Vec<String> {
    let elsewhere = |s: &&Source| !RUNTIME.iter().any(|allowed| s.path.starts_with(allowed));
    let mut found = Vec::new();
    for source in repo.sources.iter().filter(elsewhere) {
        for (line, path) in source.paths() {
            if is_under(&path, "monoio") || is_under(&path, "io_uring") {
                let mend = format!("`{path}` outside `net`: use what `net` offers");
                found.push(at(&source.path, line, &mend));
            }
        }
    }
    found
}

/// Every dependency says why it is there, on its own line.
pub(crate) fn dependencies(repo: &Repo) -> Vec<String> {
    let (mut found, mut inside) = (Vec::new(), false);
    for (n, line) in numbered(repo.text("Cargo.toml")) {
        let reasonless = !line.contains(" # ");
        if line.starts_with('[') {
            let name = line.split(']').next().unwrap_or(line);
            inside = name.ends_with("dependencies");
            if name.contains("dependencies.") && reasonless {
                found.push(at("Cargo.toml", n, "a dependency without a reason: add `# why`"));
            }
        } else if inside && line.contains(" = ") && !line.starts_with([' ', '#']) && reasonless {
            found.push(at("Cargo.toml", n, "a dependency without a reason: add `# why`"));
        }
    }
    found
}

/// Nothing names the machine that it was written on, or a host that only some can reach.
pub(crate) fn machine_names(repo: &Repo) -> Vec<String> {
    let folders = [concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];
    let temp = concat!("/tm", "p/");
    let hosts = [
        concat!("registry.", "npmjs"),
        concat!("registry.", "yarnpkg"),
        concat!("pypi.", "org"),
        concat!("pythonhosted", ".org"),
        concat!("index.", "crates.io"),
        concat!("static.", "crates.io"),
        concat!("deb.", "debian.org"),
    ];
    let mut found = Vec::new();
    for file in &repo.texts {
        for (n, line) in numbered(&file.text) {
            // The path begins a word; inside a URL or a relative path the same letters are fine.
            let names = |folder: &str| {
                line.match_indices(folder).any(|(i, _)| {
                    let before = line[..i].chars().next_back().unwrap_or(' ');
                    !before.is_alphanumeric() && !"._-}$)".contains(before)
                })
            };
            if folders.iter().any(|f| names(f)) || (!file.path.starts_with("tests/") && names(temp))
            {
                found.push(at(&file.path, n, "a folder of one machine: take it as a parameter"));
            }
            if hosts.iter().any(|host| line.contains(host)) {
                found.push(at(&file.path, n, "a registry's host: let the client's settings say"));
            }
        }
    }
    found
}

/// Every command that a page of the manual shows is there.
pub(crate) fn manual_commands(repo: &Repo) -> Vec<String> {
    let pages = repo.texts.iter().filter(|file| file.path.ends_with(".md"));
    pages.flat_map(|page| commands(repo, &page.path)).collect()
}

fn commands(repo: &Repo, page: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (n, line) in numbered(repo.text(page)) {
        let words: Vec<&str> = line.split(|c: char| c.is_whitespace() || c == '`').collect();
        for (i, word) in words.iter().enumerate() {
            let argument = words.get(i + 1).copied().unwrap_or("");
            let is_word = argument.starts_with(|c: char| c.is_ascii_lowercase());
            let path = word.trim_start_matches("./").trim_end_matches(['.', ',', ':', ';', ')']);
            let missing = match path {
                "expedite" | "target/release/expedite" if is_word && shows_code(line) => {
                    !repo.has(&format!("src/cli/{argument}.rs"))
                }
                "--bench" if is_word => !has_target(repo, "benches", argument),
                "--test" if is_word => !has_target(repo, "tests", argument),
                _ if path.starts_with("scripts/") => !is_there(repo, path),
                _ => false,
            };
            if missing {
                let what = format!("`{path} {argument}`: no such command, mend the page");
                found.push(at(page, n, &what));
            }
        }
    }
    found
}

/// Whether a line is a command line (a code block or a prompt), not prose.
fn shows_code(line: &str) -> bool {
    let start = line.trim_start().trim_start_matches("$ ");
    ["expedite ", "./target/", "target/", "cargo "].iter().any(|word| start.starts_with(word))
        || line.contains("`expedite ")
}

/// Whether it is a file, or a folder with files.
fn is_there(repo: &Repo, path: &str) -> bool {
    let inner = |file: &str| file.strip_prefix(path).is_some_and(|rest| rest.starts_with('/'));
    repo.texts.iter().any(|file| file.path == path || inner(&file.path))
}

fn has_target(repo: &Repo, folder: &str, name: &str) -> bool {
    repo.has(&format!("{folder}/{name}.rs")) || repo.has(&format!("{folder}/{name}/main.rs"))
}

fn at(path: &str, line: usize, what: &str) -> String {
    format!("{path}:{line}: {what}")
}

fn numbered(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().enumerate().map(|(i, line)| (i + 1, line))
}

fn is_code(path: &str) -> bool {
    let script = path.starts_with("scripts/") && !path.contains('.');
    script || path.starts_with(".ci/") || CODE.iter().any(|extension| path.ends_with(extension))
}

fn in_modules(source: &Source, modules: &[&str]) -> bool {
    source.module().is_some_and(|module| modules.contains(&module))
}

fn is_under(path: &str, name: &str) -> bool {
    path == name || path.strip_prefix(name).is_some_and(|rest| rest.starts_with("::"))
}
