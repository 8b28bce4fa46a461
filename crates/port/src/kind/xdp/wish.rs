//! What a URL asks of the device itself, which whoever opens the port sets before, and sets back when the port is
//! closed: settings of an interface outlive this process, and no port leaves any behind.

use std::ops::RangeInclusive;

use crate::error::PortError;
use crate::url::PortUrl;

use super::{KIND, queues};

/// Settings that a port wants its interface to have while it is open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceWish {
    /// The interface.
    pub interface: String,
    /// Queues in use (`channels=set`).
    pub channels: Option<u32>,
    /// Queues over which all that arrives is spread (`rss=set`).
    pub rss: Option<RangeInclusive<u32>>,
}

impl PortUrl {
    /// What it asks of its device; none where that stays as it is.
    #[must_use]
    pub fn device_wish(&self) -> Option<DeviceWish> {
        let is_set = |key| self.text(key) == Some("set");
        let (channels, rss) = (is_set("channels"), is_set("rss"));
        if self.kind().scheme != KIND.scheme || !(channels || rss) {
            return None;
        }
        let taken = queues(self);
        Some(DeviceWish {
            interface: self.name().to_owned(),
            channels: channels.then(|| taken.end() + 1),
            rss: rss.then_some(taken),
        })
    }
}

/// Refuses to open a port whose device is not as its URL asks for; `in_use` are its receive queues, where it tells.
pub(super) fn check(url: &PortUrl, in_use: Option<u32>) -> Result<(), PortError> {
    let wanted = url.device_wish().and_then(|wish| wish.channels);
    match (wanted, in_use) {
        (Some(wanted), Some(in_use)) if wanted != in_use => Err(url.bad_value(
            "channels",
            "set",
            format!(
                "possible here: {in_use} receive queues are in use, and nobody made them {wanted}"
            ),
            "keep",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> PortUrl {
        text.parse().unwrap()
    }

    #[test]
    fn a_device_is_asked_for_what_the_url_says() {
        let wish = |channels, rss| {
            Some(DeviceWish {
                interface: "eth1".to_owned(),
                channels,
                rss,
            })
        };
        for (text, want) in [
            ("xdp:eth1,q=0-3", None),
            ("xdp:eth1,channels=keep,rss=keep", None),
            ("packet:eth1,queues=2", None),
            ("xdp:eth1,channels=set", wish(Some(1), None)),
            ("xdp:eth1,queues=2,channels=set", wish(Some(2), None)),
            (
                "xdp:eth1,q=2-3,channels=set,rss=set",
                wish(Some(4), Some(2..=3)),
            ),
            ("xdp:eth1,q=1,rss=set", wish(None, Some(1..=1))),
        ] {
            assert_eq!(url(text).device_wish(), want, "{text}");
        }
    }

    #[test]
    fn a_device_that_nobody_set_is_not_taken_for_one_that_is() {
        let set = url("xdp:eth1,q=0-1,channels=set");
        assert!(check(&set, Some(2)).is_ok());
        assert!(check(&set, None).is_ok());
        assert!(check(&url("xdp:eth1,q=0-1"), Some(4)).is_ok());
        let refused = check(&set, Some(4)).unwrap_err();
        assert!(refused.to_string().contains("4 receive queues are in use"));
    }
}
