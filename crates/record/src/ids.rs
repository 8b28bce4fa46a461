//! Ids in records: causes, caveats, loss points, stages and reasons for the end of a search.
//!
//! Each is an enum; a record has its text. A record of another version may have ids that this
//! version lacks, so the fields of a record are [`StoredId`]s.

use std::fmt;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Id in a record: one of this version, or the text of another version's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoredId<K> {
    /// Id of this version.
    Known(K),
    /// Any other text.
    Other(String),
}

impl<K: Copy + FromStr + AsRef<str>> StoredId<K> {
    /// Returns the id with this text, which may be an earlier name.
    #[must_use]
    pub fn from_text(text: String) -> Self {
        text.parse().map_or(Self::Other(text), Self::Known)
    }

    /// Returns the id as records have it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::Known(id) => id.as_ref(),
            Self::Other(text) => text,
        }
    }

    /// Returns the id, if this version has it.
    #[must_use]
    pub fn known(&self) -> Option<K> {
        match self {
            Self::Known(id) => Some(*id),
            Self::Other(_) => None,
        }
    }

    /// Returns true for an id of this list.
    #[must_use]
    pub fn is_one_of(&self, ids: &[K]) -> bool
    where
        K: PartialEq,
    {
        ids.iter().any(|id| self == id)
    }
}

/// Empty text.
impl<K> Default for StoredId<K> {
    fn default() -> Self {
        Self::Other(String::new())
    }
}

impl<K> From<K> for StoredId<K> {
    fn from(id: K) -> Self {
        Self::Known(id)
    }
}

impl<K: PartialEq> PartialEq<K> for StoredId<K> {
    fn eq(&self, id: &K) -> bool {
        matches!(self, Self::Known(known) if known == id)
    }
}

impl<K: Copy + FromStr + AsRef<str>> fmt::Display for StoredId<K> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.as_str())
    }
}

impl<K: Copy + FromStr + AsRef<str>> Serialize for StoredId<K> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de, K: Copy + FromStr + AsRef<str>> Deserialize<'de> for StoredId<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(Self::from_text)
    }
}

impl<K> JsonSchema for StoredId<K> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        String::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        String::json_schema(generator)
    }
}

/// Error of parsing a text that is no id of this version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not an id of this version")]
pub struct UnknownId;

/// Defines an enum of ids, each with its text, and after `|` the texts of earlier versions.
macro_rules! ids {
    ($(#[$attribute:meta])* $name:ident {
        $($id:ident = $text:literal $(| $earlier:literal)*,)+
    }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $(#[doc = concat!("`", $text, "`")] $id,)+
        }

        impl $name {
            /// Every id.
            pub const ALL: &'static [Self] = &[$(Self::$id),+];

            /// Returns the id as records have it.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$id => $text,)+
                }
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                self.as_str()
            }
        }

        impl FromStr for $name {
            type Err = UnknownId;

            fn from_str(text: &str) -> Result<Self, UnknownId> {
                match text {
                    $($text $(| $earlier)* => Ok(Self::$id),)+
                    _ => Err(UnknownId),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.pad(self.as_str())
            }
        }
    };
}

ids! {
    /// Cause of a finding, in the order of docs/CAUSES.md.
    CauseId {
        ReceiveWindow = "receive-window",
        SendBuffer = "send-buffer",
        CongestionLoss = "congestion-loss",
        CongestionControl = "congestion-control",
        Reordering = "reordering",
        DelayedAck = "delayed-ack",
        Nagle = "nagle",
        SmallWrites = "small-writes",
        SenderCpu = "sender-cpu",
        ReceiverCpu = "receiver-cpu",
        SharedCore = "shared-core",
        SoftirqCore = "softirq-core",
        IdleWakeup = "idle-wakeup",
        SchedulingDelay = "scheduling-delay",
        RtThrottle = "rt-throttle",
        CpuQuota = "cpu-quota",
        CpuFrequency = "cpu-frequency",
        Steal = "steal",
        UdpReceiveQueue = "udp-receive-queue",
        SocketBufferCap = "socket-buffer-cap",
        QdiscDrop = "qdisc-drop",
        NicDrop = "nic-drop",
        SoftnetBacklog = "softnet-backlog",
        FragmentLoss = "fragment-loss",
        Reassembly = "reassembly",
        MtuBlackHole = "mtu-black-hole",
        OffloadOff = "offload-off",
        GsoSize = "gso-size",
        LineRate = "line-rate",
        ShapedLink = "shaped-link",
        PathLoss = "path-loss",
        PathDelay = "path-delay",
        AsymmetricPath = "asymmetric-path",
        SingleFlow = "single-flow",
        TooFewInFlight = "too-few-in-flight",
        TooFewDescriptors = "too-few-descriptors",
        BurstSize = "burst-size",
        SocketReopened = "socket-reopened",
        SlowSenderApplication = "slow-sender-application",
        SlowReceiverApplication = "slow-receiver-application",
        LinkDown = "link-down",
        Neighbour = "neighbour",
        LinkSpeed = "link-speed",
        UsbAdapter = "usb-adapter",
        InterruptCoalescing = "interrupt-coalescing",
        EnergyEfficientEthernet = "energy-efficient-ethernet",
        ToolLimit = "tool-limit",
    }
}

