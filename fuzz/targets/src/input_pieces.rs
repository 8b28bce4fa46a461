//! Splitting of a fuzzer's bytes into pieces of a stream, or datagrams.

/// Iterator over pieces of the form `length byte | bytes`; the last one may be truncated. A length
/// of 255 means that 16 bits of length follow.
#[derive(Clone, Copy, Debug)]
pub struct InputPieces<'a>(pub &'a [u8]);

impl<'a> Iterator for InputPieces<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (&length, mut rest) = self.0.split_first()?;
        let mut length = usize::from(length);
        if length == 255
            && let Some((&wide, after)) = rest.split_first_chunk()
        {
            length = usize::from(u16::from_be_bytes(wide));
            rest = after;
        }
        let (piece, rest) = rest.split_at(length.min(rest.len()));
        self.0 = rest;
        Some(piece)
    }
}

impl InputPieces<'_> {
    /// Encodes pieces for a seed.
    #[must_use]
    pub fn encode(pieces: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for piece in pieces {
            for part in piece.chunks(usize::from(u16::MAX)) {
                match u8::try_from(part.len()) {
                    Ok(length) if length < 255 => bytes.push(length),
                    _ => {
                        bytes.push(255);
                        bytes.extend((part.len() as u16).to_be_bytes());
                    }
                }
                bytes.extend_from_slice(part);
            }
        }
        bytes
    }
}
