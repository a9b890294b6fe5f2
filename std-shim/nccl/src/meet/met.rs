//! What both ends have once they have met.

use super::terms::Terms;
use super::way::Way;
use crate::rails::Wire;

/// What both ends have once they have met.
pub(crate) struct Met {
    pub(crate) wire: Box<dyn Wire>,
    pub(crate) way: Way,
    pub(crate) terms: Terms,
}