ids! {
    /// Caveat of a record, in the order of docs/method/validity.md.
    CaveatId {
        SharedCores = "shared-cores",
        CoreShared = "core-shared",
        GeneratorSaturated = "generator-saturated",
        Steal = "steal",
        AwakeThreads = "awake-threads",
        RtThrottle = "rt-throttle",
        CrowdedCores = "crowded-cores",
        MoreThreadsThanCores = "more-threads-than-cores",
        CoreDisturbed = "core-disturbed",
        NotPinned = "not-pinned",
        NumaNodes = "numa-nodes",
        ToolLimit = "tool-limit",
        RateMissed = "rate-missed",
        RateTooCoarse = "rate-too-coarse",
        PacingNotHonoured = "pacing-not-honoured",
        ResolutionMissed = "resolution-missed",
        NoResponseAtEnd = "no-response-at-end" | "unanswered-at-end",
        DrainCut = "drain-cut",
        SeriesCut = "series-cut",
        StreamBroken = "stream-broken",
        PeerVanished = "peer-vanished",
        CutShort = "cut-short",
        HeldToMaxRate = "held-to-max-rate",
        OffloadRefused = "offload-refused",
        ZeroCopyCopied = "zero-copy-copied" | "copied-after-all",
        NothingToPoll = "nothing-to-poll",
        LossNotExplained = "loss-not-explained",
        CarrierLost = "carrier-lost",
        NoCarrier = "no-carrier",
        NoRoute = "no-route",
        PortsExhausted = "ports-exhausted",
        ConnectionsBroken = "connections-broken",
        PortStopped = "port-stopped",
        NoPeer = "no-peer",
        PeerLeft = "peer-left",
        GrantWithoutPrivilege = "grant-without-privilege",
        ContentMismatch = "content-mismatch",
        WrongResponses = "wrong-responses" | "wrong-answers",
        LateResponses = "late-responses" | "late-answers",
        ThinTail = "thin-tail",
        DeviceTimestampsMissing = "device-timestamps-missing" | "device-stamps-missing",
        DeviceTimestampsImpossible = "device-timestamps-impossible" | "device-stamps-impossible",
        DeviceTimestampsUnread = "device-timestamps-unread" | "device-stamps-unread",
        StagesThin = "stages-thin",
        StagesDiffer = "stages-differ" | "stages-unlike",
        StagesApart = "stages-apart",
        ClockUnknown = "clock-unknown",
        NoTimeline = "no-timeline",
        NoStages = "no-stages",
        ReassemblyOff = "reassembly-off",
        ReassemblyTooLong = "reassembly-too-long",
        ReassemblyBuffers = "reassembly-buffers",
        UdpBuffers = "udp-buffers",
        NeighbourSilent = "neighbour-silent",
        FragmentationOff = "fragmentation-off",
        FramesTooLong = "frames-too-long",
        DuplicateAddress = "duplicate-address",
        ChecksumsIncomplete = "checksums-incomplete" | "checksums-left-open",
        UnfitFrames = "unfit-frames",
        SenderStalled = "sender-stalled",
        PeerStalled = "peer-stalled",
        UntaggedFrames = "untagged-frames",
        NothingArrived = "nothing-arrived",
        CorruptedFrames = "corrupted-frames",
        FlowsGrouped = "flows-grouped",
        TrialsDisturbed = "trials-disturbed",
        ShortTrials = "short-trials",
        LossAtAnyRate = "loss-at-any-rate",
        Contradicted = "contradicted",
        CountedByAcknowledgement = "counted-by-acknowledgement",
        RemoteCountUnknown = "remote-count-unknown" | "far-count-unknown",
        EndNotCounted = "end-not-counted",
        CountsContradict = "counts-contradict",
        RemoteError = "remote-error" | "far-error",
        RemoteReportFailed = "remote-report-failed" | "far-report-failed",
        RemoteReportInconsistent = "remote-report-inconsistent" | "far-report-odd",
        UnreadDatagrams = "unread-datagrams",
        StartedEarlier = "started-earlier" | "began-before",
    }
}

