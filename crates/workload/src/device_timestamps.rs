//! Timestamps that a device (target) writes into its responses: time inside and outside of it.

use linerate_record::device_timestamps::{
    ByteOrder, DeviceTimestamps, NANOSECONDS_HZ, TimestampPair,
};
use linerate_stats::histogram::Histogram;
use linerate_sys::clock::Nanos;

use crate::flow::DeviceTimeCounts;

/// Format of the C file for devices (`linerate target-code --stamps`).
pub const TARGET_CODE_FORMAT: DeviceTimestamps = DeviceTimestamps {
    offset: 16,
    width: 8,
    order: ByteOrder::Be,
    hz: NANOSECONDS_HZ,
};

/// Reads a device's timestamps and collects the times.
pub struct DeviceTimeCollector {
    format: DeviceTimestamps,
    inside_times: Histogram,
    outside_times: Histogram,
    counts: DeviceTimeCounts,
}

impl DeviceTimeCollector {
    /// Creates a reader for responses with such timestamps.
    pub fn new(format: DeviceTimestamps) -> Self {
        Self {
            format,
            inside_times: Histogram::new(),
            outside_times: Histogram::new(),
            counts: DeviceTimeCounts::default(),
        }
    }

    /// Returns the format of the timestamps.
    #[inline]
    pub fn format(&self) -> DeviceTimestamps {
        self.format
    }

    /// Records a counted response that took `time_ns`, with its timestamps.
    #[inline]
    pub fn record(&mut self, timestamps: Option<TimestampPair>, time_ns: Nanos) {
        // Requests carry zeros there, so zeros mean that the device wrote nothing.
        let zeros = TimestampPair {
            arrival: 0,
            departure: 0,
        };
        let Some(timestamps) = timestamps.filter(|&timestamps| timestamps != zeros) else {
            self.counts.missing += 1;
            return;
        };
        let inside = self.format.elapsed_ns(timestamps);
        if inside > time_ns {
            self.counts.impossible += 1;
            return;
        }
        self.counts.valid += 1;
        self.inside_times.record(inside);
        self.outside_times.record(time_ns - inside);
    }

    /// Returns the counts and the histograms.
    pub fn finish(self) -> (DeviceTimeCounts, [(&'static str, Histogram); 2]) {
        let times = [
            ("device_ns", self.inside_times),
            ("outside_ns", self.outside_times),
        ];
        (self.counts, times)
    }
}

/// Returns whether a response equals its request outside of the device's timestamps.
#[inline]
pub fn equals_outside(payload: &[u8], request: &[u8], format: DeviceTimestamps) -> bool {
    let range = format.byte_range();
    payload.len() == request.len()
        && payload.get(..range.start) == request.get(..range.start)
        && payload.get(range.end..) == request.get(range.end..)
}

/// Clears the bytes in which the device writes.
pub fn clear_timestamps(message: &mut [u8], format: DeviceTimestamps) {
    if let Some(bytes) = message.get_mut(format.byte_range()) {
        bytes.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_round_trip_add_up() {
        let format: DeviceTimestamps = "16,width=4,hz=1M".parse().unwrap();
        let mut collector = DeviceTimeCollector::new(format);
        for (arrival, departure, time_ns) in [
            (7, 19, 40_000),
            // The device's counter wrapped.
            (u64::from(u32::MAX), 11, 40_000),
            (0, 0, 40_000),
            (10, 60, 40_000),
        ] {
            collector.record(Some(TimestampPair { arrival, departure }), time_ns);
        }
        collector.record(None, 40_000);
        let (counts, [(_, inside), (_, outside)]) = collector.finish();
        let DeviceTimeCounts {
            valid: read,
            missing: without,
            impossible,
        } = counts;
        assert_eq!((read, without, impossible), (2, 2, 1));
        assert_eq!(inside.quantile(0.5), Some(12_000));
        assert_eq!(outside.quantile(0.5), Some(28_000));
    }

    #[test]
    fn only_the_bytes_of_the_stamps_may_differ() {
        let format: DeviceTimestamps = "20,width=4".parse().unwrap();
        let request: Vec<u8> = (0..40).collect();
        for at in 0..request.len() {
            let mut response = request.clone();
            response[at] ^= 0x40;
            let inside = format.byte_range().contains(&at);
            assert_eq!(equals_outside(&response, &request, format), inside, "{at}");
        }
        assert!(!equals_outside(&request[..39], &request, format));
        assert!(!equals_outside(&request[..22], &request[..23], format));
    }
}
