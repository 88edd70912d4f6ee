//! Fields of forms, each with its label, and what is wrong with it beside it.

use maud::{Markup, html};

use crate::form::KEY;
use crate::visit::Visit;

/// A line to type in.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    pub name: &'a str,
    pub label: &'a str,
    /// The `type` of the input.
    pub kind: &'a str,
    pub value: &'a str,
    pub hint: Option<&'a str>,
    pub fault: Option<&'a str>,
    pub autocomplete: Option<&'a str>,
    pub inputmode: Option<&'a str>,
    pub required: bool,
}

impl Default for Field<'_> {
    fn default() -> Self {
        Self {
            name: "",
            label: "",
            kind: "text",
            value: "",
            hint: None,
            fault: None,
            autocomplete: Some("off"),
            inputmode: None,
            required: false,
        }
    }
}

/// A line of a form that may be shown again: with what was typed, or else this value, and with what is wrong with it.
pub(crate) fn typed<'a>(visit: &'a Visit, name: &'a str, label: &'a str, value: &'a str) -> Field<'a> {
    let (value, fault) = (visit.typed(name).unwrap_or(value), visit.fault(name));
    Field { name, label, value, fault, ..Field::default() }
}

pub(crate) fn text(field: &Field<'_>) -> Markup {
    let Field { name, label, kind, value, hint, fault, autocomplete, inputmode, required } = field;
    let (hint_id, fault_id) = (format!("{name}-hint"), format!("{name}-fault"));
    let described = if fault.is_some() { Some(&fault_id) } else { hint.map(|_| &hint_id) };
    html! {
        div.field {
            label for=(name) { (label) }
            input id=(name) name=(name) type=(kind) value=(value) autocomplete=[autocomplete] inputmode=[inputmode]
                required[*required] aria-invalid=[fault.map(|_| "true")] aria-describedby=[described];
            (beside(&hint_id, *hint, &fault_id, *fault))
        }
    }
}

/// A list, a line each.
pub(crate) fn lines(name: &str, label: &str, value: &str, fault: Option<&str>) -> Markup {
    let fault_id = format!("{name}-fault");
    html! {
        div.field {
            label for=(name) { (label) }
            // The line break that a browser takes off the beginning.
            textarea id=(name) name=(name) rows="5" spellcheck="false" aria-invalid=[fault.map(|_| "true")]
                aria-describedby=[fault.map(|_| &fault_id)] { "\n" (value) }
            (beside("", None, &fault_id, fault))
        }
    }
}

pub(crate) fn select<'a>(
    name: &str,
    label: &str,
    chosen: &str,
    fault: Option<&str>,
    options: impl Iterator<Item = (&'a str, String)>,
) -> Markup {
    let fault_id = format!("{name}-fault");
    html! {
        div.field {
            label for=(name) { (label) }
            select id=(name) name=(name) aria-invalid=[fault.map(|_| "true")] aria-describedby=[fault.map(|_| &fault_id)] {
                @for (value, text) in options { option value=(value) selected[value == chosen] { (text) } }
            }
            (beside("", None, &fault_id, fault))
        }
    }
}

/// Boxes to choose several of: the name of each, its label, and whether it is chosen.
pub(crate) fn boxes<'a>(
    name: &str,
    label: &str,
    fault: Option<&str>,
    boxes: impl Iterator<Item = (String, &'a str, bool)>,
) -> Markup {
    let fault_id = format!("{name}-fault");
    html! {
        fieldset id=(name) aria-describedby=[fault.map(|_| &fault_id)] {
            legend { (label) }
            @for (name, label, is_chosen) in boxes {
                label.box { input type="checkbox" name=(name) value="yes" checked[is_chosen]; " " (label) }
            }
            (beside("", None, &fault_id, fault))
        }
    }
}

fn beside(hint_id: &str, hint: Option<&str>, fault_id: &str, fault: Option<&str>) -> Markup {
    html! {
        @if let Some(fault) = fault { p.fault id=(fault_id) { (fault) } }
        @else if let Some(hint) = hint { p.hint id=(hint_id) { (hint) } }
    }
}

pub(crate) fn hidden(name: &str, value: &str) -> Markup {
    html! { input type="hidden" name=(name) value=(value); }
}

/// A form that is one control in a row of a table. The control's name is the row's alone, and so is its fault.
pub(crate) fn in_row(visit: &Visit, path: &str, name: &str, control: &Markup, label: &str) -> Markup {
    html! {
        form.button-form method="post" action=(path) {
            (hidden(KEY, &visit.form_key(path)))
            (control)
            button type="submit" { (label) }
            (beside("", None, &format!("{name}-fault"), visit.fault(name)))
        }
    }
}

/// The control of such a form: one of several values.
pub(crate) fn select_in_row<'a>(
    visit: &Visit,
    name: &str,
    label: &str,
    chosen: &str,
    options: impl Iterator<Item = &'a str>,
) -> Markup {
    let fault = visit.fault(name);
    html! {
        select id=(name) name=(name) aria-label=(label) aria-invalid=[fault.map(|_| "true")]
            aria-describedby=[fault.map(|_| format!("{name}-fault"))] {
            @for option in options { option value=(option) selected[option == chosen] { (option) } }
        }
    }
}

/// A form that is one button.
pub(crate) fn button(visit: &Visit, path: &str, label: &str) -> Markup {
    button_with(visit, path, label, &[])
}

/// As [`button`], which also sends these fields.
pub(crate) fn button_with(visit: &Visit, path: &str, label: &str, fields: &[(&str, &str)]) -> Markup {
    html! {
        form.button-form method="post" action=(path) {
            (hidden(KEY, &visit.form_key(path)))
            @for (name, value) in fields { (hidden(name, value)) }
            button type="submit" { (label) }
        }
    }
}
