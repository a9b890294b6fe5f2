//! Values that must fit their field, for transitions and address handles.

use crate::error::VerbsError;

/// A transition, or an address handle, that did not come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// A value has more bits than its field; drivers would cut them off.
    #[error("{attribute} of {value} is over {max}")]
    Value {
        /// The manual's name of the attribute.
        attribute: &'static str,
        /// What it was to be.
        value: u32,
        /// The most that fits.
        max: u32,
    },
    /// The driver refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl ModifyError {
    /// What the driver returned; EINVAL for a value that it was not given.
    pub(crate) const fn errno(&self) -> i32 {
        match self {
            Self::Value { .. } => libc::EINVAL,
            Self::Verbs(error) => error.errno,
        }
    }
}

pub(crate) fn bits(attribute: &'static str, value: u32, count: u32) -> Result<u32, ModifyError> {
    let max = (1 << count) - 1;
    if value <= max { Ok(value) } else { Err(ModifyError::Value { attribute, value, max }) }
}

pub(crate) fn small(attribute: &'static str, value: u8, count: u32) -> Result<u8, ModifyError> {
    bits(attribute, value.into(), count).map(|value| value as u8)
}
