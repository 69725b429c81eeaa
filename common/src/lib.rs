//! What the kernel programs and the agent agree on: event records, marks, map values, field offsets, limits.
//!
//! Everything here is `repr(C)`, made of integers and byte arrays, without padding: with the feature `user` bytemuck
//! checks that at compile time. A change of any layout in [`maps`] or [`record`] changes [`limits::MAP_ABI`].
#![no_std]
#![forbid(unsafe_code)]

pub mod fields;
pub mod limits;
pub mod maps;
pub mod mark;
pub mod record;
pub mod rules;
// The one file that knows the processor: another one joins beside it and is chosen here.
pub mod x86_64;

/// Plain data: `Pod` where the agent reads it, `Copy` in the kernel.
macro_rules! plain {
    ($(#[$meta:meta])* pub struct $name:ident { $($(#[$field_meta:meta])* pub $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[cfg_attr(feature = "user", derive(bytemuck::Pod, bytemuck::Zeroable))]
        pub struct $name { $($(#[$field_meta])* pub $field: $type,)* }
    };
}
pub(crate) use plain;
