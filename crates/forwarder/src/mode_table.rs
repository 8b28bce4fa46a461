//! Table of the forwarding modes: one file and one line each.

use std::fmt;
use std::str::FromStr;

use linerate_port::RxDestination;

use super::mode::{
    csum, five_tuple_swap, flowgen, icmp_echo, io, link, mac, mac_swap, noisy, rx_only, tx_only,
};
use super::stream::{ForwardMode, FromOptions, ModeTask, NoOptions};

/// Description of a mode for the help.
#[derive(Clone, Copy, Debug)]
pub struct ModeHelp {
    pub name: &'static str,
    /// Effect of the mode.
    pub about: &'static str,
    /// Options and their descriptions.
    pub options: &'static [(&'static str, &'static str)],
}

macro_rules! modes {
    ($($variant:ident $module:ident::$mode:ident $name:literal,)+) => {
        /// All modes, in the order of the help.
        pub const MODES: &[ModeHelp] = &[$(ModeHelp {
            name: $name,
            about: <$module::$mode as ForwardMode>::ABOUT,
            options: <<$module::$mode as ForwardMode>::Plan as FromOptions>::HELP,
        }),+];

        /// A mode with its options.
        #[derive(Clone, Debug, PartialEq)]
        #[allow(missing_docs, reason = "each variant is a line of the table")]
        pub enum ModeSpec { $($variant(<$module::$mode as ForwardMode>::Plan)),+ }

        impl ModeSpec {
            /// Returns the name of the mode.
            #[must_use]
            pub const fn name(&self) -> &'static str {
                match self { $(Self::$variant(_) => $name),+ }
            }

            /// Returns whether replies leave by the port that received the request.
            #[must_use]
            pub const fn replies_on_rx_port(&self) -> bool {
                match self { $(Self::$variant(_) => <$module::$mode as ForwardMode>::REPLIES_ON_RX_PORT),+ }
            }

            /// Returns whether the mode generates frames.
            #[must_use]
            pub const fn makes_frames(&self) -> bool {
                match self { $(Self::$variant(_) => <$module::$mode as ForwardMode>::MAKES_FRAMES),+ }
            }

            fn options(&self) -> String {
                match self { $(Self::$variant(plan) => plan.to_string()),+ }
            }

            fn parse(name: &str, options: &str) -> Option<Result<Self, String>> {
                match name {
                    $($name => Some(FromOptions::from_options(options).map(Self::$variant)),)+
                    _ => None,
                }
            }

            /// Runs the task in this mode.
            pub(super) fn run<T: ModeTask>(&self, task: T) -> T::Result {
                match self { $(Self::$variant(plan) => task.run::<$module::$mode>(plan)),+ }
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
    /// Returns the destination of the frames that a loop in this mode receives.
    #[must_use]
    pub fn rx_destination(&self) -> RxDestination {
        match self {
            Self::RxOnly(_) => RxDestination::Counter,
            Self::TxOnly(_) | Self::FlowGen(_) | Self::IcmpEcho(_) => RxDestination::Reader,
            _ => RxDestination::Port,
        }
    }

    /// Returns whether received frames leave at once, so that the time in between is the cost of
    /// forwarding.
    #[must_use]
    pub fn forwards_at_once(&self) -> bool {
        match self {
            Self::RxOnly(_) | Self::TxOnly(_) | Self::FlowGen(_) | Self::Link(_) => false,
            Self::Noisy(plan) => plan.delay_ns == 0,
            _ => true,
        }
    }

    /// Returns the maximum number of frames that the mode holds back per stream, if the user set
    /// one.
    #[must_use]
    pub fn max_held_frames(&self) -> u32 {
        match self {
            Self::Link(plan) => plan.limit,
            _ => 0,
        }
    }
}

impl Default for ModeSpec {
    fn default() -> Self {
        Self::Io(NoOptions)
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
        Self::parse(name, options).unwrap_or_else(|| {
            let names: Vec<_> = MODES.iter().map(|mode| mode.name).collect();
            Err(format!("`{name}` is not a mode: use {}", names.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_select_the_rx_destination() {
        for (text, destination) in [
            ("rxonly", RxDestination::Counter),
            ("icmpecho", RxDestination::Reader),
            ("txonly", RxDestination::Reader),
            ("5tswap", RxDestination::Port),
            ("link:delay=1ms", RxDestination::Port),
        ] {
            let mode: ModeSpec = text.parse().unwrap();
            assert_eq!(mode.rx_destination(), destination, "{text}");
        }
    }

    #[test]
    fn modes_read_as_they_print() {
        for mode_help in MODES {
            let mode: ModeSpec = mode_help.name.parse().unwrap();
            assert_eq!(mode.name(), mode_help.name);
            assert_eq!(mode.to_string().parse(), Ok(mode));
            assert!(!mode_help.about.is_empty());
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
