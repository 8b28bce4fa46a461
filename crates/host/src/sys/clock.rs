//! (clock)
