//! Room dialect.
