//! Room measure.
