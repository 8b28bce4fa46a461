//! (socket)
