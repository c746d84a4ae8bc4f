// SPDX-License-Identifier: Apache-2.0

//! The forms that types of the C interface take here: constants of an open set,
//! ids, options and results.

/// An integer of C with named values. It is no Rust enum: a newer library may
/// return values that this crate does not know.
macro_rules! c_enum {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$value_doc:meta])* $value:ident = $c:ident,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(transparent)]
        pub struct $name(pub i32);

        impl $name {
            $($(#[$value_doc])* pub const $value: $name = $name(shard_sys::$c);)*
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match *self {
                    $($name::$value => out.write_str(stringify!($value)),)*
                    $name(other) => write!(out, "{}({other})", stringify!($name)),
                }
            }
        }
    };
}

/// The number of a thing in a model or plan, from 0.
macro_rules! id {
    ($(#[$doc:meta])* $name:ident($number:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
        #[repr(transparent)]
        pub struct $name(pub $number);

        impl std::fmt::Display for $name {
            fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                self.0.fmt(out)
            }
        }
    };
}

/// Options of a call: all have defaults, and each has a function that sets it.
/// Fields after `with` have functions of their own.
macro_rules! options {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ident $(<$inner:ty>)?,)*
    } $(with { $($other:ident: $other_type:ty,)* })?) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $name {
            $(pub(crate) $field: $type $(<$inner>)?,)*
            $($(pub(crate) $other: $other_type,)*)?
        }

        impl $name {
            $(setter! { $(#[$field_doc])* $field, $type $(<$inner>)? })*
        }
    };
}

/// A number is given as it is; text, options and lists as what turns into them.
macro_rules! setter {
    ($(#[$doc:meta])* $field:ident, bool) => { setter! { $(#[$doc])* $field: bool } };
    ($(#[$doc:meta])* $field:ident, i32) => { setter! { $(#[$doc])* $field: i32 } };
    ($(#[$doc:meta])* $field:ident, i64) => { setter! { $(#[$doc])* $field: i64 } };
    ($(#[$doc:meta])* $field:ident, u64) => { setter! { $(#[$doc])* $field: u64 } };
    ($(#[$doc:meta])* $field:ident, f64) => { setter! { $(#[$doc])* $field: f64 } };
    ($(#[$doc:meta])* $field:ident, $type:ty) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: impl Into<$type>) -> Self {
            self.$field = $field.into();
            self
        }
    };
    ($(#[$doc:meta])* $field:ident: $type:ty) => {
        $(#[$doc])*
        #[must_use]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    };
}

/// The result of a call: a copy of a C struct.
macro_rules! info {
    ($(#[$doc:meta])* $name:ident from $c:ident as $raw:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $value:expr,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        #[non_exhaustive]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
        }

        impl $name {
            pub(crate) fn new($raw: &shard_sys::$c) -> $name {
                $name { $($field: $value,)* }
            }
        }
    };
}
