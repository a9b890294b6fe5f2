//! What both ends have once they have met.

use super::link::Link;
use super::terms::Terms;
use crate::rails::Wire;

/// What both ends have once they have met.
pub(crate) struct Met {
    pub(crate) wire: Box<dyn Wire>,
    pub(crate) link: Link,
    pub(crate) terms: Terms,
}
