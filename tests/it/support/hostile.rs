//! Policies as an attacker would write them: WebAssembly text, made a component of the team-role
//! world, or of another.

use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// The parts of a module that a test makes bad; each is the body of a function.
pub struct Module {
    pub memory: &'static str,
    pub describe: &'static str,
    pub configure: &'static str,
    pub check: &'static str,
    /// The schema of its settings.
    pub schema: &'static str,
    /// More of the module: functions, imports, globals.
    pub more: &'static str,
}

/// A good module: it describes itself, takes any settings, and allows everything.
pub const GOOD: Module = Module {
    memory: r#"(memory (export "memory") 1)"#,
    describe: "i32.const 1024",
    // ok
    configure: "i32.const 512",
    // allow
    check: "i32.const 512",
    schema: "{}",
    more: "",
};

/// Denies, with the code and rule that the module declares.
pub const DENY: &str = "i32.const 1200";

/// The denying module with another code, of the same length.
pub fn denying(code: &str) -> Vec<u8> {
    let mut wasm = Module { check: DENY, ..GOOD }.component();
    let at = wasm.windows(11).position(|bytes| bytes == b"test_denied").unwrap();
    wasm[at..at + 11].copy_from_slice(code.as_bytes());
    wasm
}

impl Module {
    pub fn component(&self) -> Vec<u8> {
        self.of("team-role", "culvert:policy/roles@1.0.0#check")
    }

    /// The same in the plan-access world. It knows no plan.
    pub fn plan_access(&self) -> Vec<u8> {
        let entitlements = r#"(func (export "culvert:policy/plans@1.0.0#entitlements") (param i32 i32) (result i32)
            i32.const 512)"#;
        self.with("plan-access", "culvert:policy/plans@1.0.0#check", entitlements)
    }

    /// The same in the validation world, where what allows everything finds nothing wrong: a verdict
    /// of zeros is an empty list there.
    pub fn validation(&self) -> Vec<u8> {
        self.of("validation", "culvert:policy/inputs@1.0.0#validate")
    }

    fn of(&self, world: &str, decision: &str) -> Vec<u8> {
        self.with(world, decision, "")
    }

    fn with(&self, world: &str, decision: &str, more: &str) -> Vec<u8> {
        let mut module = wat::parse_str(self.text(decision, more)).unwrap();
        let mut resolve = Resolve::default();
        let (package, _) = resolve.push_dir("wit").unwrap();
        let world = resolve.select_world(&[package], Some(world)).unwrap();
        embed_component_metadata(&mut module, &resolve, world, StringEncoding::UTF8).unwrap();
        ComponentEncoder::default().module(&module).unwrap().validate(true).encode().unwrap()
    }

    /// Addresses: 512 a zero (ok, allow), 1024 the description, 1100 a rule, 1120 a code, 1200 a
    /// denial, from 2048 on the strings, from 8192 on whatever is allocated.
    fn text(&self, decision: &str, functions: &str) -> String {
        let Self { memory, describe, configure, check, schema, more } = self;
        let (schema_bytes, schema_length) = (schema.replace('"', "\\\"").replace('\n', "\\n"), schema.len() as u32);
        format!(
            r#"(module
                {more}
                {memory}
                (data (i32.const 2048) "hostile")
                (data (i32.const 2064) "test-rule")
                (data (i32.const 2080) "test_denied")
                (data (i32.const 2096) "{schema_bytes}")
                (data (i32.const 1024) "{name}{name}{name}{rules}{codes}{schema}")
                (data (i32.const 1100) "{rule}{name}")
                (data (i32.const 1120) "{code}{name}")
                (data (i32.const 1200) "\01\00\00\00{code}{name}{rule}")
                (global $heap (mut i32) (i32.const 8192))
                (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32)
                    (local $at i32)
                    (local.set $at (i32.and (i32.add (global.get $heap) (i32.const 7)) (i32.const -8)))
                    (global.set $heap (i32.add (local.get $at) (local.get 3)))
                    (local.get $at))
                (func (export "culvert:policy/module@1.0.0#describe") (result i32) {describe})
                (func (export "culvert:policy/module@1.0.0#configure") (param i32 i32) (result i32) {configure})
                (func (export "{decision}") (param i32) (result i32) {check})
                {functions})"#,
            name = text(2048, 7),
            rule = text(2064, 9),
            code = text(2080, 11),
            schema = text(2096, schema_length),
            rules = text(1100, 1),
            codes = text(1120, 1),
        )
    }
}

/// A string or list in memory: where it is and how long.
fn text(at: u32, length: u32) -> String {
    let bytes = [at.to_le_bytes(), length.to_le_bytes()].concat();
    bytes.iter().map(|byte| format!("\\{byte:02x}")).collect()
}
