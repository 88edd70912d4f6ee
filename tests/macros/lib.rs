//! Attribute macros of the integration tests.
//!
//! syn and quote were weighed: one attribute that wraps a function needs neither.

use proc_macro::{TokenStream, TokenTree};

/// Runs a test once on SQLite and once on PostgreSQL.
///
/// The function takes the engine and is asynchronous: `async fn name(engine: Engine)`. It becomes a module
/// with the tests `name::sqlite` and `name::postgres`.
#[proc_macro_attribute]
pub fn both_engines(_: TokenStream, function: TokenStream) -> TokenStream {
    let mut tokens = function.clone().into_iter();
    let is_fn = |token: &TokenTree| matches!(token, TokenTree::Ident(ident) if ident.to_string() == "fn");
    let name = tokens.by_ref().skip_while(|token| !is_fn(token)).nth(1);
    let Some(TokenTree::Ident(name)) = name else {
        return error("both_engines belongs to an `async fn`");
    };
    let test = |engine: &str, variant: &str| {
        format!(
            "#[tokio::test(flavor = \"multi_thread\", worker_threads = 2)]
            async fn {engine}() {{
                super::{name}(crate::support::host::Engine::{variant}).await;
            }}"
        )
    };
    let module = format!("mod {name} {{ {} {} }}", test("sqlite", "Sqlite"), test("postgres", "Postgres"));
    match module.parse::<TokenStream>() {
        Ok(module) => function.into_iter().chain(module).collect(),
        Err(_) => error("both_engines could not name its tests"),
    }
}

fn error(message: &str) -> TokenStream {
    format!("compile_error!({message:?});").parse().unwrap_or_default()
}
