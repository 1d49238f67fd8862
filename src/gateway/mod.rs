//! The data plane: everything that runs on a pinned core.
