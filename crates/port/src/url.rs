//! Ports by name: `KIND:NAME,key=value,…`.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use crate::error::PortError;
use crate::kind::{KINDS, Kind, Name, UNBUILT};
use crate::sys::burst::BURST_FRAMES;
use crate::sys::memory::MemoryPlan;

/// Ethernet header and one VLAN tag: what a frame is longer than its MTU.
pub(crate) const ETHERNET_BYTES: u16 = 18;
/// MTU of Ethernet unless another is asked for (RFC 894).
const MTU: u16 = 1500;
/// Frames a thread's pool and the bursts in its hands may hold, beside those in rings.
const FRAMES_IN_HAND: u32 = 512;

/// A key that a port URL may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its name.
    pub name: &'static str,
    /// What may stand behind `=`.
    pub value: Value,
    /// What it does, in a line.
    pub about: &'static str,
}

/// What may stand behind a key's `=`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// Nothing, or `yes` or `no`.
    Flag,
    /// A whole number within these bounds.
    Number {
        /// The smallest.
        min: u32,
        /// The largest.
        max: u32,
    },
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Numbers of queues: `0`, `0-3`.
    Queues,
    /// Any text without a comma, like this one.
    Text(&'static str),
}

/// Keys that every kind takes.
pub const COMMON_KEYS: &[Key] = &[
    Key {
        name: "rxd",
        value: Value::Number {
            min: 1,
            max: 65_536,
        },
        about: "descriptors of each receive ring",
    },
    Key {
        name: "txd",
        value: Value::Number {
            min: 1,
            max: 65_536,
        },
        about: "descriptors of each transmit ring",
    },
    Key {
        name: "burst",
        value: Value::Number {
            min: 1,
            max: BURST_FRAMES as u32,
        },
        about: "frames moved by one poll",
    },
    Key {
        name: "mtu",
        // The largest frame must fit 16 bits with its Ethernet and vnet headers.
        value: Value::Number {
            min: 68,
            max: 65_500,
        },
        about: "largest packet inside a frame, in bytes",
    },
    Key {
        name: "queues",
        value: Value::Number { min: 1, max: 64 },
        about: "queue pairs, for a thread each",
    },
    Key {
        name: "force",
        value: Value::Flag,
        about: "take an interface that carries the default route or this login",
    },
];

/// What the common keys say; absent is the kind's own default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// Descriptors of each receive ring.
    pub rxd: Option<u32>,
    /// Descriptors of each transmit ring.
    pub txd: Option<u32>,
    /// Frames moved by one poll (1 to 32).
    pub burst: Option<usize>,
    /// Largest packet inside a frame.
    pub mtu: Option<u16>,
    /// Queue pairs.
    pub queues: Option<u32>,
    /// Takes an interface that is in use.
    pub force: bool,
    /// Where frames go that come in; a kind with several ways to receive takes the faster one for it.
    pub onward: Onward,
}

/// Where the loop that polls a port takes what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Onward {
    /// To whoever asked: somebody waits for each of them.
    #[default]
    Reader,
    /// Mostly out by another port, which the same thread sends to.
    Port,
    /// Nowhere: frames are counted, and nobody minds when.
    Counter,
}

/// A port as its user names it; everything that can be checked without the machine has been.
#[derive(Clone)]
pub struct PortUrl {
    text: String,
    kind: &'static Kind,
    name: String,
    common: Common,
    keys: Vec<(&'static Key, String)>,
}

impl PortUrl {
    /// The kind.
    #[must_use]
    pub fn kind(&self) -> &'static Kind {
        self.kind
    }

    /// What stands between the kind and the first key: an interface, a number, a name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The interface of the kernel that it is; none where the name is of something else.
    #[must_use]
    pub fn interface(&self) -> Option<&str> {
        (self.kind.name == Name::Needed("interface")).then_some(self.name.as_str())
    }

    /// The kind and the name without keys: `packet:eth0`.
    #[must_use]
    pub fn short(&self) -> String {
        format!("{}:{}", self.kind.scheme, self.name)
    }

    /// What the common keys say.
    #[must_use]
    pub fn common(&self) -> Common {
        self.common
    }

    /// The same port with [`Common::force`] set, as `--force` does for all.
    #[must_use]
    pub fn forced(mut self) -> Self {
        self.common.force = true;
        self
    }

