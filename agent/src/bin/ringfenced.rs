//! ringfenced
fn main() {}
