//! State bytes of the control connection.

/// State byte on the control connection, named as in iperf3's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Iperf3State {
    /// Server: both ends set up their flows.
    TestStart,
    /// Server: payload may flow.
    TestRunning,
    /// Client: its time, bytes or blocks are used up.
    TestEnd,
    /// Server: requests the parameters.
    ParamExchange,
    /// Server: requests the flows.
    CreateStreams,
    /// Server: terminates the test early.
    ServerTerminate,
    /// Client: terminates the test early.
    ClientTerminate,
    /// Server: requests the client's results and sends its own after them.
    ExchangeResults,
    /// Server: the exchange of results is complete.
    DisplayResults,
    /// Client: the test is complete.
    Done,
    /// Server: another test is running.
    AccessDenied,
    /// Server: error; two numbers follow.
    ServerError,
}

impl Iperf3State {
    /// Returns the byte on the wire; upstream's source writes it as a signed number.
    #[must_use]
    pub const fn to_byte(self) -> u8 {
        match self {
            Self::TestStart => 1,
            Self::TestRunning => 2,
            Self::TestEnd => 4,
            Self::ParamExchange => 9,
            Self::CreateStreams => 10,
            Self::ServerTerminate => 11,
            Self::ClientTerminate => 12,
            Self::ExchangeResults => 13,
            Self::DisplayResults => 14,
            Self::Done => 16,
            Self::AccessDenied => 0xff,
            Self::ServerError => 0xfe,
        }
    }

    /// Returns the state of a byte; `None` for one that no version sends.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::TestStart,
            2 => Self::TestRunning,
            4 => Self::TestEnd,
            9 => Self::ParamExchange,
            10 => Self::CreateStreams,
            11 => Self::ServerTerminate,
            12 => Self::ClientTerminate,
            13 => Self::ExchangeResults,
            14 => Self::DisplayResults,
            16 => Self::Done,
            0xff => Self::AccessDenied,
            0xfe => Self::ServerError,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_read_as_written() {
        let mut count = 0;
        for byte in 0..=u8::MAX {
            if let Some(state) = Iperf3State::from_byte(byte) {
                assert_eq!(state.to_byte(), byte);
                count += 1;
            }
        }
        assert_eq!(count, 12);
    }
}
