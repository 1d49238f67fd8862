//! Lints the repository for the house rules that the compiler and clippy do not know.
//!
//! One test a rule over the working tree, and one that shows the rule catching a bad sample: a
//! checker that finds nothing proves nothing. Reads files only; needs no network and no build.

mod repo;
mod rules;
mod scan;

use repo::Repo;

/// A rule: what it finds in a repository, as `path:line: what, and the mend`.
type Rule = fn(&Repo) -> Vec<String>;

/// Fails with everything that `rule` finds in the working tree.
fn holds(rule: Rule) {
    let found = rule(&Repo::read());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// Asserts that `rule` finds exactly `lines` in a repository of this one file.
fn finds(rule: Rule, path: &str, text: &str, lines: &[usize]) {
    let found = rule(&Repo::of([(path.to_string(), text.to_string())]));
    let expected: Vec<String> = lines.iter().map(|line| format!("{path}:{line}: ")).collect();
    let same = found.len() == expected.len()
        && found.iter().zip(&expected).all(|(found, start)| found.starts_with(start));
    assert!(same, "in {path}:\n{text}\nexpected lines {lines:?}, found {found:#?}");
}

#[test]
fn files_are_short() {
    holds(rules::long_files);
}

#[test]
fn functions_are_short() {
    holds(rules::long_functions);
}

#[test]
fn lines_are_narrow() {
    holds(rules::wide_lines);
}

#[test]
fn modules_say_what_they_are() {
    holds(rules::nameless_modules);
}

#[test]
fn nothing_is_left_for_later() {
    holds(rules::leftovers);
}

#[test]
fn no_peer_reaches_a_panic() {
    holds(rules::panics);
}

#[test]
fn unsafe_is_fenced() {
    holds(rules::unsafe_code);
}

#[test]
fn pure_modules_do_no_io() {
    holds(rules::impure);
}

#[test]
fn only_commands_use_the_gateway() {
    holds(rules::gateway_users);
}

#[test]
fn imports_run_one_way() {
    holds(rules::upward_imports);
}

#[test]
fn the_runtime_is_fenced() {
    holds(rules::runtime_users);
}

#[test]
fn dependencies_have_reasons() {
    holds(rules::dependencies);
}

#[test]
fn nothing_names_one_machine() {
    holds(rules::machine_names);
}

#[test]
fn manual_commands_exist() {
    holds(rules::manual_commands);
}

#[test]
fn a_long_file_is_found() {
    finds(rules::long_files, "src/x.rs", &"\n".repeat(600), &[]);
    finds(rules::long_files, "src/x.rs", &"\n".repeat(601), &[601]);
    finds(rules::long_files, "tests/sdk/x.py", &"\n".repeat(601), &[601]);
    finds(rules::long_files, "README.md", &"\n".repeat(601), &[]);
}

#[test]
fn a_long_function_is_found() {
    let of = |lines: usize| format!("fn a() {{\n{}}}\n", "    b();\n".repeat(lines - 2));
    finds(rules::long_functions, "src/x.rs", &of(70), &[]);
    finds(rules::long_functions, "src/x.rs", &of(71), &[1]);
    finds(rules::long_functions, "tests/x.rs", &("\n".to_string() + &of(71)), &[2]);
}

#[test]
fn braces_in_strings_characters_and_comments_do_not_end_a_function() {
    let tricks = [
        "let a = \"}\\\"}\";",
        "let b = '}'; let b = '\\''; let b = b'}';",
        "let c = r#\"}\"}\"#; let c = br\"}\\\";",
        "// }",
        "/* } /* } */ } */",
        "let d: &'static str = \"\";",
    ];
    for trick in tricks {
        let text = format!("fn a<'a>(x: [u8; 4]) {{\n{trick}\n{}}}\n", "\n".repeat(70));
        finds(rules::long_functions, "src/x.rs", &text, &[1]);
    }
    finds(rules::long_functions, "src/x.rs", "trait T { fn a(&self); }\ntype F = fn(u8);\n", &[]);
}

#[test]
fn a_wide_line_is_found() {
    finds(rules::wide_lines, "src/x.rs", &"é".repeat(100), &[]);
    finds(rules::wide_lines, "scripts/test", &"a".repeat(101), &[1]);
}

#[test]
fn a_nameless_module_is_found() {
    finds(rules::nameless_modules, "src/x.rs", "#![no_main]\n\n//! What it is.\n", &[]);
    finds(rules::nameless_modules, "src/x.rs", "// A comment.\nfn a() {}\n", &[1]);
}

#[test]
fn a_leftover_is_found() {
    finds(rules::leftovers, "src/x.rs", "let a = \"TODO\"; // TODOS are fine\n", &[]);
    finds(rules::leftovers, "src/x.rs", "// TODO: more\n", &[1]);
    finds(rules::leftovers, "src/x.rs", "/* a\n FIXME */\n", &[2]);
    finds(rules::leftovers, "src/x.rs", "fn a() {\n    todo!()\n}\n", &[2]);
    finds(rules::leftovers, "tests/x.rs", "fn a() { dbg !(1); }\n", &[1]);
    finds(rules::leftovers, "src/x.rs", "#[allow(dead_code)]\nfn a() {}\n", &[1]);
    finds(rules::leftovers, "tests/x.rs", "#[allow(dead_code)]\nmod support;\n", &[]);
    finds(rules::leftovers, "tests/x.rs", "#[test]\n#[ignore = \"slow\"]\nfn a() {}\n", &[2]);
    let fetched = "#[test]\n#[ignore = \"needs scripts/fetch-tokenizers\"]\nfn a() {}\n";
    finds(rules::leftovers, "tests/x.rs", fetched, &[]);
}

#[test]
fn a_panic_is_found_where_a_peer_can_reach_it() {
    let path = "src/http1/head.rs";
    finds(rules::panics, path, "a.unwrap();\na\n    .expect(\"b\");\n", &[1, 3]);
    finds(rules::panics, path, "panic!(\"a\");\nunreachable!()\n", &[1, 2]);
    finds(rules::panics, path, "a.unwrap_or(1); head.expect(); // a.unwrap()\n", &[]);
    finds(rules::panics, path, "#[cfg(test)]\nmod tests {\n    fn a() { b.unwrap() }\n}\n", &[]);
    finds(rules::panics, path, "#[cfg(test)]\nuse a::{b};\nfn a() { b.unwrap() }\n", &[3]);
    finds(rules::panics, path, "#[cfg(all(test, unix))]\nfn a() {}\nb.unwrap();\n", &[3]);
    finds(rules::panics, "src/cli/check.rs", "a.unwrap();\n", &[]);
}

#[test]
fn a_file_that_a_test_module_declares_is_a_test() {
    let of = |declaration: &str, path: &str| {
        let file = |path: &str, text: &str| (path.to_string(), text.to_string());
        let head = file("src/http1/head.rs", declaration);
        rules::panics(&Repo::of([head, file(path, "a.unwrap();")])).len()
    };
    let (below, beside) = ("src/http1/head/tests.rs", "src/http1/head_tests.rs");
    assert_eq!(of("#[cfg(test)]\nmod tests;\n", below), 0);
    assert_eq!(of("mod tests;\n", below), 1);
    assert_eq!(of("#[cfg(test)]\n#[path = \"head_tests.rs\"]\nmod tests;\n", beside), 0);
    assert_eq!(of("#[path = \"head_tests.rs\"]\nmod tests;\n", beside), 1);
    assert_eq!(of("#[cfg(test)]\nmod tests;\n", beside), 1);
}

#[test]
fn unsafe_outside_its_files_is_found() {
    finds(rules::unsafe_code, "src/sse/x.rs", "unsafe { a() }\n", &[1]);
    finds(rules::unsafe_code, "src/sse/x.rs", "#![deny(unsafe_code)] // unsafe\n", &[]);
    finds(rules::unsafe_code, "src/net/sys.rs", "unsafe { a() }\n", &[]);
}

#[test]
fn io_in_a_pure_module_is_found() {
    let path = "src/routing/cost.rs";
    finds(rules::impure, path, "use std::time::{Duration, Instant};\n", &[1]);
    finds(rules::impure, path, "use std::{\n    fmt,\n    fs::{self, File},\n};\n", &[3, 3]);
    finds(rules::impure, path, "fn a() { std::net::TcpStream::connect(b); }\n", &[1]);
    finds(rules::impure, path, "use std::time;\nfn a() { time::Instant::now(); }\n", &[2]);
    finds(rules::impure, path, "use monoio as m;\nuse redis;\n", &[1, 2]);
    finds(rules::impure, path, "use std::time::Duration;\n//! std::fs\n", &[]);
    finds(rules::impure, path, "use std::net::{IpAddr, TcpStream};\n", &[1]);
    finds(rules::impure, "src/usage/record.rs", "use std::fs;\n", &[1]);
    finds(rules::impure, "src/prompt/template/load.rs", "use std::fs;\nuse redis;\n", &[2]);
    finds(rules::impure, "src/prompt/template/chat.rs", "use std::fs;\n", &[1]);
    finds(rules::impure, "src/usage/writer.rs", "use std::fs;\n", &[]);
}

#[test]
fn a_user_of_the_gateway_is_found() {
    finds(rules::gateway_users, "src/sim/x.rs", "use crate::{gateway::core, net};\n", &[1]);
    finds(rules::gateway_users, "src/sim/mod.rs", "use super::gateway;\n", &[1]);
    finds(rules::gateway_users, "src/cli/serve.rs", "use crate::gateway::core;\n", &[]);
    finds(rules::gateway_users, "src/gateway/x.rs", "use super::core; // crate::gateway\n", &[]);
}

#[test]
fn an_import_that_runs_upwards_is_found() {
    finds(rules::upward_imports, "src/sse/x.rs", "use crate::openai::Usage;\n", &[1]);
    finds(rules::upward_imports, "src/http1/x.rs", "fn a() { crate::net::recv() }\n", &[1]);
    finds(rules::upward_imports, "src/net/a/b.rs", "use super::super::super::sse;\n", &[1]);
    finds(rules::upward_imports, "src/openai/x.rs", "use crate::{openai, sse};\n", &[]);
    finds(rules::upward_imports, "src/main.rs", "fn main() { expedite::cli::main() }\n", &[]);
    finds(rules::upward_imports, "src/new/mod.rs", "", &[1]);
}

#[test]
fn the_runtime_outside_its_fence_is_found() {
    finds(rules::runtime_users, "src/gateway/relay.rs", "monoio::spawn(a);\n", &[1]);
    finds(rules::runtime_users, "src/gateway/core.rs", "monoio::spawn(a);\n", &[]);
    finds(rules::runtime_users, "src/net/tcp.rs", "use monoio::net::TcpStream;\n", &[]);
}

#[test]
fn a_dependency_without_a_reason_is_found() {
    let path = "Cargo.toml";
    let rule = rules::dependencies;
    finds(
        rule,
        path,
        "[package]\nname = \"a\"\n[dependencies]\na = \"1\" # why\nb = \"1\"\n",
        &[5],
    );
    finds(rule, path, "[target.'cfg(unix)'.dev-dependencies]\na = { version = \"1\" }\n", &[2]);
    finds(rule, path, "[dependencies.a] # why\nversion = \"1\"\n[dependencies.b]\n", &[3]);
}

#[test]
fn a_name_of_one_machine_is_found() {
    let rule = rules::machine_names;
    finds(rule, "README.md", concat!("cd /wo", "rk/expedite\n"), &[1]);
    finds(rule, "README.md", "see /x/network/interfaces and a/work/b\n", &[]);
    finds(rule, "src/x.rs", concat!("\"/tm", "p/a\"\n"), &[1]);
    finds(rule, "tests/x.rs", concat!("\"/tm", "p/a\"\n"), &[]);
    finds(rule, "tests/sdk/package-lock.json", concat!("https://registry.", "npmjs.org"), &[1]);
}

#[test]
fn a_command_of_the_manual_that_is_not_there_is_found() {
    let rule = rules::manual_commands;
    finds(rule, "README.md", "```\n./target/release/expedite fly --fast\n```\n", &[2]);
    finds(rule, "README.md", "Run `scripts/fly`.\n", &[1]);
    finds(rule, "tuning/x.md", "Run `scripts/fly`.\n", &[1]);
    finds(rule, "README.md", "cargo test --test fly\ncargo bench --bench fly\n", &[1, 2]);
    finds(rule, "README.md", "What expedite does: it routes.\n", &[]);
}
