//! Faults, comparisons and attacks in labs: `make bank`, `make bench-compare` and `make hostile` run
//! all of them, for minutes.

#[path = "../common/mod.rs"]
mod common;
#[path = "../bank/confusion_matrix.rs"]
mod confusion_matrix;
#[path = "../bank/faults.rs"]
mod faults;
#[path = "../bank/records.rs"]
mod records;
#[path = "../bank/setting_faults.rs"]
mod setting_faults;

mod bank_live;
mod compare_often;
mod hostile;
