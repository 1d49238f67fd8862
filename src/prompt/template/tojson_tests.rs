//! Output compared with CPython's `json.dumps(.., ensure_ascii=False, ..)`.

use minijinja::Environment;

use super::*;
use crate::openai::Span;
use crate::prompt::template::value;

const TEXT: &str = concat!(
    r#"{"b":[1,2.0,1e-7,1e400,true,null,"é\u0001\b\f\"\\\/\u007f😀"],"#,
    r#""a":{},"c":[],"d":{"z":1,"y":[{}]}}"#
);

fn dump(expression: &str) -> Result<String, Error> {
    let mut env = Environment::new();
    env.add_filter("tojson", filter);
    let x = value::at(TEXT, Span::between(0, TEXT.len())).unwrap();
    let source = ["{{ ", expression, " }}"].concat();
    env.render_str(&source, minijinja::context!(x => x))
}

#[test]
fn json_is_what_python_dumps() {
    let list = "[1, 2.0, 1e-07, Infinity, true, null, \"é\\u0001\\b\\f\\\"\\\\/\u{7f}😀\"]";
    for (arguments, expected) in [
        (
            "",
            format!(
                "{{\"b\": {list}, \"a\": {{}}, \"c\": [], \"d\": {{\"z\": 1, \"y\": [{{}}]}}}}"
            ),
        ),
        (
            "sort_keys=true",
            format!(
                "{{\"a\": {{}}, \"b\": {list}, \"c\": [], \"d\": {{\"y\": [{{}}], \"z\": 1}}}}"
            ),
        ),
        (
            "separators=(',', ':')",
            format!(
                "{{\"b\":{},\"a\":{{}},\"c\":[],\"d\":{{\"z\":1,\"y\":[{{}}]}}}}",
                list.replace(", ", ",")
            ),
        ),
    ] {
        assert_eq!(dump(&format!("x|tojson({arguments})")).unwrap(), expected);
    }
    let ascii = "[1, 2.0, 1e-07, Infinity, true, null, \
                 \"\\u00e9\\u0001\\b\\f\\\"\\\\/\\u007f\\ud83d\\ude00\"]";
    assert_eq!(dump("x.b|tojson(ensure_ascii=True)").unwrap(), ascii);
    assert_eq!(dump("x.b|tojson(4)").unwrap(), ascii, "the first argument is ensure_ascii");
}

#[test]
fn indents_as_python_does() {
    let indented = "{\n  \"z\": 1,\n  \"y\": [\n    {}\n  ]\n}";
    assert_eq!(dump("x.d|tojson(indent=2)").unwrap(), indented);
    assert_eq!(dump("x.d|tojson(indent=0)").unwrap(), indented.replace("  ", ""));
    let dashes = "{\n--\"z\"=1 ;\n--\"y\"=[\n----{}\n--]\n}";
    assert_eq!(dump("x.d|tojson(indent='--', separators=(' ;', '='))").unwrap(), dashes);
    assert_eq!(dump("x.a|tojson(indent=2)").unwrap(), "{}");
}

#[test]
fn what_a_template_builds_is_dumped_too() {
    let expected = "{\"k\": [1, 1.5, true, null, \"s\"], \"1\": {}}";
    assert_eq!(dump("{'k': (1, 1.5, true, none, 's'), 1: x.a}|tojson").unwrap(), expected);
    assert!(dump("missing|tojson").is_err(), "undefined is not serialisable");
    assert!(dump("x|tojson(colour=1)").is_err());
}
