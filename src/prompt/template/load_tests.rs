//! The layouts in which models bring their template.

use super::*;
use crate::prompt::template::{LocalTime, RenderError};

fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    folder
}

fn render(template: &Template, tools: bool) -> Result<String, RenderError> {
    let tools = if tools { r#","tools":[{"function":{"name":"f"}}]"# } else { "" };
    let body = format!(r#"{{"messages":[{{"role":"user","content":"x"}}]{tools}}}"#);
    let mut out = String::new();
    template.render(body.as_bytes(), &LocalTime::from_unix(0), &mut out).map(|_| out)
}

fn both(files: &[(&str, &str)]) -> (String, String) {
    let folder = folder(files);
    let template = Template::load(folder.path(), None).unwrap().unwrap();
    (render(&template, false).unwrap(), render(&template, true).unwrap())
}

#[test]
fn a_template_is_found_wherever_a_model_puts_it() {
    let same = |text: &str| (text.to_owned(), text.to_owned());
    let config = ("tokenizer_config.json", r#"{"chat_template":"config","bos_token":"B"}"#);
    assert_eq!(both(&[config]), same("config"));
    let file = ("chat_template.jinja", "file{{ bos_token }}\n");
    assert_eq!(both(&[config, file]), same("fileB"));
    let more = ("additional_chat_templates/tool_use.jinja", "tools");
    assert_eq!(both(&[config, file, more]), ("fileB".to_owned(), "tools".to_owned()));
    assert_eq!(both(&[("chat_template.json", r#"{"chat_template":"old"}"#)]), same("old"));
    let list = r#"{"chat_template":[{"name":"tool_use","template":"t"},
        {"name":"rag","template":"r"},{"name":"default","template":"d"}]}"#;
    assert_eq!(both(&[("tokenizer_config.json", list)]), ("d".to_owned(), "t".to_owned()));
}

#[test]
fn special_tokens_are_texts_or_objects() {
    let config = r#"{"bos_token":{"__type":"AddedToken","content":"<s>"},"eos_token":null,
        "add_bos_token":true,"image_token":"<i>","extra_special_tokens":{"boi_token":"<b>"}}"#;
    let map = r#"{"eos_token":"</s>","bos_token":"late"}"#;
    let source =
        "{{ bos_token }}{{ eos_token }}{{ image_token }}{{ boi_token }}{{ add_bos_token }}";
    let files = [
        ("tokenizer_config.json", config),
        ("special_tokens_map.json", map),
        ("chat_template.jinja", source),
    ];
    assert_eq!(both(&files).0, "<s></s><i><b>");
}

#[test]
fn an_override_takes_the_place_of_all() {
    let folder = folder(&[("chat_template.jinja", "own"), ("other.jinja", "other")]);
    let other = folder.path().join("other.jinja");
    let template = Template::load(folder.path(), Some(&other)).unwrap().unwrap();
    assert_eq!(render(&template, true).as_deref(), Ok("other"));
    let own = Template::load(folder.path(), None).unwrap().unwrap();
    assert_ne!(own.digest(), template.digest());
    assert_eq!(own.digest(), Template::parse("own", Specials::default()).unwrap().digest());
    let missing = Template::load(folder.path(), Some(Path::new("/nowhere/x.jinja")));
    assert!(matches!(missing, Err(TemplateError::File(_))));
}

#[test]
fn what_is_missing_or_wrong_is_said() {
    assert!(Template::load(folder(&[]).path(), None).unwrap().is_none());
    let null = [("tokenizer_config.json", r#"{"chat_template":null}"#)];
    assert!(Template::load(folder(&null).path(), None).unwrap().is_none());
    for text in
        ["{", r#"{"chat_template":5}"#, r#"{"chat_template":[{"name":"tool_use","template":"t"}]}"#]
    {
        let loaded = Template::load(folder(&[("tokenizer_config.json", text)]).path(), None);
        assert!(matches!(loaded, Err(TemplateError::Content(_))), "{text}");
    }
    let broken = Template::load(folder(&[("chat_template.jinja", "\n{% if %}")]).path(), None);
    assert!(matches!(&broken, Err(TemplateError::Syntax(what)) if what.contains("line 2")));
}
