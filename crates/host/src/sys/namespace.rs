//! (namespace)
