//! ringfence-exec
fn main() {}
