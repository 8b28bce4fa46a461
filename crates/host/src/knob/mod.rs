//! Settings that are held while a guard lives and go back when it drops.

pub mod idle;
