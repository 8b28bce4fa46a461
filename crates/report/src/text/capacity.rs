//! Capacity measurement as text.

use linerate_record::capacity::Capacity;

use crate::capacity::{
    burst_table, delay_table, describe_setup, frame_loss_table, result_notes, throughput_table,
};
use crate::style::{PaintRole, TextStyle, wrap};

/// Renders all results, one table per test.
pub(crate) fn render_capacity(capacity: &Capacity, style: &TextStyle) -> String {
    let mut blocks = vec![style.paint(PaintRole::Bold, &describe_setup(capacity))];
    let grids =
        [throughput_table, delay_table, frame_loss_table, burst_table].map(|grid| grid(capacity));
    blocks.extend(grids.into_iter().flatten().map(|grid| grid.render(style)));
    let lines: Vec<String> = result_notes(capacity)
        .iter()
        .flat_map(|sentence| wrap(sentence, style.width))
        .collect();
    blocks.extend((!lines.is_empty()).then(|| lines.join("\n")));
    blocks.join("\n\n")
}

#[cfg(test)]
mod tests {
    use linerate_record::capacity::{DelayPoint, FrameLossPoint, SizeCapacity};

    use super::*;

    #[test]
    fn a_load_that_was_not_offered_has_a_star() {
        let capacity_with = |missed_intended_fps| Capacity {
            sizes: vec![SizeCapacity {
                size: "64".to_owned(),
                latency: vec![DelayPoint {
                    share: 0.9,
                    offered_fps: 5000.0,
                    ..DelayPoint::default()
                }],
                frame_loss: vec![FrameLossPoint {
                    share: 1.0,
                    offered_fps: 5000.0,
                    missed_intended_fps,
                    ..FrameLossPoint::default()
                }],
                ..SizeCapacity::default()
            }],
            line_bps: Some(1_000_000_000),
            ..Capacity::default()
        };
        let plain = render_capacity(&capacity_with(None), &TextStyle::PLAIN);
        assert!(!plain.contains('*'), "{plain}");
        let starred = render_capacity(&capacity_with(Some(10_000.0)), &TextStyle::PLAIN);
        assert!(starred.contains("5.00 k/s *"), "{starred}");
        assert!(starred.contains("A star marks"), "{starred}");
    }
}