    /// The same port for a loop that takes its frames there ([`Common::onward`]); no key says so.
    #[must_use]
    pub fn taken(mut self, onward: Onward) -> Self {
        self.common.onward = onward;
        self
    }

    /// The same port with another value of a key; what [`PortUrl::forced`] and [`PortUrl::taken`] said
    /// stays.
    ///
    /// # Errors
    /// That this kind does not know the key, or why it cannot have the value.
    pub fn with(&self, key: &str, value: &str) -> Result<Self, PortError> {
        if matches!(self.kind.name, Name::Whole(_)) {
            return Err(PortError::UnknownKey {
                url: self.text.clone(),
                kind: self.kind.scheme,
                key: key.to_owned(),
                known: "what stands behind it alone, as the other side reads it".to_owned(),
            });
        }
        let (scheme, rest) = self.text.split_once(':').unwrap_or((&self.text, ""));
        let is_other = |part: &&str| !part.is_empty() && part.split('=').next() != Some(key);
        // The first part is the name, unless it is a key already.
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
        url.common.onward = self.common.onward;
        Ok(url)
    }

    /// The text of one of the kind's own keys.
    #[must_use]
    pub fn text(&self, key: &str) -> Option<&str> {
        let found = self.keys.iter().find(|(known, _)| known.name == key);
        found.map(|(_, value)| value.as_str())
    }

    /// Whether a flag of the kind is set.
    #[must_use]
    pub fn flag(&self, key: &str) -> bool {
        self.text(key).is_some_and(flag)
    }

    /// A number of the kind.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u32> {
        self.text(key)?.parse().ok()
    }

    /// A range of queues of the kind.
    #[must_use]
    pub fn queues(&self, key: &str) -> Option<RangeInclusive<u32>> {
        queues(self.text(key)?)
    }

    /// Largest packet inside a frame.
    #[must_use]
    pub fn mtu(&self) -> u16 {
        self.common.mtu.unwrap_or(MTU)
    }

    /// Bytes of the largest frame: MTU, Ethernet header, one VLAN tag.
    #[must_use]
    pub fn frame_bytes(&self) -> u16 {
        self.mtu() + ETHERNET_BYTES
    }

    /// Frames that a poll of this port moves at most.
    #[must_use]
    pub fn burst(&self) -> usize {
        self.common.burst.unwrap_or(BURST_FRAMES)
    }

    /// Descriptors of the receive ring, as asked for or the kind's own.
    #[must_use]
    pub fn rxd(&self) -> u32 {
        self.common.rxd.unwrap_or(self.kind.descriptors)
    }

    /// Descriptors of the transmit ring, as asked for or the kind's own.
    #[must_use]
    pub fn txd(&self) -> u32 {
        self.common.txd.unwrap_or(self.kind.descriptors)
    }

    /// The memory that this port needs, with what a thread that polls it has in hand.
    #[must_use]
    pub fn memory_plan(&self) -> MemoryPlan {
        let queues = self.common.queues.unwrap_or(1);
        let plan = MemoryPlan {
            frames: (self.rxd() + self.txd() + FRAMES_IN_HAND).saturating_mul(queues),
            frame_bytes: self.frame_bytes(),
            ..MemoryPlan::default()
        };
        (self.kind.memory)(self, plan)
    }

    /// An error about the value of one of this URL's keys.
    pub(crate) fn bad_value(
        &self,
        key: &str,
        value: &str,
        wanted: impl Into<String>,
        example: impl Into<String>,
    ) -> PortError {
        PortError::BadValue {
            url: self.text.clone(),
            key: key.to_owned(),
            value: value.to_owned(),
            wanted: wanted.into(),
            example: example.into(),
        }
    }

    fn set(&mut self, key: &'static Key, value: &str) {
        let number = || value.parse::<u32>().ok();
        match key.name {
            "rxd" => self.common.rxd = number(),
            "txd" => self.common.txd = number(),
            "burst" => self.common.burst = number().map(|burst| burst as usize),
            "mtu" => self.common.mtu = number().and_then(|mtu| u16::try_from(mtu).ok()),
            "queues" => self.common.queues = number(),
            "force" => self.common.force = flag(value),
            _ => self.keys.push((key, value.to_owned())),
        }
    }
}

