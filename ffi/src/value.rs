//! Values that must fit their field, in transitions and address handles.

use crate::error::VerbsError;

/// A failed transition, or a failure to create an address handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// A value has more bits than its field, and drivers would truncate it.
    #[error("{attribute} {value} does not fit its field: at most {max}")]
    Value {
        /// The attribute's name in the header.
        attribute: &'static str,
        /// The value.
        value: u32,
        /// The largest value that fits.
        max: u32,
    },
    /// The driver refused.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
}

impl ModifyError {
    /// Returns the driver's errno, or EINVAL for a value that was not passed to the driver.
    pub const fn errno(&self) -> i32 {
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
