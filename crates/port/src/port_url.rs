//! Port URLs: `KIND:NAME,key=value,…`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use linerate_sys::frames::burst::BURST_FRAMES;
use linerate_sys::frames::frame_memory::MemoryPlan;

use crate::error::PortError;
use crate::kinds::{KINDS, NameRule, PortKind, UNBUILT_SCHEMES};

/// Bytes of a frame beyond its MTU: Ethernet header and one VLAN tag.
pub(crate) const FRAME_OVERHEAD_BYTES: u16 = 18;
/// Default MTU: that of Ethernet (RFC 894).
const DEFAULT_MTU: u16 = 1500;
/// Frames that a thread's pool and bursts may hold, in addition to those in rings.
const THREAD_FRAMES: u32 = 512;

/// Key of a port URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UrlKey {
    /// Name of the key.
    pub name: &'static str,
    /// Values that are accepted after `=`.
    pub value_kind: ValueKind,
    /// Description in one line.
    pub description: &'static str,
}

/// Kind of value that a key accepts after its `=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// No value, `yes` or `no`.
    Flag,
    /// An integer within these bounds.
    Number {
        /// Smallest value.
        min: u32,
        /// Largest value.
        max: u32,
    },
    /// A text of this list.
    OneOf(&'static [&'static str]),
    /// Queue number or range: `0`, `0-3`.
    Queues,
    /// Any text without a comma; this one is an example.
    Text(&'static str),
}

/// Keys that every kind accepts.
pub const COMMON_KEYS: &[UrlKey] = &[
    UrlKey {
        name: "rxd",
        value_kind: ValueKind::Number {
            min: 1,
            max: 65_536,
        },
        description: "descriptors of each receive ring",
    },
    UrlKey {
        name: "txd",
        value_kind: ValueKind::Number {
            min: 1,
            max: 65_536,
        },
        description: "descriptors of each transmit ring",
    },
    UrlKey {
        name: "burst",
        value_kind: ValueKind::Number {
            min: 1,
            max: BURST_FRAMES as u32,
        },
        description: "frames moved by one poll",
    },
    UrlKey {
        name: "mtu",
        // The largest frame must fit 16 bits with its Ethernet and vnet headers.
        value_kind: ValueKind::Number {
            min: 68,
            max: 65_500,
        },
        description: "largest packet inside a frame, in bytes",
    },
    UrlKey {
        name: "queues",
        value_kind: ValueKind::Number { min: 1, max: 64 },
        description: "queue pairs, each polled by a thread of its own",
    },
    UrlKey {
        name: "force",
        value_kind: ValueKind::Flag,
        description: "use an interface that carries the default route or this SSH session",
    },
];

/// Values of the common keys; none means the default of the kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommonOptions {
    /// Descriptors of each receive ring.
    pub rxd: Option<u32>,
    /// Descriptors of each transmit ring.
    pub txd: Option<u32>,
    /// Frames moved by one poll (1 to 32).
    pub burst: Option<usize>,
    /// Largest packet inside a frame, in bytes.
    pub mtu: Option<u16>,
    /// Queue pairs.
    pub queues: Option<u32>,
    /// Permits an interface that is in use.
    pub force: bool,
    /// Destination of received frames; a kind with several receive methods chooses the fastest one
    /// for it.
    pub rx_destination: RxDestination,
}

/// Destination of the frames that a polling loop receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RxDestination {
    /// Code that waits for each frame.
    #[default]
    Reader,
    /// Mostly another port that the same thread sends to.
    Port,
    /// Counters only: the frames are dropped, and their delay does not matter.
    Counter,
}

/// Parsed port URL; all checks that need no access to the machine have passed.
#[derive(Clone)]
pub struct PortUrl {
    text: String,
    kind: &'static PortKind,
    name: String,
    common: CommonOptions,
    keys: Vec<(&'static UrlKey, String)>,
}

impl PortUrl {
    /// Kind of the port.
    #[must_use]
    pub fn kind(&self) -> &'static PortKind {
        self.kind
    }

