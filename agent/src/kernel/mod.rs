//! The only door to the kernel programs: loading, maps, ring buffers, marks. Reached only from `probe/`.
