//! Filters with bugs or malicious behaviour, for tests of isolation. Built only with the feature
//! `testing`.

use filter::StateFacts;
use filter::prelude::*;
use sys::hostile_syscalls::{HOSTILE_ACT_NAMES, HostileAct};

/// Description of a filter that panics on blocks of a chosen length.
pub(crate) const PANICKING_FILTER: Description = Description {
    name: "panics",
    summary: "panic at blocks of one length; only in test builds",
    details: "Panics at every block with this many bytes in view; leaves the others as they are.",
    example: "replay web.pcap | panics 60 | count",
    kind: FilterKind::Inspection,
    parameters: &[Parameter::required(
        "length",
        ParameterType::Number { low: 0, high: u64::MAX },
        "the length of the blocks at which it panics",
    )],
    constructor: Some(create_panicking_filter),
    ..Description::FILTER_DEFAULTS
};

/// Description of a filter that misbehaves on its hundredth block, for example with a forbidden
/// system call.
pub(crate) const HOSTILE_FILTER: Description = Description {
    name: "hostile",
    summary: "do harm at the hundredth block; only in test builds",
    details: "Leaves blocks as they are, until it acts as `deed` says.",
    example: "replay web.pcap | hostile fork untrusted=yes | discard",
    kind: FilterKind::Inspection,
    parameters: &[Parameter::required(
        "deed",
        ParameterType::OneOf(HOSTILE_ACT_NAMES),
        "what it does",
    )],
    constructor: Some(create_hostile_filter),
    ..Description::FILTER_DEFAULTS
};

/// The number of the block at which the filter `hostile` misbehaves.
const FIRST_HOSTILE_BLOCK: u32 = 100;

struct HostileFilter {
    deed: HostileAct,
    left: u32,
}

fn create_hostile_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let deed = HostileAct::prepare(arguments.text("deed").unwrap_or_default());
    Ok(Filter::classify(HostileFilter { deed, left: FIRST_HOSTILE_BLOCK }))
}

impl Classify for HostileFilter {
    fn classify(&mut self, block: &mut Block<'_>, _cx: &mut ClassifyContext<'_>) -> Class {
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.deed.perform();
        }
        block.pointer.class
    }
}

/// Description of a filter that counts blocks and misbehaves when its state is moved.
pub(crate) const LYING_FILTER: Description = Description {
    name: "liar",
    summary: "count blocks, and lie when asked for the count; only in test builds",
    details: "Leaves blocks as they are. Misbehaves as `lie` says when its state is saved, or \
              when the state of another filter is restored in it.",
    example: "replay web.pcap | liar hang untrusted=yes | discard",
    kind: FilterKind::Inspection,
    parameters: &[Parameter::required(
        "lie",
        ParameterType::OneOf(LIE_NAMES),
        "what it does instead",
    )],
    state: StateFacts { scope: StateScope::Private, ..StateFacts::NONE },
    constructor: Some(create_lying_filter),
    ..Description::FILTER_DEFAULTS
};

/// Values of the argument `lie`: misbehaviour while the state is saved or, with the prefix
/// `taught-`, while it is restored.
const LIE_NAMES: &[&str] = &[
    "none",
    "abort",
    "cursor",
    "exit",
    "false",
    "hang",
    "long",
    "many",
    "open",
    "panic",
    "shape",
    "sleep",
    "spoof",
    "taught-exit",
    "taught-hang",
    "taught-panic",
    "taught-sleep",
];

struct LyingFilter {
    lie: String,
    deed: HostileAct,
    blocks: u64,
}

fn create_lying_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    let lie = arguments.text("lie").unwrap_or_default().to_owned();
    let deed = HostileAct::prepare(lie.trim_start_matches("taught-"));
    Ok(Filter::classify(LyingFilter { lie, deed, blocks: 0 }))
}

impl Classify for LyingFilter {
    fn classify(&mut self, block: &mut Block<'_>, _cx: &mut ClassifyContext<'_>) -> Class {
        // The check exposes a false count that was restored from a saved state.
        self.blocks = self.blocks.checked_add(1).expect("fewer than 2^64 blocks");
        block.pointer.class
    }

    fn state(&mut self) -> Option<&mut dyn FilterState> {
        Some(self)
    }
}

impl FilterState for LyingFilter {
    fn session_number(&self, key: u64) -> u64 {
        key
    }

    fn session_keys(&self) -> Vec<u64> {
        match self.lie.as_str() {
            "many" => (0..1 << 20).collect(),
            "none" | "false" | "long" | "shape" => vec![PRIVATE_SESSION_KEY],
            lie if lie.starts_with("taught-") => vec![PRIVATE_SESSION_KEY],
            _ => {
                self.deed.perform();
                vec![PRIVATE_SESSION_KEY]
            }
        }
    }

    fn take_session(&mut self, key: u64, _: &mut HoldTable) -> Option<MovedSession> {
        let bytes = match self.lie.as_str() {
            "long" => vec![0; 2 << 20],
            "many" => vec![0; 64 << 10],
            "false" => u64::MAX.to_le_bytes().to_vec(),
            "shape" => vec![0; 3],
            _ => self.blocks.to_le_bytes().to_vec(),
        };
        Some(MovedSession { key, bytes, held: Vec::new() })
    }

    fn put_session(&mut self, moved: MovedSession, _: &mut HoldTable) -> Result<(), Mistake> {
        // A filter that has counted blocks is getting its own state back.
        if self.blocks > 0 {
            return Ok(());
        }
        if self.lie.starts_with("taught-") {
            self.deed.perform();
        }
        let blocks = <[u8; 8]>::try_from(moved.bytes.as_slice());
        let blocks = blocks.map_err(|_| Mistake::new("lie", "that is not a number of blocks"))?;
        self.blocks = u64::from_le_bytes(blocks);
        Ok(())
    }

    fn publish(&mut self, _: PublishedSessions, _: bool, _: &mut RowCallback<'_>) {}
}

struct PanickingFilter(u64);

fn create_panicking_filter(arguments: &Arguments) -> Result<Filter, Mistake> {
    Ok(Filter::classify(PanickingFilter(arguments.number("length").unwrap_or(0))))
}

impl Classify for PanickingFilter {
    fn classify(&mut self, block: &mut Block<'_>, _cx: &mut ClassifyContext<'_>) -> Class {
        assert_ne!(u64::from(block.length()), self.0, "this filter panics on purpose");
        block.pointer.class
    }
}
