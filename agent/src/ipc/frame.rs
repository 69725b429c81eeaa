//! Length-prefixed frames: a u32 in network order, then that many bytes.
