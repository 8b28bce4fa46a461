//! Errors in a lab file.

/// Error in a lab file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "each text names the situation and its fields")]
pub enum TopologyError {
    #[error("not a lab file: {0}")]
    Syntax(String),
    #[error("the lab has no hosts: add [hosts.client] and [hosts.server]")]
    NoHosts,
    #[error(
        "`{name}` cannot be a name: use 1 to 15 letters, digits, `-` and `_`, with a letter or digit first (`lo`, `all` and `default` are the kernel's)"
    )]
    BadName { name: String },
    #[error("`{name}` is used twice: every host and switch needs a name of its own")]
    DuplicateName { name: String },
    #[error(
        "link {link} ends at `{name}`, which is neither a host nor a switch: choose one of {available}"
    )]
    UnknownEnd {
        link: String,
        name: String,
        available: String,
    },
    #[error("link {link} joins `{name}` with itself: name two ends")]
    SelfLink { link: String, name: String },
    #[error("`{name}` has no link: join it with [[links]] or remove it")]
    Unlinked { name: String },
    #[error(
        "`{first}` and `{second}` are not connected: add a link between their parts of the network"
    )]
    Disconnected { first: String, second: String },
    #[error(
        "link {link} closes a loop of switches, in which broadcasts would circulate for ever: remove one link of the loop"
    )]
    SwitchLoop { link: String },
    #[error(
        "host `{host}` has two links to the same segment (interfaces {interfaces}): remove one, or connect it to another switch"
    )]
    DuplicateSegment { host: String, interfaces: String },
    #[error("link {link}: mtu {mtu} is not possible: choose 68 to 65535 bytes")]
    InvalidMtu { link: String, mtu: u32 },
    #[error(
        "link {link}: gso {bytes} is not possible: the kernel accepts at most 524280 bytes (`512K` means that), and a frame has {mtu} plus 14"
    )]
    InvalidGso { link: String, bytes: u64, mtu: u32 },
    #[error("link {link}: rate {rate} bit/s is not possible: choose 8 bit/s to 10T")]
    InvalidRate { link: String, rate: u64 },
    #[error(
        "link {link}: {property} of {bytes} bytes is not possible: choose {min_bytes} (one frame) to 4294967295"
    )]
    InvalidSize {
        link: String,
        property: &'static str,
        bytes: u64,
        min_bytes: u64,
    },
    #[error("link {link}: {property} needs {requires}: add it or remove {property}")]
    MissingDependency {
        link: String,
        property: &'static str,
        requires: &'static str,
    },
    #[error(
        "link {link}: {property} {value} is not a share: choose 0 to 1, or \"0%\" to \"100%\" (5 % is 0.05 or \"5%\")"
    )]
    InvalidShare {
        link: String,
        property: &'static str,
        value: String,
    },
    #[error("link {link}: {property} of {seconds} s is longer than an hour: did you mean ms?")]
    DelayTooLong {
        link: String,
        property: &'static str,
        seconds: u64,
    },
    #[error(
        "link {link}: `{name}` is not an offload: use tso, gso, gro, tx-checksumming, rx-checksumming, scatter-gather or a feature that `ethtool -k` lists"
    )]
    UnknownOffload { link: String, name: String },
    #[error("link {link}: `{name}` and `{duplicate_of}` are the same offload: keep one")]
    DuplicateOffload {
        link: String,
        name: String,
        duplicate_of: String,
    },
    #[error(
        "hosts `{first}` and `{second}` have the same address {address}: change one or leave it out"
    )]
    DuplicateAddress {
        first: String,
        second: String,
        address: String,
    },
    #[error(
        "address {address} of `{host}` is not in {network}, the network of `{neighbour}` on the same segment: change one of them"
    )]
    NotInNetwork {
        host: String,
        address: String,
        neighbour: String,
        network: String,
    },
    #[error(
        "networks {first} and {second} overlap, but are not on the same segment: change the address of `{host}`"
    )]
    Overlap {
        first: String,
        second: String,
        host: String,
    },
    #[error("network {network} has no address left for `{host}`: use a shorter prefix")]
    NetworkFull { network: String, host: String },
}
