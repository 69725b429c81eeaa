//! The sockets: frames, peers, the hook's data plane and the person's control plane.

#[cfg(feature = "service")]
pub mod control;
#[cfg(feature = "service")]
pub mod descriptors;
pub mod frame;
pub mod hook;
pub mod json;
pub mod limits;
pub mod peer;
