//! The only user of the runtime's sockets.
