//! The scanner under the house rules: Rust text to tokens with lines, comments apart.
//!
//! It knows strings (raw, byte, C), characters, lifetimes and nested block comments, which is all
//! that brace matching needs; it does not parse Rust. Pure: text in, values out.

/// One token of code: an identifier or number, `::`, or a single character.
///
/// Strings and characters are there as empty quotes: what they hold is data, not code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Line, from 1.
    pub(crate) line: usize,
    /// The token's text.
    pub(crate) text: String,
    /// Whether it stands in an item under `#[cfg(test)]`.
    pub(crate) test: bool,
}

/// A function with a body, by its lines.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name.
    pub(crate) name: String,
    /// Line of its `fn`, from 1.
    pub(crate) line: usize,
    /// Lines from `fn` to the closing brace, both counted.
    pub(crate) lines: usize,
}

/// Splits `text` into code and comments of the same shape: what belongs to the other is blank.
pub(crate) fn split(text: &str) -> (String, String) {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut comments = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let (end, is_comment, keep) = piece(&chars, at);
        for (i, &c) in chars[at..end].iter().enumerate() {
            let quote = keep && (i == 0 || i + 1 == end - at);
            let (in_code, in_comment) = match c {
                '\n' => (c, c),
                _ if is_comment => (' ', c),
                _ if end - at == 1 => (c, ' '),
                _ if quote => ('"', ' '),
                _ => (' ', ' '),
            };
            code.push(in_code);
            comments.push(in_comment);
        }
        at = end;
    }
    (code, comments)
}

/// The piece that starts at `at`: its end, whether it is a comment, whether it is a literal.
fn piece(chars: &[char], at: usize) -> (usize, bool, bool) {
    let next = |n: usize| chars.get(at + n).copied().unwrap_or('\0');
    let in_word = at > 0 && is_word(chars[at - 1]);
    match chars[at] {
        '/' if next(1) == '/' => {
            let end = chars[at..].iter().position(|&c| c == '\n').map_or(chars.len(), |n| at + n);
            (end, true, false)
        }
        '/' if next(1) == '*' => (block_comment_end(chars, at), true, false),
        '"' => (quoted_end(chars, at + 1, '"'), false, true),
        'r' | 'b' | 'c' if !in_word => match raw_string_end(chars, at) {
            Some(end) => (end, false, true),
            None => (at + 1, false, false),
        },
        '\'' if next(1) == '\\' => (quoted_end(chars, at + 1, '\''), false, true),
        '\'' if next(2) == '\'' => (at + 3, false, true),
        _ => (at + 1, false, false),
    }
}

