//! HTTP/1.1 (RFC 9112) without I/O: bytes in, events out; strict.
