//! Who is at the other end of a unix socket.
