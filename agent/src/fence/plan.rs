//! The plan: the file that carries a compiled fence to the launcher.
