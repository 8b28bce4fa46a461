//! What answers tell of their time inside the device that gave them.

use linerate_host::sys::clock::Nanos;
use linerate_metric::device_stamps::{ByteOrder, DeviceStamps, NANOSECONDS_HZ, Stamped};
use linerate_metric::histogram::Histogram;

use crate::flow::DeviceAccount;

/// What the C file for devices writes (`linerate target-code --stamps`).
pub const TARGET: DeviceStamps = DeviceStamps {
    offset: 16,
    width: 8,
    order: ByteOrder::Be,
    hz: NANOSECONDS_HZ,
};

/// Reads the times of a device, and keeps account of them.
pub struct DeviceWatch {
    stamps: DeviceStamps,
    inside: Histogram,
    around: Histogram,
    account: DeviceAccount,
}

impl DeviceWatch {
    /// For answers that carry such stamps.
    pub fn new(stamps: DeviceStamps) -> Self {
        Self {
            stamps,
            inside: Histogram::new(),
            around: Histogram::new(),
            account: DeviceAccount::default(),
        }
    }

    /// Where the stamps are.
    #[inline]
    pub fn stamps(&self) -> DeviceStamps {
        self.stamps
    }

    /// A counted answer that took so long, and the stamps that were in it.
    #[inline]
    pub fn note(&mut self, stamped: Option<Stamped>, time_ns: Nanos) {
        // Questions leave with zeros there: what comes back so was written by nobody.
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

    /// What it came to.
    pub fn finish(self) -> (DeviceAccount, [(&'static str, Histogram); 2]) {
        let times = [("device_ns", self.inside), ("around_ns", self.around)];
        (self.account, times)
    }
}

/// Whether an answer is its question but for the bytes that the device writes.
#[inline]
pub fn same_outside(payload: &[u8], question: &[u8], stamps: DeviceStamps) -> bool {
    let range = stamps.range();
    payload.len() == question.len()
        && payload.get(..range.start) == question.get(..range.start)
        && payload.get(range.end..) == question.get(range.end..)
}

/// Leaves nothing where the device writes.
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
            // It began anew.
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
