//! Faults and comparisons in labs: `make bank` and `make bench-compare` run all of them, for
//! minutes.

#[path = "../common/mod.rs"]
mod common;
#[path = "../bank/confusion_matrix.rs"]
mod confusion_matrix;
#[path = "../bank/faults.rs"]
mod faults;
#[path = "../bank/setting_faults.rs"]
mod setting_faults;

mod bank_live;
mod compare_often;
