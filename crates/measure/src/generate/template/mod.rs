//! What frames are made of: headers by flow, sizes in their order, a tag and content.
//!
//! A [`TemplatePlan`] says it in texts; [`Template::new`] makes from it the headers of every flow as bytes
//! and the sums that checksums need, so that writing a frame is copying and a few additions
//! ([`Template::write`]). A flow has the same headers in all of its frames.

mod address;
mod header;
mod sizes;
mod tag;
mod values;

pub use address::{MAC_BYTES, mac_bytes, mac_number, mac_text, read_mac};
pub use sizes::{IMIX, SHORTEST_BYTES, Sizes};
pub use tag::{Found, LAYOUTS, Layout, Tag, find};
pub use values::Values;

use super::sink::{ACCOUNTS, Expected};
use header::{Checksum, Headers};
use linerate_metric::generate::{FCS_BYTES, TemplatePlan};
use linerate_port::checksum;

/// Why there can be no such frames.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The text is no value of this field.
    #[error("`{text}` is no {field}: write {example}")]
    BadValue {
        /// Which field.
        field: &'static str,
        /// What was written.
        text: String,
        /// What can be.
        example: String,
    },
    /// A range whose lower end comes last.
    #[error("`{text}` of {field} goes down: write its lower end first")]
    Backwards {
        /// Which field.
        field: &'static str,
        /// What was written.
        text: String,
    },
    /// Parts that exclude each other.
    #[error("{one} and {other} do not go together: leave one out")]
    Conflict {
        /// The one.
        one: &'static str,
        /// The other.
        other: &'static str,
    },
    /// Headers are longer than the frame.
    #[error(
        "a frame of {size} bytes is shorter than its headers and check sequence: use {least} or more"
    )]
    TooShort {
        /// With check sequence.
        size: u16,
        /// The least, with check sequence.
        least: u16,
    },
    /// The frame is longer than the port sends.
    #[error(
        "a frame of {size} bytes is longer than {port} sends ({most}): give its URL a larger mtu="
    )]
    TooLong {
        /// With check sequence.
        size: u32,
        /// Which port.
        port: String,
        /// The most, with check sequence.
        most: u32,
    },
    /// No flow, or more than headers are kept for.
    #[error("{flows} flows cannot be: use 1 to {FLOWS_LIMIT} (--flows)")]
    TooManyFlows {
        /// As asked for.
        flows: u64,
    },
    /// The template file is none.
    #[error("it is no template, line {line}: {why}")]
    File {
        /// Where, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
}

/// Most flows: their headers take 50 MB then.
pub const FLOWS_LIMIT: u64 = 1 << 20;

/// The shortest frame with headers of so many bytes in which a number and a time have room, with check sequence.
fn fitted(header_bytes: usize) -> u16 {
    let bytes = header_bytes + Layout::LEAST_BYTES + usize::from(FCS_BYTES);
    u16::try_from(bytes).map_or(u16::MAX, |bytes| bytes.max(SHORTEST_BYTES))
}

/// The size of frames of a plan for which nobody asked for one, with check sequence: Ethernet's shortest, or the
/// least with room for headers, a number and a time.
///
/// # Errors
/// [`TemplateError`].
pub fn fitted_size(plan: &TemplatePlan) -> Result<u16, TemplateError> {
    let unsized_plan = TemplatePlan {
        size: None,
        ..plan.clone()
    };
    let template = Template::new(&unsized_plan, [0; MAC_BYTES], [0; MAC_BYTES])?;
    Ok(template.sizes().smallest() + FCS_BYTES)
}

/// Reads a template file.
///
/// # Errors
/// [`TemplateError::File`].
pub fn read_file(text: &str) -> Result<TemplatePlan, TemplateError> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        TemplateError::File {
            line: before.map_or(1, |before| before.matches('\n').count() + 1),
            why: error.message().replace('\n', " "),
        }
    })
}

/// Frames, ready to be written.
#[derive(Clone, Debug)]
pub struct Template {
    headers: Headers,
    flows: u32,
    sizes: Sizes,
    /// What stands behind the tag, or behind the headers where there is no room for a tag.
    content: Box<[u8]>,
    /// Sums of the first bytes of it, by how many they are.
    sums: Box<[u16]>,
    tag: Option<Layout>,
}

