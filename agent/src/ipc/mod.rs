//! The sockets: frames, peers, the hook's data plane and the person's control plane.

pub mod frame;
pub mod hook;
pub mod json;
pub mod limits;
pub mod peer;
