//! Event streams (WHATWG) without I/O: parsed in place.
