//! (cpu)
