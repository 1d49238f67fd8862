//! Exact knowledge of what each engine holds, from its own KV events.
