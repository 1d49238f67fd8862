//! A model's folder to its template and special tokens, in the files that transformers writes.
//!
//! Reads files, so it runs where a pool is set up and never on a core.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use minijinja::Value;

use super::value::{Dict, List};
use super::{Template, TemplateError, whole};

/// Bytes of a file of the model that is read here; the largest in use has 11 MiB.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The special tokens of a model by the names that a template uses (`bos_token`, `eos_token`, ..).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Specials(Vec<(String, String)>);

impl Specials {
    /// Name and text of each, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, token)| (name.as_str(), token.as_str()))
    }

    /// The text of one.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(known, _)| *known == name).map(|(_, token)| token)
    }

    /// Sets one; of two with the same name the first stays.
    pub fn add(&mut self, name: &str, token: &str) {
        if self.get(name).is_none() {
            self.0.push((name.to_owned(), token.to_owned()));
        }
    }

    /// Every member of `config` whose name ends in `_token`: a text, or an object with one.
    fn collect(&mut self, config: &Dict) {
        for (key, value) in config.entries() {
            let name = key.as_str().unwrap_or_default();
            if name.ends_with("_token") {
                let content = value.downcast_object_ref::<Dict>().and_then(|it| it.get("content"));
                if let Some(token) = value.as_str().or(content.and_then(Value::as_str)) {
                    self.add(name, token);
                }
            } else if name == "extra_special_tokens"
                && let Some(extra) = value.downcast_object_ref::<Dict>()
            {
                for (name, token) in extra.entries() {
                    if let (Some(name), Some(token)) = (name.as_str(), token.as_str()) {
                        self.add(name, token);
                    }
                }
            }
        }
    }
}

/// A default template, and the one for requests with tools if there are two.
type Pair = (Option<String>, Option<String>);

impl Template {
    /// Reads the template of the model in `folder`, or `override_file` in its place: from
    /// `chat_template.jinja` (and `additional_chat_templates/tool_use.jinja`), else from
    /// `tokenizer_config.json`, else from `chat_template.json`. `None` if the model has none.
    ///
    /// # Errors
    /// A file that cannot be read or is not what it should be; a template that does not compile.
    pub fn load(
        folder: &Path,
        override_file: Option<&Path>,
    ) -> Result<Option<Template>, TemplateError> {
        let config = read_json(&folder.join("tokenizer_config.json"))?;
        let mut specials = Specials::default();
        for file in [config.as_ref(), read_json(&folder.join("special_tokens_map.json"))?.as_ref()]
        {
            if let Some(config) = file.and_then(|file| file.downcast_object_ref::<Dict>()) {
                specials.collect(config);
            }
        }
        let (default, tool_use) = match override_file {
            Some(path) => {
                let missing = || TemplateError::File(format!("{}: not found", path.display()));
                (Some(read(path)?.ok_or_else(missing)?), None)
            }
            None => find(folder, config.as_ref())?,
        };
        match default {
            Some(default) => {
                Template::parse_both(&default, tool_use.as_deref(), specials).map(Some)
            }
            None if tool_use.is_some() => {
                let what = format!("{}: several templates, none is `default`", folder.display());
                Err(TemplateError::Content(what))
            }
            None => Ok(None),
        }
    }
}

fn find(folder: &Path, config: Option<&Value>) -> Result<Pair, TemplateError> {
    if let Some(default) = read(&folder.join("chat_template.jinja"))? {
        let tool_use = read(&folder.join("additional_chat_templates/tool_use.jinja"))?;
        return Ok((Some(default), tool_use));
    }
    let legacy = read_json(&folder.join("chat_template.json"))?;
    for config in [config, legacy.as_ref()].into_iter().flatten() {
        let template = config.downcast_object_ref::<Dict>().and_then(|it| it.get("chat_template"));
        match template {
            Some(template) if template.as_str().is_some() => {
                return Ok((template.as_str().map(str::to_owned), None));
            }
            Some(template) if !template.is_none() => {
                return named(template).ok_or_else(|| {
                    let what = format!("{}: chat_template: not understood", folder.display());
                    TemplateError::Content(what)
                });
            }
            _ => {}
        }
    }
    Ok((None, None))
}

/// `[{"name": "default", "template": ".."}, ..]`, or an object of templates by name.
fn named(templates: &Value) -> Option<Pair> {
    let mut found: Pair = (None, None);
    let mut put = |name: &str, template: &Value| {
        let template = template.as_str()?.to_owned();
        match name {
            "default" => found.0 = Some(template),
            "tool_use" => found.1 = Some(template),
            _ => {}
        }
        Some(())
    };
    if let Some(dict) = templates.downcast_object_ref::<Dict>() {
        dict.entries().iter().try_for_each(|(name, template)| put(name.as_str()?, template))?;
        return Some(found);
    }
    for item in &templates.downcast_object_ref::<List>()?.0 {
        let item = item.downcast_object_ref::<Dict>()?;
        put(item.get("name")?.as_str()?, item.get("template")?)?;
    }
    Some(found)
}

fn read_json(path: &Path) -> Result<Option<Value>, TemplateError> {
    let Some(text) = read(path)? else { return Ok(None) };
    let wrong = |error| TemplateError::Content(format!("{}: {error}", path.display()));
    whole(&text).map(Some).map_err(wrong)
}

fn read(path: &Path) -> Result<Option<String>, TemplateError> {
    let failed =
        |error: std::io::Error| TemplateError::File(format!("{}: {error}", path.display()));
    match fs::metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(facts) if facts.len() > FILE_BYTES_MAX => {
            let what = format!("{}: larger than 64 MiB", path.display());
            return Err(TemplateError::Content(what));
        }
        Ok(_) => {}
    }
    fs::read_to_string(path).map(Some).map_err(failed)
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
