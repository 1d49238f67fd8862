//! The shapes of the OpenAI API: what we read, refuse, edit in place and pass through.
