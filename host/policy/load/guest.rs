//! Functions of the `module` interface, which is the same in every world.

use wasmtime::component::{ComponentNamedList, Instance, Lift, Lower, TypedFunc};

use crate::engine::sandbox::SandboxStore;

const MODULE: &str = "culvert:policy/module@1.0.0";

/// Finds a function of the `module` interface, which is the same in every world.
pub(crate) fn module_function<P, R>(
    store: &mut SandboxStore,
    instance: &Instance,
    name: &str,
) -> wasmtime::Result<TypedFunc<P, R>>
where
    P: ComponentNamedList + Lower,
    R: ComponentNamedList + Lift,
{
    let missing = || wasmtime::format_err!("it exports no {MODULE}/{name}");
    let (_, interface) = instance.get_export(&mut *store, None, MODULE).ok_or_else(missing)?;
    let (_, function) = instance.get_export(&mut *store, Some(&interface), name).ok_or_else(missing)?;
    instance.get_typed_func(&mut *store, function)
}
