//! Timestamps that a device (target) writes into its responses: time inside and outside of it.

use linerate_host::sys::clock::Nanos;
use linerate_metric::device_timestamps::{ByteOrder, DeviceStamps, NANOSECONDS_HZ, Stamped};
use linerate_metric::histogram::Histogram;

use crate::flow::DeviceAccount;

/// Format of the C file for devices (`linerate target-code --stamps`).
pub const TARGET: DeviceStamps = DeviceStamps {
    offset: 16,
    width: 8,
    order: ByteOrder::Be,
    hz: NANOSECONDS_HZ,
};

/// Reads a device's timestamps and collects the times.
pub struct DeviceWatch {
    stamps: DeviceStamps,
    inside: Histogram,
    around: Histogram,
    account: DeviceAccount,
}

impl DeviceWatch {
    /// Creates a reader for responses with such timestamps.
    pub fn new(stamps: DeviceStamps) -> Self {
        Self {
            stamps,
            inside: Histogram::new(),
            around: Histogram::new(),
            account: DeviceAccount::default(),
        }
    }

    /// Returns the format of the timestamps.
    #[inline]
    pub fn stamps(&self) -> DeviceStamps {
        self.stamps
    }

    /// Records a counted response that took `time_ns`, with its timestamps.
    #[inline]
    pub fn note(&mut self, stamped: Option<Stamped>, time_ns: Nanos) {
        // Requests carry zeros there, so zeros mean that the device wrote nothing.
        let nothing = Stamped { came: 0, left: 0 };
        let Some(stamped) = stamped.filter(|&stamped| stamped != nothing) else {
            self.account.without += 1;
            return;
        };
        let inside = self.stamps.between_ns(stamped);
        if inside > time_ns {
            self.account.impossible += 1;
            return;
        }
        self.account.read += 1;
        self.inside.record(inside);
        self.around.record(time_ns - inside);
    }

    /// Returns the counts and the histograms.
    pub fn finish(self) -> (DeviceAccount, [(&'static str, Histogram); 2]) {
        let times = [("device_ns", self.inside), ("outside_ns", self.around)];
        (self.account, times)
    }
}

/// Returns whether a response equals its request outside of the device's timestamps.
#[inline]
pub fn same_outside(payload: &[u8], question: &[u8], stamps: DeviceStamps) -> bool {
    let range = stamps.range();
    payload.len() == question.len()
        && payload.get(..range.start) == question.get(..range.start)
        && payload.get(range.end..) == question.get(range.end..)
}

/// Clears the bytes in which the device writes.
pub fn clear(message: &mut [u8], stamps: DeviceStamps) {
    if let Some(room) = message.get_mut(stamps.range()) {
        room.fill(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_round_trip_add_up() {
        let stamps: DeviceStamps = "16,width=4,hz=1M".parse().unwrap();
        let mut watch = DeviceWatch::new(stamps);
        for (came, left, time_ns) in [
            (7, 19, 40_000),
            // The device's counter wrapped.
            (u64::from(u32::MAX), 11, 40_000),
            (0, 0, 40_000),
            (10, 60, 40_000),
        ] {
            watch.note(Some(Stamped { came, left }), time_ns);
        }
        watch.note(None, 40_000);
        let (account, [(_, inside), (_, around)]) = watch.finish();
        let DeviceAccount {
            read,
            without,
            impossible,
        } = account;
        assert_eq!((read, without, impossible), (2, 2, 1));
        assert_eq!(inside.quantile(0.5), Some(12_000));
        assert_eq!(around.quantile(0.5), Some(28_000));
    }

    #[test]
    fn only_the_bytes_of_the_stamps_may_differ() {
        let stamps: DeviceStamps = "20,width=4".parse().unwrap();
        let question: Vec<u8> = (0..40).collect();
        for at in 0..question.len() {
            let mut answer = question.clone();
            answer[at] ^= 0x40;
            let inside = stamps.range().contains(&at);
            assert_eq!(same_outside(&answer, &question, stamps), inside, "{at}");
        }
        assert!(!same_outside(&question[..39], &question, stamps));
        assert!(!same_outside(&question[..22], &question[..23], stamps));
    }
}
