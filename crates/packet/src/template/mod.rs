//! Contents of frames: headers by flow, lengths in their order, a tag and payload content.
//!
//! A [`TemplatePlan`] describes them as text. [`Template::new`] builds from it the headers of each
//! flow and partial checksums, so that [`Template::write`] only copies bytes and adds a few
//! numbers. All frames of a flow have the same headers.

mod address;
mod expected_headers;
mod header;
mod sizes;
mod tag;
mod values;

use header::{ChecksumField, FlowHeaders};
use linerate_record::generate::{FCS_BYTES, TemplatePlan};

use crate::checksum;
pub use address::{MAC_BYTES, mac_bytes, mac_number, mac_text, parse_mac};
pub use expected_headers::{ExpectedHeaders, MAX_FLOW_GROUPS};
pub use sizes::{FrameSizes, IMIX, MIN_FRAME_WITH_FCS};
pub use tag::{FrameTag, TAG_LAYOUTS, TagLayout, TagMatch, find_tag};
pub use values::FieldValues;

/// Error in a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The text is not a valid value of the field.
    #[error("`{text}` is not a valid {field}: use {example}")]
    BadValue {
        field: &'static str,
        /// Rejected text.
        text: String,
        /// Valid values.
        example: String,
    },
    /// A range whose upper bound comes first.
    #[error("`{text}` of {field} is a descending range: write the lower bound first")]
    Backwards { field: &'static str, text: String },
    /// Two parts exclude each other.
    #[error("{first} and {second} cannot be combined: leave one out")]
    Conflict {
        first: &'static str,
        second: &'static str,
    },
    /// The headers are longer than the frame.
    #[error("a frame of {size} bytes is shorter than its headers and FCS: use {least} or more")]
    TooShort {
        /// Length of the frame, FCS included.
        size: u16,
        /// Minimum length, FCS included.
        least: u16,
    },
    /// The frame is longer than the port can send.
    #[error(
        "a frame of {size} bytes is longer than {port} can send ({most}): set a larger mtu= in its URL"
    )]
    TooLong {
        /// Length of the frame, FCS included.
        size: u32,
        port: String,
        /// Maximum length, FCS included.
        most: u32,
    },
    /// No flow, or more than the maximum.
    #[error("{flows} flows are not possible: use 1 to {FLOWS_LIMIT} (--flows)")]
    TooManyFlows { flows: u64 },
    /// The text is not a valid template file.
    #[error("not a valid template, line {line}: {why}")]
    File {
        /// Line, from 1.
        line: usize,
        why: String,
    },
}

/// Maximum number of flows: their headers then take 50 MB.
pub const FLOWS_LIMIT: u64 = 1 << 20;

/// Returns the length with FCS of the shortest frame that holds the headers and the shortest tag.
fn min_tagged_size(header_bytes: usize) -> u16 {
    let bytes = header_bytes + TagLayout::MIN_BYTES + usize::from(FCS_BYTES);
    u16::try_from(bytes).map_or(u16::MAX, |bytes| bytes.max(MIN_FRAME_WITH_FCS))
}

/// Returns the frame length of a plan without a size, FCS included: the minimum of Ethernet, or the
/// shortest frame that holds headers, frame number and time.
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

/// Parses a template file.
///
/// # Errors
/// [`TemplateError::File`].
pub fn parse_template(text: &str) -> Result<TemplatePlan, TemplateError> {
    toml::from_str(text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start));
        TemplateError::File {
            line: before.map_or(1, |before| before.matches('\n').count() + 1),
            why: error.message().replace('\n', " "),
        }
    })
}

/// Template of frames, ready to write.
#[derive(Clone, Debug)]
pub struct Template {
    headers: FlowHeaders,
    flows: u32,
    sizes: FrameSizes,
    /// Bytes after the tag, or after the headers if the frame has no tag.
    content: Box<[u8]>,
    /// Sums of its first bytes, by their number.
    content_sums: Box<[u16]>,
    tag: Option<TagLayout>,
}

