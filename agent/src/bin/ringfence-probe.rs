//! ringfence-probe
fn main() {}
