//! The record of what was served, and its sinks.