    /// Text between the kind and the first key: an interface, a number or a name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Name of the kernel interface; none if the port has another kind of name.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        (self.kind.name_rule == NameRule::Required("interface")).then_some(self.name.as_str())
    }

    /// Kind and name without keys: `packet:eth0`.
    #[must_use]
    pub fn short_name(&self) -> String {
        format!("{}:{}", self.kind.scheme, self.name)
    }

    /// Values of the common keys.
    #[must_use]
    pub fn common(&self) -> CommonOptions {
        self.common
    }

    /// Returns the URL with [`CommonOptions::force`] set, as `--force` does for all ports.
    #[must_use]
    pub fn with_force(mut self) -> Self {
        self.common.force = true;
        self
    }

    /// Returns the URL with [`CommonOptions::rx_destination`] set; no key sets it.
    #[must_use]
    pub fn with_rx_destination(mut self, destination: RxDestination) -> Self {
        self.common.rx_destination = destination;
        self
    }

    /// Returns the URL with another value of a key; the settings of [`PortUrl::with_force`] and
    /// [`PortUrl::with_rx_destination`] remain.
    ///
    /// # Errors
    /// The kind does not have the key, or does not accept the value.
    pub fn with_key(&self, key: &str, value: &str) -> Result<Self, PortError> {
        if matches!(self.kind.name_rule, NameRule::RestOfUrl(_)) {
            return Err(PortError::UnknownKey {
                url: self.text.clone(),
                kind: self.kind.scheme,
                key: key.to_owned(),
                accepted: "its own options, as part of its name".to_owned(),
            });
        }
        let (scheme, rest) = self.text.split_once(':').unwrap_or((&self.text, ""));
        let is_other = |part: &&str| !part.is_empty() && part.split('=').next() != Some(key);
        // The first part is the name, unless it is a key.
        let named = !self.name.is_empty();
        let mut parts: Vec<&str> = rest
            .split(',')
            .enumerate()
            .filter(|(at, part)| (*at == 0 && named) || is_other(part))
            .map(|(_, part)| part)
            .collect();
        let added = format!("{key}={value}");
        parts.push(&added);
        let mut url: Self = format!("{scheme}:{}", parts.join(",")).parse()?;
        url.common.force |= self.common.force;
        url.common.rx_destination = self.common.rx_destination;
        Ok(url)
    }

    /// Value of one of the kind's own keys.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        let entry = self
            .keys
            .iter()
            .find(|(candidate, _)| candidate.name == key);
        entry.map(|(_, value)| value.as_str())
    }

    /// Returns true if a flag of the kind is set.
    #[must_use]
    pub fn parse_flag(&self, key: &str) -> bool {
        self.text(key).is_some_and(parse_flag)
    }

    /// Value of a numeric key of the kind.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u32> {
        self.text(key)?.parse().ok()
    }

    /// Value of a key of the kind that is a range of queues.
    #[must_use]
    pub fn parse_queues(&self, key: &str) -> Option<RangeInclusive<u32>> {
        parse_queues(self.text(key)?)
    }

    /// Largest packet inside a frame, in bytes.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.common.mtu.unwrap_or(DEFAULT_MTU)
    }

    /// Bytes of the largest frame: MTU, Ethernet header and one VLAN tag.
    #[must_use]
    pub fn frame_bytes(&self) -> u16 {
        self.mtu() + FRAME_OVERHEAD_BYTES
    }

    /// Maximum number of frames moved by one poll of this port.
    #[must_use]
    pub fn burst(&self) -> usize {
        self.common.burst.unwrap_or(BURST_FRAMES)
    }

    /// Descriptors of the receive ring, as given or the kind's default.
    #[must_use]
    pub fn rxd(&self) -> u32 {
        self.common.rxd.unwrap_or(self.kind.descriptors)
    }

    /// Descriptors of the transmit ring, as given or the kind's default.
    #[must_use]
    pub fn txd(&self) -> u32 {
        self.common.txd.unwrap_or(self.kind.descriptors)
    }

    /// Frame memory that this port needs, including the frames held by a thread that polls it.
    #[must_use]
    pub fn memory_plan(&self) -> MemoryPlan {
        let queues = self.common.queues.unwrap_or(1);
        let plan = MemoryPlan {
            frames: (self.rxd() + self.txd() + THREAD_FRAMES).saturating_mul(queues),
            frame_bytes: self.frame_bytes(),
            ..MemoryPlan::default()
        };
        (self.kind.adapt_memory_plan)(self, plan)
    }

    /// Error for the value of one of this URL's keys.
    pub(crate) fn bad_value(
        &self,
        key: &str,
        value: &str,
        expected: impl Into<String>,
        example: impl Into<String>,
    ) -> PortError {
        PortError::BadValue {
            url: self.text.clone(),
            key: key.to_owned(),
            value: value.to_owned(),
            expected: expected.into(),
            example: example.into(),
        }
    }

    fn set_option(&mut self, key: &'static UrlKey, value: &str) {
        let number = || value.parse::<u32>().ok();
        match key.name {
            "rxd" => self.common.rxd = number(),
            "txd" => self.common.txd = number(),
            "burst" => self.common.burst = number().map(|burst| burst as usize),
            "mtu" => self.common.mtu = number().and_then(|mtu| u16::try_from(mtu).ok()),
            "queues" => self.common.queues = number(),
            "force" => self.common.force = parse_flag(value),
            _ => self.keys.push((key, value.to_owned())),
        }
    }
}