impl Template {
    /// Makes the headers of all flows. `source` and `destination` are the Ethernet addresses where the
    /// plan names none.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn new(
        plan: &TemplatePlan,
        source: [u8; MAC_BYTES],
        destination: [u8; MAC_BYTES],
    ) -> Result<Self, TemplateError> {
        let seed = plan.seed.unwrap_or(1);
        let fields = header::Fields::read(plan, source, destination)?;
        let flows = plan.flows.map_or_else(|| fields.flows(), u64::from);
        let flows = u32::try_from(flows)
            .ok()
            .filter(|&flows| (1..=FLOWS_LIMIT).contains(&u64::from(flows)))
            .ok_or(TemplateError::TooManyFlows { flows })?;
        let headers = fields.headers(flows, seed);
        let sizes = match &plan.size {
            Some(size) => Sizes::read(size, seed)?,
            None => Sizes::one(fitted(headers.length())),
        };
        let room = usize::from(sizes.smallest()).checked_sub(headers.length());
        let room = room.ok_or_else(|| TemplateError::TooShort {
            size: sizes.smallest() + FCS_BYTES,
            least: headers.length() as u16 + FCS_BYTES,
        })?;
        let tag = Layout::fitting(room);
        let content = content(
            plan.content.as_deref().unwrap_or("count"),
            usize::from(sizes.largest()),
            seed,
        )?;
        let sums = (0..=content.len())
            .map(|length| checksum::sum(&content[..length]))
            .collect();
        Ok(Self {
            headers,
            flows,
            sizes,
            content,
            sums,
            tag,
        })
    }

    /// The same without a tag in its frames.
    #[must_use]
    pub fn untagged(self) -> Self {
        Self { tag: None, ..self }
    }

    /// Flows.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.flows
    }

    /// Sizes of frames.
    #[must_use]
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Where a frame's tag is, and how it is laid out; none where frames are too short for one.
    #[must_use]
    pub fn tag_place(&self) -> Option<(usize, Layout)> {
        Some((self.headers.length(), self.tag?))
    }

    /// What stands behind the tag of the largest frame; smaller ones have the beginning of it.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Bytes of the headers.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.headers.length()
    }

    /// The Ethernet addresses of a flow: its destination, its source.
    #[must_use]
    pub fn addresses(&self, flow: u32) -> ([u8; MAC_BYTES], [u8; MAC_BYTES]) {
        let header = self.headers.of(flow % self.flows);
        let part = |at: usize| {
            let mut address = [0; MAC_BYTES];
            address.copy_from_slice(&header[at..at + MAC_BYTES]);
            address
        };
        (part(0), part(MAC_BYTES))
    }

    /// What headers of frames are checked for on arrival.
    pub(super) fn expected(&self) -> Expected {
        let mut frame = vec![0; self.sizes.largest().into()];
        let tag = Tag {
            mark: 0,
            number: 0,
            account: 0,
            time_ns: 0,
        };
        self.write(&mut frame, 0, tag);
        let packet = checksum::verify(&frame);
        let first = self.addresses(0);
        let steady = self.flows <= u32::from(ACCOUNTS)
            || (1..self.flows).all(|flow| self.addresses(flow) == first);
        Expected {
            packet: packet.map(|packet| (packet.version_6, packet.protocol)),
            steady,
        }
    }

    /// Writes a frame of a flow with its tag and checksums; `frame` has the size of the frame without
    /// check sequence, one of [`Template::sizes`].
    ///
    /// # Panics
    /// When the flow is beyond [`Template::flows`], or the frame shorter than its headers.
    #[inline]
    pub fn write(&self, frame: &mut [u8], flow: u32, tag: Tag) {
        let (header, rest) = frame.split_at_mut(self.headers.length());
        header.copy_from_slice(self.headers.of(flow));
        let (content, mut sum) = match self.tag {
            Some(layout) => {
                let (place, content) = rest.split_at_mut(layout.bytes);
                let tag = tag.bytes(layout);
                place.copy_from_slice(&tag[..layout.bytes]);
                // What is behind a short one is zero, which no sum sees.
                (content, checksum::sum(&tag))
            }
            None => (rest, 0),
        };
        let length = content.len();
        content.copy_from_slice(&self.content[..length]);
        if !matches!(self.headers.checksum(), Checksum::None) {
            sum = checksum::join(sum, self.sums[length]);
        }
        self.headers.finish(frame, flow, sum);
    }
}

/// What stands behind headers and tag.
fn content(name: &str, length: usize, seed: u64) -> Result<Box<[u8]>, TemplateError> {
    let mut bytes = vec![0; length].into_boxed_slice();
    match name {
        "zeros" => {}
        "ones" => bytes.fill(0xff),
        "count" => {
            for (number, byte) in bytes.iter_mut().enumerate() {
                *byte = number as u8;
            }
        }
        "random" => fastrand::Rng::with_seed(seed).fill(&mut bytes),
        _ => {
            return Err(TemplateError::BadValue {
                field: "content",
                text: name.to_owned(),
                example: "count, zeros, ones or random".to_owned(),
            });
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests;
