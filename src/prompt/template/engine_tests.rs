//! The set-up of the engine, and that no template holds it for long.

use super::*;
use crate::prompt::template::value;

fn render(source: &str) -> Result<String, RenderError> {
    let engine = Engine::compile(&normalise(source)).map_err(RenderError::Template)?;
    let mut out = String::new();
    let mut context = Dict::default();
    let text = r#"{"items":[1],"a":{"keys":0},"l":["x"]}"#;
    let d = value::at(text, crate::openai::Span::between(0, text.len())).unwrap();
    context.set("d".into(), d);
    context.set("n".into(), Value::from(()));
    engine.render(context, LocalTime::from_unix(0), &mut out)?;
    Ok(out)
}

/// The right-hand sides are what Jinja 3.1 with transformers' set-up answers.
#[test]
fn jinja_is_followed_where_engines_differ() {
    for (source, expected) in [
        ("  {% if true %}\n  x\n  {% endif %}\ny\n", "  x\ny"),
        (
            "{{ d['items'] }} {{ d.items is defined }} {{ d.items() | list }}",
            "[1] True [('items', [1]), ('a', {'keys': 0}), ('l', ['x'])]",
        ),
        ("{% if d.items.type %}x{% else %}y{% endif %}{{ d.items.type }}", "y"),
        ("{{ d.a.keys() | list }}{{ d['a']['keys'] }}", "['keys']0"),
        ("{{ d.get('b') }} {{ d.get('b', 1) }} {{ 'a' in d }} {{ d.a.b }}", "None 1 True "),
        (
            "{{ n }} {{ true }} {{ 1.0 }} {{ 1e-7 }} {{ n ~ true ~ 1.5 }}",
            "None True 1.0 1e-07 NoneTrue1.5",
        ),
        ("{{ x }}{{ x | default('d') }}{{ x is defined }}{% for i in x %}{% endfor %}", "dFalse"),
        ("{{ '<b>&' }}{{ '<b>&' | safe }}", "<b>&<b>&"),
        ("{% generation %}a{% set z = 1 %}{% endgeneration %}{{ z }}", "a"),
        ("{%- generation -%} a {%- endgeneration -%} b", "ab"),
        (
            "{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}{{ i }}\
             {% if i == 3 %}{% break %}{% endif %}{% endfor %}",
            "13",
        ),
        (
            "{{ 'x' is sequence }} {{ d is sequence }} {{ 'x' is iterable }} {{ 1 is iterable }}",
            "True True True False",
        ),
        ("{{ d.l[-1] }} {{ d.l[::-1][0] }} {{ (d.l + ['y'])[1:][0] }}", "x x y"),
        ("{{ strftime_now('%d %b %Y') }}", "01 Jan 1970"),
        (
            "{% set ns = namespace(a=1) %}{% for i in [1,2] %}{% set ns.a = ns.a + i %}{% endfor %}\
             {{ ns.a }}",
            "4",
        ),
        ("{{ 'a\\x41\\u00e9' }}{{ \"\\n\" | length }}", "aAé1"),
        ("{{ ' \u{1c}x\u{3000}' | trim }}|{{ 'xax' | trim('x') }}", "x|a"),
        ("a\r\nb\rc", "a\nb\nc"),
        ("{{ [1, 'a\u{ad}', (1,), n] | string }}", "[1, 'a\\xad', (1,), None]"),
    ] {
        assert_eq!(render(source).as_deref(), Ok(expected), "{source}");
    }
}

#[test]
fn a_template_refuses_in_its_own_words() {
    let raised = render("{{ raise_exception('Only user roles, please: ' + 'x') }}");
    assert_eq!(raised, Err(RenderError::Template("Only user roles, please: x".to_owned())));
    for source in ["{{ n.a.b }}", "{{ 'a' + 1 }}", "{{ x.y }}", "{{ d.update({}) }}", "{{ n() }}"] {
        assert!(matches!(render(source), Err(RenderError::Template(_))), "{source}");
    }
    for source in ["{% if %}", "{{ x | nothing }}{% endfor %}", "{% include 'x' %}"] {
        assert!(Engine::compile(source).is_err(), "{source}");
    }
}

#[test]
fn no_template_runs_or_grows_without_end() {
    let limited = |source: &str| {
        let result = render(source);
        assert!(
            matches!(result, Err(RenderError::Limit(_) | RenderError::Template(_))),
            "{source}"
        );
    };
    limited("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}");
    limited("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}");
    limited(
        "{% set ns = namespace(s='xxxxxxxx') %}\
         {% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    );
    limited("{{ 'x' * 999999999999 }}");
    limited("{% set a = 'a' * 1000000 %}{{ a.replace('a', a) | length }}");
    limited("{{ range(999999999) | list | length }}");
    limited(
        "{% set ns = namespace(s='x' * 1000000) %}{% for i in range(40) %}{{ ns.s }}{% endfor %}",
    );
}

#[test]
fn only_the_generation_tag_is_rewritten() {
    let kept = "{% if generation %}{{ generation }}{% endif %}{# {% x #}{%  generations %}";
    assert_eq!(normalise(kept), kept);
    assert_eq!(normalise("{%-generation%}a{% endgeneration +%}{%"), "{%-with%}a{% endwith +%}{%");
}

#[test]
fn a_source_is_kept_once() {
    let source = String::from("{{ a_source_is_kept_once }}");
    assert!(std::ptr::eq(intern(&source), intern(&source.clone())));
}
