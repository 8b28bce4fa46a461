//! Parsers of texts about frames: templates, loads, ports, modes, captures.

use std::io::Cursor;

use linerate_forwarder::ModeSpec;
use linerate_packet::template::{FrameSizes, FrameTag, TagMatch, Template, find_tag, parse_template};
use linerate_record::generate::IntendedLoad;
use linerate_stats::units::{parse_duration, parse_fraction};
use linerate_port::PortUrl;
use linerate_packet::pcap::CaptureReader;

/// Maximum number of frames of a template that are written.
const FRAME_COUNT: u32 = 64;

/// Frame template: a valid file gives frames whose tags are found, an invalid one an error.
pub fn template(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok(mut plan) = parse_template(text) else {
        return;
    };
    plan.flows = Some(plan.flows.unwrap_or(3).min(FRAME_COUNT));
    let template = match Template::new(&plan, [2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]) {
        Ok(template) => template,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let sizes = template.sizes().sequence();
    for number in 0..FRAME_COUNT {
        let size = sizes[number as usize % sizes.len()];
        let mut frame = vec![0; size.into()];
        let tag = FrameTag {
            mark: 0x5ead,
            number: number.into(),
            flow_group: 1,
            time_ns: 7,
        };
        template.write(&mut frame, number % template.flows(), tag);
        if let Some(offset) = template.tag_location() {
            let tag_result = find_tag(&frame, offset, tag.mark, 2, tag.time_ns);
            assert!(
                matches!(tag_result, TagMatch::Tagged(found, _) if found.flow_group == 1),
                "{tag_result:?}"
            );
        }
    }
}

/// Loads, ports and modes: printing and parsing round-trip; sizes, fractions and times are in
/// range.
pub fn arguments(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    if let Ok(load) = text.parse::<IntendedLoad>() {
        assert!(load.to_string().parse::<IntendedLoad>().is_ok(), "{load}");
        if let Some(rate) = load.frames_per_second(64.0, Some(1_000_000_000)) {
            assert!(rate > 0.0, "{load}");
        }
    }
    if let Ok(sizes) = FrameSizes::parse(text, 1) {
        let (mean, largest) = (sizes.mean(), f64::from(sizes.largest()));
        // The mean includes the FCS, lengths do not.
        assert!(mean >= 64.0 && mean <= largest + 4.0, "{mean} of {largest}");
    }
    let _ = (parse_fraction(text), parse_duration(text));
    if let Ok(url) = text.parse::<PortUrl>() {
        let reparsed: PortUrl = url.to_string().parse().expect("a printed URL parses");
        assert_eq!(reparsed.short_name(), url.short_name());
        let plan = url.memory_plan();
        assert!(plan.frames > 0 && plan.slot_bytes() >= usize::from(plan.frame_bytes));
    }
    if let Ok(mode) = text.parse::<ModeSpec>() {
        assert_eq!(mode.to_string().parse(), Ok(mode));
    }
}

/// Capture: the reader returns complete frames, the end, or an error.
pub fn capture(data: &[u8]) {
    let Ok(mut reader) = CaptureReader::new(Cursor::new(data)) else {
        return;
    };
    let mut bytes = 0;
    while let Ok(Some(record)) = reader.read() {
        bytes += record.bytes.len();
        assert!(bytes <= data.len(), "more frame bytes than the file has");
    }
}
