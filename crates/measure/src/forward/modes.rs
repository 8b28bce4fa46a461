//! The table of modes: one file each, one line each.

use std::fmt;
use std::str::FromStr;

use super::mode::{
    csum, five_tuple_swap, flowgen, icmp_echo, io, link, mac, mac_swap, noisy, rx_only, tx_only,
};
use super::stream::{FromOptions, Mode, NoPlan};
use super::worker::Work;
use linerate_port::Onward;

/// A mode as help lists it.
#[derive(Clone, Copy, Debug)]
pub struct ModeLine {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Its options and what they do.
    pub options: &'static [(&'static str, &'static str)],
}

macro_rules! modes {
    ($($variant:ident $module:ident::$mode:ident $name:literal,)+) => {
        /// Every mode, in the order help lists them.
        pub const MODES: &[ModeLine] = &[$(ModeLine {
            name: $name,
            about: <$module::$mode as Mode>::ABOUT,
            options: <<$module::$mode as Mode>::Plan as FromOptions>::HELP,
        }),+];

        /// A mode with its options.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is a line of the table")]
        pub enum ModeSpec { $($variant(<$module::$mode as Mode>::Plan)),+ }

        impl ModeSpec {
            /// Its name.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name),+ }
            }

            /// Whether answers leave by the port that the question came in by.
            #[must_use]
            pub const fn uses_own_port(&self) -> bool {
                match self { $(Self::$variant(_) => <$module::$mode as Mode>::OWN_PORT),+ }
            }

            /// Whether it makes frames of its own.
            #[must_use]
            pub const fn makes_frames(&self) -> bool {
                match self { $(Self::$variant(_) => <$module::$mode as Mode>::MAKES_FRAMES),+ }
            }

            fn options(&self) -> String {
                match self { $(Self::$variant(plan) => plan.to_string()),+ }
            }

            fn read(name: &str, options: &str) -> Option<Result<Self, String>> {
                match name {
                    $($name => Some(FromOptions::from_options(options).map(Self::$variant)),)+
                    _ => None,
                }
            }

            /// Runs a thread's work in this mode.
            pub(super) fn run(&self, work: Work) -> super::worker::Done {
                match self { $(Self::$variant(plan) => work.run::<$module::$mode>(plan)),+ }
            }
        }
    };
}

modes! {
    Io io::Io "io",
    Mac mac::MacForward "mac",
    MacSwap mac_swap::MacSwap "macswap",
    FiveTupleSwap five_tuple_swap::FiveTupleSwap "5tswap",
    RxOnly rx_only::RxOnly "rxonly",
    TxOnly tx_only::TxOnly "txonly",
    FlowGen flowgen::FlowGen "flowgen",
    IcmpEcho icmp_echo::IcmpEcho "icmpecho",
    Csum csum::Csum "csum",
    Noisy noisy::Noisy "noisy",
    Link link::Link "link",
}

impl ModeSpec {
    /// Where a loop in this mode takes what a port receives.
    #[must_use]
    pub fn onward(&self) -> Onward {
        match self {
            Self::RxOnly(_) => Onward::Counter,
            Self::TxOnly(_) | Self::FlowGen(_) | Self::IcmpEcho(_) => Onward::Reader,
            _ => Onward::Port,
        }
    }

    /// Whether what is received leaves at once: the time in between is what forwarding costs.
    #[must_use]
    pub fn goes_through(&self) -> bool {
        match self {
            Self::RxOnly(_) | Self::TxOnly(_) | Self::FlowGen(_) | Self::Link(_) => false,
            Self::Noisy(plan) => plan.delay_ns == 0,
            _ => true,
        }
    }

    /// Frames that it may hold back for each stream, where that was asked for.
    #[must_use]
    pub fn frames_held(&self) -> u32 {
        match self {
            Self::Link(plan) => plan.limit,
            _ => 0,
        }
    }
}

impl Default for ModeSpec {
    fn default() -> Self {
        Self::Io(NoPlan)
    }
}

impl fmt::Display for ModeSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.options();
        if options.is_empty() {
            f.pad(self.name())
        } else {
            f.pad(&format!("{}:{options}", self.name()))
        }
    }
}

impl FromStr for ModeSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, options) = text.split_once(':').unwrap_or((text, ""));
        Self::read(name, options).unwrap_or_else(|| {
            let names: Vec<_> = MODES.iter().map(|mode| mode.name).collect();
            Err(format!("`{name}` is no mode: {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_for_a_frame_decides_how_ports_receive() {
        for (text, onward) in [
            ("rxonly", Onward::Counter),
            ("icmpecho", Onward::Reader),
            ("txonly", Onward::Reader),
            ("5tswap", Onward::Port),
            ("link:delay=1ms", Onward::Port),
        ] {
            let mode: ModeSpec = text.parse().unwrap();
            assert_eq!(mode.onward(), onward, "{text}");
        }
    }

    #[test]
    fn modes_read_as_they_print() {
        for line in MODES {
            let mode: ModeSpec = line.name.parse().unwrap();
            assert_eq!(mode.name(), line.name);
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert!(!line.about.is_empty());
        }
        for text in [
            "link:rate=1G,delay=50us,jitter=5us,loss=0.1%,reorder=1%,duplicate=0.5%,corrupt=0.01%",
            "link:delay=1ms,limit=10",
            "noisy:delay=10us,memory=1M,reads=3,writes=2",
        ] {
            let mode: ModeSpec = text.parse().unwrap();
            assert_eq!(mode.to_string().parse(), Ok(mode.clone()), "{mode}");
        }
        for text in [
            "",
            "nonsense",
            "io:x=1",
            "link:delay",
            "link:loss=2",
            "link:nothing=1",
        ] {
            assert!(text.parse::<ModeSpec>().is_err(), "{text}");
        }
    }
}
