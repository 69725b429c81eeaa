//! Reading what a command really does. This is not a shell: what cannot be read is escalated.
