//! The condition of one rule: parsed, and every name in it known.

use std::collections::BTreeSet;

use cel::common::ast::{CallExpr, ComprehensionExpr, EntryExpr, Expr, IdedExpr, LiteralValue, SelectExpr};
use cel::parser::PrattParser;
use cel::{Context, ExecutionError, ParseErrors, Value};
use culvert_policy_sdk::pattern::Regex;

use crate::functions::{self, Expressions};
use crate::names::Name;
use crate::question::Question;

/// How deep parentheses and calls can be nested in each other. A deeper condition would need more stack than a module
/// has.
const PARSED_DEPTH: u16 = 32;
/// How deep the parsed condition can be: a chain of `+` or of calls on each other is as deep as it is long.
const DEPTH: usize = 64;

#[derive(Debug)]
pub(crate) struct Condition {
    expression: IdedExpr,
}

/// What the conditions of a module need.
#[derive(Debug, Default)]
pub(crate) struct Needs {
    pub(crate) names: BTreeSet<Name>,
    pub(crate) expressions: Expressions,
}

/// Why a condition cannot be used.
#[derive(Debug)]
pub(crate) struct ConditionError {
    pub(crate) line: usize,
    pub(crate) column: usize,
    pub(crate) message: String,
}

impl Condition {
    /// Parses a condition and adds what it needs.
    ///
    /// # Errors
    ///
    /// If it is no CEL, or uses a name, a function or a regular expression that there is not.
    pub(crate) fn compile<Q: Question>(source: &str, needs: &mut Needs) -> Result<Self, ConditionError> {
        let parser = PrattParser::new().max_recursion_depth(PARSED_DEPTH).error_reporting_limit(1);
        let expression = parser.parse(source).map_err(syntax)?;
        let mut names = Names { source, needs, bound: Vec::new(), depth: 0 };
        names.expression::<Q>(&expression)?;
        Ok(Self { expression })
    }