fn flag(value: &str) -> bool {
    value != "no"
}

fn queues(text: &str) -> Option<RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last < 1024).then_some(first..=last)
}

impl Value {
    /// Whether `text` is such a value.
    fn accepts(self, text: &str) -> bool {
        match self {
            Self::Flag => matches!(text, "" | "yes" | "no"),
            Self::Number { min, max } => text
                .parse::<u32>()
                .is_ok_and(|number| (min..=max).contains(&number)),
            Self::OneOf(words) => words.contains(&text),
            Self::Queues => queues(text).is_some(),
            Self::Text(_) => !text.is_empty(),
        }
    }

    /// What is wanted, and an example.
    fn wanted(self) -> (String, String) {
        match self {
            Self::Flag => ("a flag".to_owned(), "yes".to_owned()),
            Self::Number { min, max } => {
                let example = 1024.clamp(min, max);
                (format!("a number from {min} to {max}"), example.to_string())
            }
            Self::OneOf(words) => (format!("one of {}", words.join(", ")), words[0].to_owned()),
            Self::Queues => ("a range of queues".to_owned(), "0-1".to_owned()),
            Self::Text(example) => ("a text".to_owned(), example.to_owned()),
        }
    }
}

impl FromStr for PortUrl {
    type Err = PortError;

    fn from_str(text: &str) -> Result<Self, PortError> {
        let url = || text.to_owned();
        let known = || {
            let schemes: Vec<String> = KINDS
                .iter()
                .map(|kind| format!("`{}:`", kind.scheme))
                .collect();
            schemes.join(", ")
        };
        let Some((scheme, rest)) = text.split_once(':') else {
            return Err(PortError::NoKind {
                url: url(),
                known: known(),
            });
        };
        if let Some((_, feature)) = UNBUILT.iter().find(|(unbuilt, _)| *unbuilt == scheme) {
            return Err(PortError::NotBuilt {
                kind: scheme.to_owned(),
                feature,
            });
        }
        let Some(kind) = KINDS.iter().copied().find(|kind| kind.scheme == scheme) else {
            return Err(PortError::UnknownKind {
                url: url(),
                kind: scheme.to_owned(),
                known: known(),
            });
        };
        let mut parsed = Self {
            text: url(),
            kind,
            name: String::new(),
            common: Common::default(),
            keys: Vec::new(),
        };
        if matches!(kind.name, Name::Whole(_)) {
            parsed.name = rest.to_owned();
        } else {
            parsed.read_keys(rest)?;
        }
        match kind.name {
            Name::None if !parsed.name.is_empty() => Err(PortError::NameNotTaken {
                url: url(),
                kind: kind.scheme,
                name: parsed.name,
                example: kind.example,
            }),
            Name::Needed(what) | Name::Whole(what) if parsed.name.is_empty() => {
                Err(PortError::NoName {
                    url: url(),
                    what,
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
    fn read_keys(&mut self, rest: &str) -> Result<(), PortError> {
        let mut seen: Vec<&str> = Vec::new();
        for (position, part) in rest.split(',').enumerate() {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let found = self
                .kind
                .keys
                .iter()
                .chain(COMMON_KEYS)
                .find(|known| known.name == key);
            let is_name = position == 0 && !part.contains('=');
            // `null:force` has no name, so its first word may be a flag.
            if is_name && (found.is_none() || !matches!(self.kind.name, Name::None)) {
                self.name = part.to_owned();
                continue;
            }
            let Some(found) = found else {
                let own = self.kind.keys.iter().chain(COMMON_KEYS);
                let known: Vec<&str> = own.map(|key| key.name).collect();
                return Err(PortError::UnknownKey {
                    url: self.text.clone(),
                    kind: self.kind.scheme,
                    key: key.to_owned(),
                    known: known.join(", "),
                });
            };
            if seen.contains(&key) {
                return Err(PortError::KeyTwice {
                    url: self.text.clone(),
                    key: key.to_owned(),
                });
            }
            seen.push(found.name);
            if !found.value.accepts(value) {
                let (wanted, example) = found.value.wanted();
                return Err(self.bad_value(key, value, wanted, example));
            }
            self.set(found, value);
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