fn parse_flag(value: &str) -> bool {
    value != "no"
}

fn parse_queues(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < 1024).then_some(first..=last)
}

impl ValueKind {
    /// Returns true if `text` is a valid value.
    fn accepts(self, text: &str) -> bool {
        match self {
            Self::Flag => matches!(text, "" | "yes" | "no"),
            Self::Number { min, max } => text
                .parse::<u32>()
                .is_ok_and(|number| (min..=max).contains(&number)),
            Self::OneOf(accepted) => accepted.contains(&text),
            Self::Queues => parse_queues(text).is_some(),
            Self::Text(_) => !text.is_empty(),
        }
    }

    /// Description of valid values, and an example.
    fn expected_and_example(self) -> (String, String) {
        match self {
            Self::Flag => ("a flag".to_owned(), "yes".to_owned()),
            Self::Number { min, max } => {
                let example = 1024.clamp(min, max);
                (format!("a number from {min} to {max}"), example.to_string())
            }
            Self::OneOf(accepted) => (
                format!("one of {}", accepted.join(", ")),
                accepted[0].to_owned(),
            ),
            Self::Queues => ("a range of queues".to_owned(), "0-1".to_owned()),
            Self::Text(example) => ("a text".to_owned(), example.to_owned()),
        }
    }
}

impl FromStr for PortUrl {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        let url = || text.to_owned();
        let kinds = || {
            let schemes: Vec<String> = KINDS
                .iter()
                .map(|kind| format!("`{}:`", kind.scheme))
                .collect();
            schemes.join(", ")
        };
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(PortError::NoKind {
                url: url(),
                kinds: kinds(),
            });
        };
        if let Some((_, feature)) = UNBUILT_SCHEMES
            .iter()
            .find(|(unbuilt, _)| *unbuilt == scheme)
        {
            return Err(PortError::NotBuilt {
                kind: scheme.to_owned(),
                feature,
            });
        }
        let Some(kind) = KINDS.iter().copied().find(|kind| kind.scheme == scheme) else {
            return Err(PortError::UnknownKind {
                url: url(),
                kind: scheme.to_owned(),
                kinds: kinds(),
            });
        };
        let mut parsed = Self {
            text: url(),
            kind,
            name: String::new(),
            common: CommonOptions::default(),
            keys: Vec::new(),
        };
        if matches!(kind.name_rule, NameRule::RestOfUrl(_)) {
            parsed.name = rest.to_owned();
        } else {
            parsed.parse_keys(rest)?;
        }
        match kind.name_rule {
            NameRule::None if !parsed.name.is_empty() => Err(PortError::UnexpectedName {
                url: url(),
                kind: kind.scheme,
                name: parsed.name,
                example: kind.example,
            }),
            NameRule::Required(name_kind) | NameRule::RestOfUrl(name_kind)
                if parsed.name.is_empty() =>
            {
                Err(PortError::NoName {
                    url: url(),
                    name_kind,
                    example: kind.example,
                })
            }
            _ => {
                (kind.check)(&parsed)?;
                Ok(parsed)
            }
        }
    }
}

impl PortUrl {
    fn parse_keys(&mut self, rest: &str) -> Result<(), PortError> {
        let mut given_keys: Vec<&str> = Vec::new();
        for (position, part) in rest.split(',').enumerate() {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let key_entry = self
                .kind
                .extra_keys
                .iter()
                .chain(COMMON_KEYS)
                .find(|candidate| candidate.name == key);
            let is_name = position == 0 && !part.contains('=');
            // `null:force` has no name, so its first part may be a flag.
            if is_name && (key_entry.is_none() || !matches!(self.kind.name_rule, NameRule::None)) {
                self.name = part.to_owned();
                continue;
            }
            let Some(key_entry) = key_entry else {
                let all_keys = self.kind.extra_keys.iter().chain(COMMON_KEYS);
                let candidate: Vec<&str> = all_keys.map(|key| key.name).collect();
                return Err(PortError::UnknownKey {
                    url: self.text.clone(),
                    kind: self.kind.scheme,
                    key: key.to_owned(),
                    accepted: format!("one of {}", candidate.join(", ")),
                });
            };
            if given_keys.contains(&key) {
                return Err(PortError::DuplicateKey {
                    url: self.text.clone(),
                    key: key.to_owned(),
                });
            }
            given_keys.push(key_entry.name);
            if !key_entry.value_kind.accepts(value) {
                let (expected, example) = key_entry.value_kind.expected_and_example();
                return Err(self.bad_value(key, value, expected, example));
            }
            self.set_option(key_entry, value);
        }
        Ok(())
    }
}

impl fmt::Display for PortUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for PortUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortUrl({})", self.text)
    }
}

#[cfg(test)]
mod tests;