fn block_comment_end(chars: &[char], from: usize) -> usize {
    let (mut depth, mut at) = (0usize, from);
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted_end(chars: &[char], from: usize, quote: char) -> usize {
    let mut at = from;
    while at < chars.len() && chars[at] != quote {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    (at + 1).min(chars.len())
}

/// The end of `r"`, `r#"`, `br#"` or `cr"` at `from`; none when it is only a name.
fn raw_string_end(chars: &[char], from: usize) -> Option<usize> {
    let r = if chars[from] == 'r' { from } else { from + 1 };
    if chars.get(r) != Some(&'r') {
        return None;
    }
    let hashes = chars[r + 1..].iter().take_while(|&&c| c == '#').count();
    let open = r + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let mut at = open + 1;
    while at < chars.len() {
        let tail = chars.get(at + 1..at + 1 + hashes);
        if chars[at] == '"' && tail.is_some_and(|tail| tail.iter().all(|&c| c == '#')) {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(chars.len())
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The tokens of `code` (as [`split`] gives it), with those under `#[cfg(test)]` marked.
pub(crate) fn tokens(code: &str) -> Vec<Token> {
    let chars: Vec<char> = code.chars().collect();
    let (mut tokens, mut line, mut at) = (Vec::new(), 1, 0);
    while at < chars.len() {
        let start = at;
        match chars[at] {
            c if is_word(c) => {
                while at < chars.len() && is_word(chars[at]) {
                    at += 1;
                }
            }
            ':' if chars.get(at + 1) == Some(&':') => at += 2,
            _ => at += 1,
        }
        let text: String = chars[start..at].iter().collect();
        if text == "\n" {
            line += 1;
        } else if !text.trim().is_empty() {
            tokens.push(Token { line, text, test: false });
        }
    }
    mark_tests(&mut tokens);
    tokens
}

/// Where `pattern` starts in `tokens`, each time.
pub(crate) fn find<'a>(
    tokens: &'a [Token],
    pattern: &'a [&str],
) -> impl Iterator<Item = usize> + 'a {
    let width = pattern.len();
    (0..tokens.len()).filter(move |&at| {
        tokens.get(at..at + width).is_some_and(|w| w.iter().zip(pattern).all(|(t, p)| t.text == *p))
    })
}

fn mark_tests(tokens: &mut [Token]) {
    let plain = ["#", "[", "cfg", "(", "test"];
    let all = ["#", "[", "cfg", "(", "all", "(", "test"];
    let starts: Vec<usize> = find(tokens, &plain).chain(find(tokens, &all)).collect();
    for start in starts {
        let end = item_end(tokens, start);
        for token in &mut tokens[start..end] {
            token.test = true;
        }
    }
}

/// The end (exclusive) of the item, field or statement that the attribute at `start` is on.
fn item_end(tokens: &[Token], start: usize) -> usize {
    let text = |at: usize| tokens.get(at).map_or("", |t| t.text.as_str());
    let mut at = start;
    while text(at) == "#" {
        at = close(tokens, at + 1);
    }
    if text(at) == "pub" {
        at = if text(at + 1) == "(" { close(tokens, at + 1) } else { at + 1 };
    }
    let ends_with_semicolon = match text(at) {
        "use" | "static" | "type" | "let" => true,
        "const" => text(at + 1) != "fn",
        _ => false,
    };
    let is_field = text(at + 1) == ":";
    while at < tokens.len() {
        match text(at) {
            ";" => return at + 1,
            "," if is_field => return at + 1,
            "{" if !ends_with_semicolon => return close(tokens, at),
            "(" | "[" | "{" => at = close(tokens, at),
            ")" | "]" | "}" => return at,
            _ => at += 1,
        }
    }
    at
}

/// The index after the bracket that closes the one at `open`.
fn close(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0usize;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return at + 1;
        }
    }
    tokens.len()
}

/// Every function that has a body, inner ones too.
pub(crate) fn functions(tokens: &[Token]) -> Vec<Function> {
    let mut found = Vec::new();
    for at in find(tokens, &["fn"]) {
        let Some(name) = tokens.get(at + 1).filter(|t| t.text != "(") else { continue };
        let mut body = at + 2;
        while let Some(token) = tokens.get(body) {
            match token.text.as_str() {
                "(" | "[" => body = close(tokens, body),
                "{" | ";" => break,
                _ => body += 1,
            }
        }
        if tokens.get(body).is_some_and(|t| t.text == "{") {
            let (first, last) = (tokens[at].line, tokens[close(tokens, body) - 1].line);
            let (name, lines) = (name.text.clone(), last - first + 1);
            found.push(Function { name, line: first, lines });
        }
    }
    found
}

/// Every path that `tokens` name, `use` trees written out, as `(line, "a::b::c")`.
pub(crate) fn paths(tokens: &[Token]) -> Vec<(usize, String)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        let token = &tokens[at];
        if token.text == "use" {
            at = use_tree(tokens, at + 1, "", &mut found);
        } else if is_name(token) {
            let mut path = token.text.clone();
            while tokens.get(at + 1).is_some_and(|t| t.text == "::")
                && tokens.get(at + 2).is_some_and(is_name)
            {
                path = path + "::" + &tokens[at + 2].text;
                at += 2;
            }
            found.push((token.line, path));
            at += 1;
        } else {
            at += 1;
        }
    }
    found
}

fn is_name(token: &Token) -> bool {
    token.text.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_')
}

/// Reads one `use` tree under `prefix`; returns the index after it.
fn use_tree(
    tokens: &[Token],
    from: usize,
    prefix: &str,
    found: &mut Vec<(usize, String)>,
) -> usize {
    let (mut at, mut path, mut grouped) = (from, prefix.to_string(), false);
    while let Some(token) = tokens.get(at) {
        match token.text.as_str() {
            ";" | "," | "}" => break,
            "{" => {
                grouped = true;
                while tokens.get(at).is_some_and(|t| t.text != "}" && t.text != ";") {
                    at = use_tree(tokens, at + 1, &path, found);
                }
            }
            "::" | "*" => {}
            "as" => at += 1,
            name if path.is_empty() => path = name.to_string(),
            name => path = path + "::" + name,
        }
        at += 1;
    }
    if !grouped && at > from {
        found.push((tokens[from].line, path));
    }
    at
}
