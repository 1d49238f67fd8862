//! The configuration: file to checked values, each with its origin.
