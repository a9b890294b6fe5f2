//! Code that is compiled for tests only.

use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Whether this is compiled for tests or documentation only.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    let is_cfg = |attribute: &&Attribute| attribute.path().is_ident("cfg");
    let mut conditions = attributes.iter().filter(is_cfg);
    conditions.any(|cfg| cfg.parse_args().is_ok_and(|condition| holds(&condition) == Some(false)))
}

/// Whether a condition holds in a program, as far as that is known.
fn holds(condition: &Meta) -> Option<bool> {
    let Meta::List(list) = condition else {
        let mut never = ["test", "doctest", "doc"].iter();
        return never.any(|name| condition.path().is_ident(name)).then_some(false);
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
    let parts: Vec<_> = parts.iter().map(holds).collect();
    if list.path.is_ident("not") {
        return parts.first().copied().flatten().map(|holds| !holds);
    }
    let decisive = list.path.is_ident("any");
    if parts.contains(&Some(decisive)) {
        return Some(decisive);
    }
    parts.iter().all(Option::is_some).then_some(!decisive)
}