    /// Whether it is true.
    ///
    /// # Errors
    ///
    /// If it cannot be evaluated, or is neither true nor false.
    pub(crate) fn holds(&self, context: &Context<'_, '_>) -> Result<bool, String> {
        match Value::resolve(&self.expression, context) {
            Ok(Value::Bool(holds)) => Ok(holds),
            Ok(value) => Err(format!("it is {}, neither true nor false", value.type_of())),
            Err(ExecutionError::NoSuchOverload(error)) => {
                let of = error.argument_types().iter().map(|of| plain(of)).collect::<Vec<_>>().join(" and ");
                Err(format!("{} is not there for {of}", operator(error.function())))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

fn too_deep() -> ConditionError {
    let message = format!("it is more than {DEPTH} operators or calls deep; make several rules of it");
    ConditionError { line: 1, column: 1, message }
}

fn plain(cel_type: &str) -> &str {
    if cel_type == "null_type" { "null" } else { cel_type }
}

/// An operator as a condition writes it: `_&&_` is `&&`.
fn operator(function: &str) -> String {
    format!("`{}`", function.trim_matches(['_', '@']))
}

fn syntax(errors: ParseErrors) -> ConditionError {
    let Some(error) = errors.errors.into_iter().next() else {
        return ConditionError { line: 1, column: 1, message: "it cannot be read".into() };
    };
    let at = |position: isize| usize::try_from(position).unwrap_or(1).max(1);
    let too_deep = error.msg.contains("recursion limit");
    let message = if too_deep { "it is nested too deeply".into() } else { error.msg.replace("Syntax error: ", "") };
    ConditionError { line: at(error.pos.0), column: at(error.pos.1), message }
}

/// Goes through a condition and collects what it needs.
struct Names<'a> {
    source: &'a str,
    needs: &'a mut Needs,
    /// Variables of `exists`, `all`, `filter` and `map`.
    bound: Vec<String>,
    /// How many expressions are around this one.
    depth: usize,
}

impl Names<'_> {
    fn expression<Q: Question>(&mut self, expression: &IdedExpr) -> Result<(), ConditionError> {
        if self.depth == DEPTH {
            return Err(too_deep());
        }
        self.depth += 1;
        let found = self.parts::<Q>(expression);
        self.depth -= 1;
        found
    }

    fn parts<Q: Question>(&mut self, expression: &IdedExpr) -> Result<(), ConditionError> {
        match &expression.expr {
            Expr::Unspecified | Expr::Literal(_) => Ok(()),
            Expr::Ident(_) | Expr::Select(_) => self.path::<Q>(&expression.expr),
            Expr::Call(call) => self.call::<Q>(call),
            Expr::List(list) => list.elements.iter().try_for_each(|element| self.expression::<Q>(element)),
            Expr::Map(map) => map.entries.iter().try_for_each(|entry| match &entry.expr {
                EntryExpr::MapEntry(entry) => {
                    self.expression::<Q>(&entry.key).and_then(|()| self.expression::<Q>(&entry.value))
                }
                EntryExpr::StructField(field) => self.expression::<Q>(&field.value),
            }),
            Expr::Struct(made) => Err(self.at(&made.type_name, format!("there is no type `{}`", made.type_name))),
            Expr::Comprehension(over) => self.comprehension::<Q>(over),
        }
    }

    /// A name with its fields, or a field of something else.
    fn path<Q: Question>(&mut self, expression: &Expr) -> Result<(), ConditionError> {
        let (mut path, mut inner) = (Vec::new(), expression);
        while let Expr::Select(SelectExpr { operand, field, test }) = inner {
            if *test {
                let message = "`has` is not needed: what is absent is null, so compare with `null`".into();
                return Err(self.at("has", message));
            }
            path.push(field.as_str());
            inner = &operand.expr;
        }
        if self.depth + path.len() > DEPTH {
            return Err(too_deep());
        }
        let Expr::Ident(first) = inner else { return self.inner::<Q>(inner) };
        if self.bound.contains(first) {
            return Ok(());
        }
        path.push(first);
        path.reverse();
        let name = Name::find::<Q>(&path).map_err(|message| self.at(&path.join("."), message))?;
        self.needs.names.insert(name);
        Ok(())
    }

    fn inner<Q: Question>(&mut self, inner: &Expr) -> Result<(), ConditionError> {
        let inner = IdedExpr { id: 0, expr: inner.clone() };
        self.expression::<Q>(&inner)
    }

    fn call<Q: Question>(&mut self, call: &CallExpr) -> Result<(), ConditionError> {
        let name = call.func_name.as_str();
        // `_&&_` and `@in`; a name that begins with an underscore is no operator.
        let is_operator = name.starts_with('@') || !name.contains(|letter: char| letter.is_alphanumeric());
        if !is_operator {
            let Some((_, wanted)) = functions::NAMES.iter().find(|(known, _)| *known == name) else {
                let names = functions::NAMES.map(|(name, _)| name).join(", ");
                return Err(self.at(name, format!("there is no function `{name}`; there are {names}")));
            };
            let given = call.args.len() + usize::from(call.target.is_some());
            if given != *wanted {
                let message = format!("`{name}` takes {wanted}, with what stands before its dot, not {given}");
                return Err(self.at(name, message));
            }
        }
        if name == "matches" {
            self.regular_expression(call)?;
        }
        call.target.iter().try_for_each(|target| self.expression::<Q>(target))?;
        call.args.iter().try_for_each(|argument| self.expression::<Q>(argument))
    }

    /// Regular expressions are compiled with the condition, so they must stand in it.
    fn regular_expression(&mut self, call: &CallExpr) -> Result<(), ConditionError> {
        let Some(Expr::Literal(LiteralValue::String(text))) = call.args.last().map(|argument| &argument.expr) else {
            return Err(self.at("matches", "the pattern of `matches` must be a text in quotes".into()));
        };
        let text = text.inner();
        let expression = Regex::new(text).map_err(|problem| self.at("matches", format!("its pattern: {problem}")))?;
        self.needs.expressions.insert(text.into(), expression);
        Ok(())
    }

    fn comprehension<Q: Question>(&mut self, over: &ComprehensionExpr) -> Result<(), ConditionError> {
        self.expression::<Q>(&over.iter_range)?;
        let outside = self.bound.len();
        self.bound.extend([over.iter_var.clone(), over.accu_var.clone()]);
        self.bound.extend(over.iter_var2.clone());
        let parts = [&over.accu_init, &over.loop_cond, &over.loop_step, &over.result];
        parts.into_iter().try_for_each(|part| self.expression::<Q>(part))?;
        self.bound.truncate(outside);
        Ok(())
    }

    /// An error at the place where a name stands.
    fn at(&self, name: &str, message: String) -> ConditionError {
        let offset = find_name(self.source, name).unwrap_or(0);
        let before = &self.source[..offset];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let (line, column) = (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1);
        ConditionError { line, column, message }
    }
}

/// Where a name stands in a condition outside of quotes. The parser does not say.
fn find_name(source: &str, name: &str) -> Option<usize> {
    let mut quote = None;
    let mut escaped = false;
    for (offset, letter) in source.char_indices() {
        match quote {
            Some(open) => {
                if !escaped && letter == open {
                    quote = None;
                }
                escaped = letter == '\\' && !escaped;
            }
            None if letter == '"' || letter == '\'' => quote = Some(letter),
            None if is_name_at(source, offset, name) => return Some(offset),
            None => {}
        }
    }
    None
}

fn is_name_at(source: &str, offset: usize, name: &str) -> bool {
    let of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    let (before, after) = (&source[..offset], source[offset..].strip_prefix(name));
    !before.ends_with(of_name) && after.is_some_and(|after| !after.starts_with(of_name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;

    fn refused(source: &str) -> String {
        let error = Condition::compile::<Sample>(source, &mut Needs::default()).unwrap_err();
        format!("{}:{}: {}", error.line, error.column, error.message)
    }

    #[test]
    fn condition_names_what_it_needs() {
        let mut needs = Needs::default();
        let source = "action == 'a' || now.hour > 5 && devices.exists(action, action) && tunnel.name.matches('^a')";
        Condition::compile::<Sample>(source, &mut needs).unwrap();
        let names: Vec<_> = needs.names.iter().map(Name::text).collect();
        assert_eq!(names, ["action", "devices", "tunnel.name", "now.hour"]);
        assert_eq!(needs.expressions.keys().collect::<Vec<_>>(), ["^a"]);
    }

    #[test]
    fn error_says_where_it_is() {
        assert_eq!(refused("action == 'x' && (now.hour >= 22"), "1:33: expected ')'");
        assert_eq!(
            refused("'tunel.name' == '\\'' ||\n  tunel.name == 'a'").split(':').take(2).collect::<Vec<_>>(),
            ["2", "3"]
        );
        let known = "1:13: there is no function `foo`; there are bool, ";
        assert!(refused("tunnel.name.foo('x')").starts_with(known));
        assert_eq!(refused("tunnel.name.text == 'x'"), "1:1: `tunnel.name` has no field `text`");
        assert!(refused("true || now > 5").starts_with("1:9: `now` is a time; name a part of it: now.unix, "));
        assert_eq!(refused("tunnel.name.matches(action)"), "1:13: the pattern of `matches` must be a text in quotes");
        assert!(refused("tunnel.name.matches('[a')").starts_with("1:13: its pattern: "));
        assert!(refused("_foo(action)").contains("there is no function `_foo`"));
        assert_eq!(refused("action.glob()"), "1:8: `glob` takes 2, with what stands before its dot, not 1");
        assert!(refused("has(tunnel.name)").starts_with("1:1: `has` is not needed"));
        let outside = refused("devices.exists(one, one) && one");
        assert!(outside.contains("there is no `one`; there are action, "), "{outside}");
    }

    #[test]
    fn condition_that_is_too_deep_is_refused() {
        assert!(refused(&format!("1{} > 5", "+1".repeat(100))).contains("more than 64 operators"));
        assert!(refused(&format!("[1][0]{} > 5", ".a".repeat(100))).contains("more than 64 operators"));
        assert_eq!(refused(&format!("{}1", "[1].exists(x,".repeat(40))), "1:1: it is nested too deeply");
    }
}
