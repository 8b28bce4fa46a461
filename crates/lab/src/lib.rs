//! Room lab.
