//! ringfence-hook
fn main() {}
