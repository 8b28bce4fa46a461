//! Titles, names and sentences about plans and records, shared by all output formats. The texts are
//! not escaped; the renderer does that.

mod caveats_and_findings;
mod document_comparison;
mod headline;
mod measurements;
mod plan_text;

pub(crate) use caveats_and_findings::{
    count_caveats, describe_evidence, describe_gain, distinct_caveats, finding_attributes,
};
pub(crate) use document_comparison::compare_documents;
pub(crate) use headline::{run_headlines, set_headlines};
pub(crate) use measurements::measurements;
pub(crate) use plan_text::{
    describe_granted_buffers, describe_local_wait, describe_wait, plan_details, plan_title,
    recorded_direction, run_name, run_title, server_view_title, with_distinct_labels,
};
