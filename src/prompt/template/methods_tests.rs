//! Each expectation is what CPython answers.

use minijinja::{Environment, context};

fn eval(expression: &str) -> String {
    let mut env = Environment::new();
    env.set_unknown_method_callback(super::call);
    let source = format!("{{{{ {expression} }}}}");
    match env.render_str(&source, context!(s => " \u{1c}a  b c \u{3000}", d => "a.b.c")) {
        Ok(text) => text,
        Err(_) => "raises".to_owned(),
    }
}

#[test]
fn strings_are_cut_as_python_cuts_them() {
    for (expression, expected) in [
        ("s.strip()", "a  b c"),
        ("s.lstrip()|length", "8"),
        ("'xxaxx'.strip('x')", "a"),
        ("'xyaxy'.rstrip('yx')", "xya"),
        ("s.split()", "['a', 'b', 'c']"),
        ("s.split(none, 1)[1]|length", "5"),
        ("d.split('.')", "['a', 'b', 'c']"),
        ("d.split('.', 1)", "['a', 'b.c']"),
        ("d.split('.', maxsplit=1)", "['a', 'b.c']"),
        ("d.split(sep='.')[-1]", "c"),
        ("d.rsplit('.', 1)", "['a.b', 'c']"),
        ("s.rsplit(none, 1)[1]", "c"),
        ("d.split('')", "raises"),
        ("''.split()", "[]"),
        ("''.split('x')", "['']"),
        ("d.partition('.')", "('a', '.', 'b.c')"),
        ("d.rpartition('-')", "('', '', 'a.b.c')"),
        ("d.removeprefix('a.').removesuffix('.c')", "b"),
        ("'a\\r\\nb\\x0bc\\n'.splitlines()", "['a', 'b', 'c']"),
        ("'a\\nb'.splitlines(True)|length", "2"),
    ] {
        assert_eq!(eval(expression), expected, "{expression}");
    }
}

#[test]
fn strings_are_searched_and_spelled_as_python_does() {
    for (expression, expected) in [
        ("d.startswith(('b', 'a'))", "True"),
        ("d.endswith('.b')", "False"),
        ("d.startswith(1)", "raises"),
        ("'éa'.find('a')", "1"),
        ("d.rfind('.')", "3"),
        ("d.index('x')", "raises"),
        ("d.count('.')", "2"),
        ("'aaa'.replace('a', 'bb', 2)", "bbbba"),
        ("', '.join(['a', 'b'])", "a, b"),
        ("', '.join([1])", "raises"),
        ("\"they're bill's 中a\".title()", "They'Re Bill'S 中A"),
        ("'ÀB c'.capitalize()", "Àb c"),
        ("'{}-{}'.format(1, 'x')", "1-x"),
        ("'12'.isdigit() and not ''.isdigit()", "True"),
        ("d.nothing()", "raises"),
        ("d.upper(1)", "raises"),
    ] {
        assert_eq!(eval(expression), expected, "{expression}");
    }
}

#[test]
fn what_a_template_builds_has_methods() {
    for (expression, expected) in [
        ("{'a': 1}.items()", "[('a', 1)]"),
        ("{'a': 1}.keys()|list", "['a']"),
        ("{'a': 1}.get('b', 2)", "2"),
        ("{'a': 1}.get('b')", "None"),
        ("{}.nothing()", "raises"),
        ("[1, 2, 1].count(1)", "2"),
        ("[1, 2].index(2)", "1"),
        ("[1].append(2)", "raises"),
    ] {
        assert_eq!(eval(expression), expected, "{expression}");
    }
}
