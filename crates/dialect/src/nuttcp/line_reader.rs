//! Lines of a stream, read with bounded memory.

use super::error::NuttcpError;

/// Longest line in bytes: the longest real one, the parameters, has 360 bytes.
pub const LINE_LIMIT_BYTES: usize = 1_024;

/// Maximum amount of text from one peer in bytes: a report is below 1 KiB, an interval line 250
/// bytes.
pub const TEXT_LIMIT_BYTES: usize = 4 << 20;

/// Splits a stream into lines.
#[derive(Clone, Debug, Default)]
pub(super) struct Lines {
    partial: Vec<u8>,
    total: usize,
}

impl Lines {
    /// Takes the next line from the front of `bytes`, without its line end; `None` if it is
    /// incomplete. Control characters, which could change the state of a terminal, are replaced.
    pub(super) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<String>, NuttcpError> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if self.partial.len() + part.len() > LINE_LIMIT_BYTES {
            return Err(NuttcpError::LineTooLong);
        }
        self.total += part.len() + usize::from(end.is_some());
        if self.total > TEXT_LIMIT_BYTES {
            return Err(NuttcpError::TooMuch);
        }
        self.partial.extend_from_slice(part);
        if end.is_none() {
            *bytes = rest;
            return Ok(None);
        }
        *bytes = &rest[1..];
        let line = printable(&self.partial);
        self.partial.clear();
        Ok(Some(line))
    }
}

/// Replaces control characters, for output on a terminal.
fn printable(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.trim_ascii_end())
        .chars()
        .map(|c| {
            if c.is_control() && c != '\t' {
                '\u{fffd}'
            } else {
                c
            }
        })
        .collect()
}
