//! Macros for enums with a variant for each backend.

/// Defines an enum of a type of each backend: of the software NIC, over TCP, of verbs.
macro_rules! any {
    (
        $(#[$attribute:meta])*
        $name:ident$(<$life:lifetime>)?: $software:ty, $tcp:ty, $verbs:ty
    ) => {
        $(#[$attribute])*
        #[non_exhaustive]
        pub enum $name$(<$life>)? {
            /// Of the software NIC.
            Software($software),
            /// Over TCP.
            #[cfg(feature = "tcp")]
            Tcp($tcp),
            /// Of real verbs.
            #[cfg(feature = "verbs")]
            Verbs($verbs),
        }

        impl$(<$life>)? From<$software> for $name$(<$life>)? {
            #[inline]
            fn from(inner: $software) -> Self {
                Self::Software(inner)
            }
        }

        #[cfg(feature = "tcp")]
        impl$(<$life>)? From<$tcp> for $name$(<$life>)? {
            #[inline]
            fn from(inner: $tcp) -> Self {
                Self::Tcp(inner)
            }
        }

        #[cfg(feature = "verbs")]
        impl$(<$life>)? From<$verbs> for $name$(<$life>)? {
            #[inline]
            fn from(inner: $verbs) -> Self {
                Self::Verbs(inner)
            }
        }
    };
}

/// Evaluates an expression with what is in an enum, for every backend.
macro_rules! each {
    ($name:ident, $any:expr, $inner:pat => $result:expr) => {
        match $any {
            $name::Software($inner) => $result,
            #[cfg(feature = "tcp")]
            $name::Tcp($inner) => $result,
            #[cfg(feature = "verbs")]
            $name::Verbs($inner) => $result,
        }
    };
}

pub(super) use {any, each};
