//! Each answer is what vLLM 0.32's `_detect_content_format` gives for the same template.

use super::*;

#[test]
fn a_loop_over_content_means_parts() {
    for source in [
        "{% for m in messages %}{% for c in m['content'] %}{% endfor %}{% endfor %}",
        "{% for m in messages[1:] %}{% for c in m.content %}{% endfor %}{% endfor %}",
        "{% set ms = messages %}{% set more = ms | list %}{% for m in more %}{% if m %}\
         {% for c in m.content | reverse %}{% endfor %}{% endif %}{% endfor %}",
        "{% for x in content %}{% endfor %}",
        "{% macro f(it) %}{% for c in it %}{% endfor %}{% endmacro %}\
         {% for m in messages %}{{ f(m.content) }}{% endfor %}",
        "{% macro f(a, it) %}{% for c in it %}{% endfor %}{% endmacro %}\
         {% for m in messages %}{{ '' if 0 else 'x' + f(1, it=m['content']) }}{% endfor %}",
    ] {
        assert_eq!(content_format(source), ContentFormat::Parts, "{source}");
    }
}

#[test]
fn anything_else_means_text() {
    for source in [
        "",
        "{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}",
        "{% for m in others %}{% for c in m.content %}{% endfor %}{% endfor %}",
        "{% for m in messages %}{% set content = m.content %}{% endfor %}",
        "{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}{{ f('x') }}",
        "{% macro f(it, b) %}{% for c in b %}{% endfor %}{% endmacro %}\
         {% for m in messages %}{{ f(m.content) }}{% endfor %}",
        "{% for a, b in messages %}{% endfor %}{% for x in content %}{% endfor %}",
        "{% set ns.x = messages %}{% for x in content %}{% endfor %}",
        "{% broken",
    ] {
        assert_eq!(content_format(source), ContentFormat::Text, "{source}");
    }
}
