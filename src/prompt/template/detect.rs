//! Whether a template expects message content as one string or as a list of parts.
//!
//! vLLM 0.32 reads it off the syntax tree (`renderers/hf.py`, `_detect_content_format`): it is a
//! list if a loop runs over the content of a message. Names are followed through assignments and
//! through the parameters of macros. Runs at load, never for a request.

use std::collections::HashSet;

use minijinja::machinery::ast::{CallArg, CallType, Expr, ForLoop, Macro, Stmt};
use minijinja::machinery::parse;

use super::engine;

/// How message content is given to the template.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentFormat {
    /// One string; text parts are joined by line feeds.
    Text,
    /// A list of `{"type": ..}` dictionaries, also for a plain string.
    Parts,
}

/// The format that `source` expects; text if it cannot be told.
pub(super) fn content_format(source: &str) -> ContentFormat {
    let Ok(root) = parse(source, "", engine::syntax()) else { return ContentFormat::Text };
    let mut tree = Tree::default();
    tree.statement(&root, false);
    match tree.loops_over_content() {
        Some(true) => ContentFormat::Parts,
        _ => ContentFormat::Text,
    }
}

/// Everything in a template that the question needs, in the order of the source.
#[derive(Default)]
struct Tree<'t> {
    loops: Vec<(&'t ForLoop<'t>, bool)>,
    /// Target and value of each `set`.
    assignments: Vec<(&'t Expr<'t>, &'t Expr<'t>)>,
    macros: Vec<(&'t Macro<'t>, Vec<&'t ForLoop<'t>>)>,
    calls: Vec<(&'t str, &'t [CallArg<'t>])>,
}

impl<'t> Tree<'t> {
    /// `None` where vLLM's own reading would fail, after which it takes text.
    fn loops_over_content(&self) -> Option<bool> {
        let mut names = vec!["messages"];
        let mut next = 0;
        while let Some(&name) = names.get(next) {
            next += 1;
            for (target, value) in &self.assignments {
                if is_elements(value, name, None) {
                    let target = variable(target)?;
                    if target != name && !names.contains(&target) {
                        names.push(target);
                    }
                }
            }
        }
        let mut messages = HashSet::new();
        for (loop_, _) in &self.loops {
            if names.iter().any(|name| is_elements(&loop_.iter, name, None)) {
                messages.insert(variable(&loop_.target)?);
            }
        }
        let is_content = |value: &Expr<'_>| {
            messages.iter().any(|name| is_elements(value, name, Some("content")))
        };
        for (loop_, in_macro) in &self.loops {
            let bare = variable(&loop_.iter) == Some("content") && !in_macro;
            if is_content(&loop_.iter) || bare {
                return Some(true);
            }
        }
        Some(
            self.macros
                .iter()
                .any(|(macro_, loops)| self.passes_content(macro_, loops, &is_content)),
        )
    }

    /// A macro that loops over a parameter which is somewhere given the content of a message.
    fn passes_content(
        &self,
        macro_: &Macro<'_>,
        loops: &[&ForLoop<'_>],
        is_content: &impl Fn(&Expr<'_>) -> bool,
    ) -> bool {
        let mut given = HashSet::new();
        for (_, args) in self.calls.iter().filter(|(name, _)| *name == macro_.name) {
            for (place, arg) in args.iter().enumerate() {
                match arg {
                    CallArg::Pos(value) if is_content(value) => {
                        given.extend(macro_.args.get(place).and_then(variable));
                    }
                    CallArg::Kwarg(name, value) if is_content(value) => {
                        given.insert(name);
                    }
                    _ => {}
                }
            }
        }
        loops.iter().any(|loop_| variable(&loop_.iter).is_some_and(|name| given.contains(name)))
    }

    fn statements(&mut self, all: &'t [Stmt<'t>], in_macro: bool) {
        all.iter().for_each(|one| self.statement(one, in_macro));
    }

    fn statement(&mut self, statement: &'t Stmt<'t>, in_macro: bool) {
        match statement {
            Stmt::Template(it) => self.statements(&it.children, in_macro),
            Stmt::EmitExpr(it) => self.expression(&it.expr),
            Stmt::ForLoop(it) => {
                self.loops.push((it, in_macro));
                self.expression(&it.iter);
                it.filter_expr.iter().for_each(|value| self.expression(value));
                self.statements(&it.body, in_macro);
                self.statements(&it.else_body, in_macro);
            }
            Stmt::IfCond(it) => {
                self.expression(&it.expr);
                self.statements(&it.true_body, in_macro);
                self.statements(&it.false_body, in_macro);
            }
            Stmt::WithBlock(it) => {
                it.assignments.iter().for_each(|(_, value)| self.expression(value));
                self.statements(&it.body, in_macro);
            }
            Stmt::Set(it) => {
                self.assignments.push((&it.target, &it.expr));
                self.expression(&it.expr);
            }
            Stmt::SetBlock(it) => self.statements(&it.body, in_macro),
            Stmt::AutoEscape(it) => self.statements(&it.body, in_macro),
            Stmt::FilterBlock(it) => self.statements(&it.body, in_macro),
            Stmt::Macro(it) => self.macro_body(it),
            Stmt::CallBlock(it) => {
                self.call(it.call.identify_call(), &it.call.args);
                self.statements(&it.macro_decl.body, in_macro);
            }
            Stmt::Do(it) => self.call(it.call.identify_call(), &it.call.args),
            Stmt::EmitRaw(_) | Stmt::Continue(_) | Stmt::Break(_) => {}
        }
    }

    fn macro_body(&mut self, macro_: &'t Macro<'t>) {
        let before = self.loops.len();
        self.statements(&macro_.body, true);
        let inner = self.loops.iter().skip(before).map(|(loop_, _)| *loop_).collect();
        self.macros.push((macro_, inner));
    }

    fn call(&mut self, callee: CallType<'t, 't>, args: &'t [CallArg<'t>]) {
        match callee {
            CallType::Function(name) => self.calls.push((name, args)),
            CallType::Method(value, _) | CallType::Object(value) => self.expression(value),
        }
        self.arguments(args);
    }

    fn arguments(&mut self, args: &'t [CallArg<'t>]) {
        for arg in args {
            match arg {
                CallArg::Pos(value)
                | CallArg::Kwarg(_, value)
                | CallArg::PosSplat(value)
                | CallArg::KwargSplat(value) => self.expression(value),
            }
        }
    }

    /// Looks for calls of macros.
    fn expression(&mut self, value: &'t Expr<'t>) {
        match value {
            Expr::Var(_) | Expr::Const(_) => {}
            Expr::Slice(it) => self.expression(&it.expr),
            Expr::UnaryOp(it) => self.expression(&it.expr),
            Expr::BinOp(it) => {
                self.expression(&it.left);
                self.expression(&it.right);
            }
            Expr::Compare(it) => {
                self.expression(&it.expr);
                it.ops.iter().for_each(|op| self.expression(&op.expr));
            }
            Expr::IfExpr(it) => {
                self.expression(&it.test_expr);
                self.expression(&it.true_expr);
                it.false_expr.iter().for_each(|value| self.expression(value));
            }
            Expr::Filter(it) => {
                it.expr.iter().for_each(|value| self.expression(value));
                self.arguments(&it.args);
            }
            Expr::Test(it) => {
                self.expression(&it.expr);
                self.arguments(&it.args);
            }
            Expr::GetAttr(it) => self.expression(&it.expr),
            Expr::GetItem(it) => {
                self.expression(&it.expr);
                self.expression(&it.subscript_expr);
            }
            Expr::Call(it) => self.call(it.identify_call(), &it.args),
            Expr::List(it) => it.items.iter().for_each(|value| self.expression(value)),
            Expr::Tuple(it) => it.items.iter().for_each(|value| self.expression(value)),
            Expr::Map(it) => it.values.iter().for_each(|value| self.expression(value)),
        }
    }
}

fn variable<'t>(value: &Expr<'t>) -> Option<&'t str> {
    if let Expr::Var(it) = value { Some(it.id) } else { None }
}

/// `name`, or `name.key` when there is a key; filtered, tested or sliced or not.
fn is_elements(value: &Expr<'_>, name: &str, key: Option<&str>) -> bool {
    match (value, key) {
        (Expr::Filter(it), _) => {
            it.expr.as_ref().is_some_and(|value| is_elements(value, name, key))
        }
        (Expr::Test(it), _) => is_elements(&it.expr, name, key),
        (Expr::Slice(it), _) => is_elements(&it.expr, name, key),
        (Expr::Var(it), None) => it.id == name,
        (Expr::GetAttr(it), Some(key)) => it.name == key && variable(&it.expr) == Some(name),
        (Expr::GetItem(it), Some(key)) => {
            let subscript = match &it.subscript_expr {
                Expr::Const(constant) => constant.value.as_str() == Some(key),
                _ => false,
            };
            subscript && variable(&it.expr) == Some(name)
        }
        _ => false,
    }
}

#[cfg(test)]
#[path = "detect_tests.rs"]
mod tests;