ids! {
    /// Point where packets are lost, in the order of a path (docs/method/loss.md). An emulated
    /// link, the last one, can be anywhere on it.
    LossPoint {
        SenderSocket = "sender-socket",
        Qdisc = "qdisc",
        InterfaceTx = "interface-tx",
        Path = "path",
        InterfaceRx = "interface-rx",
        SoftnetBacklog = "softnet-backlog",
        Reassembly = "reassembly",
        UdpReceiveQueue = "udp-receive-queue",
        EmulatedLink = "emulated-link",
    }
}

ids! {
    /// Origin of the time that a background load adds to round trips.
    AddedDelay {
        ProcessorWait = "processor-wait",
        KernelWork = "kernel-work",
        PathQueue = "path-queue",
    }
}

ids! {
    /// Reason why a trial of a rate search did not pass.
    TrialFailure {
        Loss = "loss",
        Queue = "queue",
    }
}

ids! {
    /// Stage of `linerate tune`.
    TuneStage {
        Check = "check",
        Search = "search",
        MinimalSet = "minimal-set",
        Proof = "proof",
    }
}

/// The first stage.
impl Default for TuneStage {
    fn default() -> Self {
        Self::Check
    }
}

ids! {
    /// Reason for the end of a search for a rate or a capacity.
    SearchEnd {
        Resolution = "resolution",
        Sender = "sender",
        Line = "line",
        Generator = "generator",
        MinimumRate = "minimum-rate" | "floor",
        Trials = "trials",
        NothingSent = "nothing-sent",
        Plateau = "plateau",
        Full = "full",
        Limit = "limit",
        Interrupted = "interrupted",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that each id parses as it prints, so that no two have one text.
    fn check<K: Copy + fmt::Debug + PartialEq + FromStr + AsRef<str>>(all: &[K]) {
        for &id in all {
            let text = id.as_ref();
            assert_eq!(text.parse().ok(), Some(id), "{text}");
            let is_kebab_case = |byte: u8| byte.is_ascii_lowercase() || byte == b'-';
            assert!(text.bytes().all(is_kebab_case), "{text}");
            let json = format!("\"{text}\"");
            let stored: StoredId<K> = serde_json::from_str(&json).unwrap();
            assert_eq!(stored, id);
            assert_eq!(serde_json::to_string(&stored).unwrap(), json);
        }
    }

    #[test]
    fn ids_are_unique_and_parse_as_they_print() {
        check(CauseId::ALL);
        check(CaveatId::ALL);
        check(LossPoint::ALL);
        check(SearchEnd::ALL);
        check(AddedDelay::ALL);
        check(TrialFailure::ALL);
        check(TuneStage::ALL);
    }

    #[test]
    fn every_caveat_is_documented() {
        let page = include_str!("../../../docs/method/validity.md");
        for id in CaveatId::ALL {
            assert!(page.contains(&format!("`{id}`")), "{id}");
        }
    }

    #[test]
    fn an_earlier_id_loads_under_its_present_name() {
        let stored: StoredId<CaveatId> = serde_json::from_str("\"late-answers\"").unwrap();
        assert_eq!(stored, CaveatId::LateResponses);
        assert_eq!(stored.as_str(), "late-responses");
    }

    #[test]
    fn an_id_of_another_version_is_kept() {
        let json = "\"of-another-version\"";
        let stored: StoredId<CaveatId> = serde_json::from_str(json).unwrap();
        assert_eq!(stored.known(), None);
        assert_eq!(serde_json::to_string(&stored).unwrap(), json);
    }
}