impl Template {
    /// Builds the headers of all flows. `source` and `destination` are the Ethernet addresses if
    /// the plan has none.
    ///
    /// # Errors
    /// [`TemplateError`].
    pub fn new(
        plan: &TemplatePlan,
        source: [u8; MAC_BYTES],
        destination: [u8; MAC_BYTES],
    ) -> Result<Self, TemplateError> {
        let seed = plan.seed.unwrap_or(1);
        let fields = header::TemplateFields::parse(plan, source, destination)?;
        let flows = plan.flows.map_or_else(|| fields.flows(), u64::from);
        let flows = u32::try_from(flows)
            .ok()
            .filter(|&flows| (1..=FLOWS_LIMIT).contains(&u64::from(flows)))
            .ok_or(TemplateError::TooManyFlows { flows })?;
        let headers = fields.headers(flows, seed);
        let sizes = match &plan.size {
            Some(size) => FrameSizes::parse(size, seed)?,
            None => FrameSizes::single(min_tagged_size(headers.length())),
        };
        let available = usize::from(sizes.smallest()).checked_sub(headers.length());
        let available = available.ok_or_else(|| TemplateError::TooShort {
            size: sizes.smallest() + FCS_BYTES,
            least: headers.length() as u16 + FCS_BYTES,
        })?;
        let tag = TagLayout::fitting(available);
        let content = content(
            plan.content.as_deref().unwrap_or("count"),
            usize::from(sizes.largest()),
            seed,
        )?;
        let content_sums = (0..=content.len())
            .map(|length| checksum::sum(&content[..length]))
            .collect();
        Ok(Self {
            headers,
            flows,
            sizes,
            content,
            content_sums,
            tag,
        })
    }

    /// Returns the template without a tag in its frames.
    #[must_use]
    pub fn untagged(self) -> Self {
        Self { tag: None, ..self }
    }

    #[inline]
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.flows
    }

    #[inline]
    #[must_use]
    pub fn sizes(&self) -> &FrameSizes {
        &self.sizes
    }

    /// Returns the offset and the layout of a frame's tag; `None` if the frames are too short for
    /// one.
    #[must_use]
    pub fn tag_location(&self) -> Option<(usize, TagLayout)> {
        Some((self.headers.length(), self.tag?))
    }

    /// Returns the bytes after the tag of the largest frame; smaller frames have a prefix of them.
    #[must_use]
    pub fn content(&self) -> &[u8] {
        &self.content
    }

    /// Returns the length of the headers.
    #[must_use]
    pub fn header_bytes(&self) -> usize {
        self.headers.length()
    }

    /// Returns the Ethernet addresses of a flow: destination, source.
    #[must_use]
    pub fn addresses(&self, flow: u32) -> ([u8; MAC_BYTES], [u8; MAC_BYTES]) {
        let header = self.headers.of_flow(flow % self.flows);
        let address_at = |at: usize| {
            let mut address = [0; MAC_BYTES];
            address.copy_from_slice(&header[at..at + MAC_BYTES]);
            address
        };
        (address_at(0), address_at(MAC_BYTES))
    }

    /// Returns the headers that the receiver expects.
    pub fn expected_headers(&self) -> ExpectedHeaders {
        let mut frame = vec![0; self.sizes.largest().into()];
        let tag = FrameTag {
            mark: 0,
            number: 0,
            flow_group: 0,
            time_ns: 0,
        };
        self.write(&mut frame, 0, tag);
        let packet = checksum::verify(&frame);
        let first = self.addresses(0);
        let has_fixed_addresses = self.flows <= u32::from(MAX_FLOW_GROUPS)
            || (1..self.flows).all(|flow| self.addresses(flow) == first);
        ExpectedHeaders {
            packet: packet.map(|packet| (packet.is_ipv6, packet.protocol)),
            has_fixed_addresses,
        }
    }

    /// Writes a frame of a flow with its tag and checksums. The length of `frame`, without FCS, is
    /// one of [`Template::sizes`].
    ///
    /// # Panics
    /// Panics if `flow` is not below [`Template::flows`], or if the frame is shorter than its
    /// headers.
    #[inline]
    pub fn write(&self, frame: &mut [u8], flow: u32, tag: FrameTag) {
        let (header, rest) = frame.split_at_mut(self.headers.length());
        header.copy_from_slice(self.headers.of_flow(flow));
        let (content, mut sum) = match self.tag {
            Some(layout) => {
                let (tag_bytes, content) = rest.split_at_mut(layout.bytes);
                let tag = tag.bytes(layout);
                tag_bytes.copy_from_slice(&tag[..layout.bytes]);
                // The bytes beyond a short tag are zero, which changes no sum.
                (content, checksum::sum(&tag))
            }
            None => (rest, 0),
        };
        let length = content.len();
        content.copy_from_slice(&self.content[..length]);
        if !matches!(self.headers.checksum(), ChecksumField::None) {
            sum = checksum::add_folded(sum, self.content_sums[length]);
        }
        self.headers.fill_in(frame, flow, sum);
    }
}

/// Returns the bytes after headers and tag.
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
