//! Lines of a stream, read with bounded memory.

use super::error::NuttcpError;

/// Longest line in bytes: the longest real one, the parameters, has 360 bytes.
pub const LINE_LIMIT_BYTES: usize = 1_024;

/// Maximum amount of text from one peer in bytes: a report is below 1 KiB, an interval line 250
/// bytes.
pub const TEXT_LIMIT_BYTES: usize = 4 << 20;

/// Splits a stream into lines.
#[derive(Clone, Debug, Default)]
pub(super) struct LineReader {
    partial: Vec<u8>,
    total_bytes: usize,
}

impl LineReader {
    /// Takes the next line from the front of `bytes`, without its line end; `None` if it is
    /// incomplete. Control characters, which could change the state of a terminal, are replaced.
    pub(super) fn next_line(&mut self, bytes: &mut &[u8]) -> Result<Option<String>, NuttcpError> {
        let end = bytes.iter().position(|&byte| byte == b'\n');
        let (part, rest) = bytes.split_at(end.unwrap_or(bytes.len()));
        if self.partial.len() + part.len() > LINE_LIMIT_BYTES {
            return Err(NuttcpError::LineTooLong);
        }
        self.total_bytes += part.len() + usize::from(end.is_some());
        if self.total_bytes > TEXT_LIMIT_BYTES {
            return Err(NuttcpError::ReportTooLong);
        }
        self.partial.extend_from_slice(part);
        if end.is_none() {
            *bytes = rest;
            return Ok(None);
        }
        *bytes = &rest[1..];
        let line = replace_control_characters(&self.partial);
        self.partial.clear();
        Ok(Some(line))
    }
}

/// Replaces control characters, for output on a terminal.
fn replace_control_characters(bytes: &[u8]) -> String {
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
