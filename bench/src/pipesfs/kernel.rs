//! The cost of closed exits. Each filter in the kernel has an exit for readers, which is closed
//! while there are no readers. A program with closed exits is compared with the same program
//! without exits. FEATURES B9

use super::extra_cost::ExtraCost;
use crate::harness::{Samples, is_row_selected};
use crate::row::Row;
use crate::sentinel::CacheRoundTrip;
use ebpf::Hook;
use ebpf::emit::tap::{
    FrameRing, FusedTap, PointerRing, SWITCHED_WORD_SIZE, ScratchLayout, SwitchLayout, fused_tap,
};
use ebpf::insn;
use std::os::fd::{AsFd as _, AsRawFd as _};
use sys::bpf::{Map, Program, ProgramKind, ProgramRings, RingBuffer, RingsLayout};

/// Number of filters in the measured kernel program, each of which counts the frame.
const FILTER_COUNT: u16 = 32;
/// Number of runs of the program in one measurement.
const RUNS_PER_MEASUREMENT: u32 = 2_000_000;
/// Maximum cost, in ns, of an exit without readers (a closed exit).
const CLOSED_EXIT_NS_MAX: f64 = 1.0;

/// A measured program, loaded into the kernel, with the memory that it uses.
pub(super) struct CountingProgram {
    pub(super) program: Program,
    _maps: (Map, RingBuffer, ProgramRings, ProgramRings),
}

/// Measures a program in which each filter has a closed exit, and the same program without exits.
/// Returns the result rows.
pub(super) fn run_bench(rounds: usize) -> Result<Vec<Row>, String> {
    const ROW_NAME: &str = "nobody reads in the kernel";
    if !is_row_selected(ROW_NAME) {
        return Ok(Vec::new());
    }
    testkit::need::require_bpf().ok_or("needs the right to load programs")?;
    let programs = [
        ("no exits", CountingProgram::load(false)?),
        ("closed exits", CountingProgram::load(true)?),
    ];
    let mut samples: Vec<Samples> =
        programs.iter().map(|(name, _)| Samples { name, values: Vec::new() }).collect();
    for round in 0..=rounds {
        for ((_, counting), samples) in programs.iter().zip(&mut samples) {
            let ran = counting
                .program
                .test_run(&[0; 64], RUNS_PER_MEASUREMENT)
                .map_err(|why| why.to_string())?;
            // The first round warms up.
            if round > 0 {
                samples.values.push(f64::from(ran.duration_ns));
            }
        }
    }
    let parts = u32::from(FILTER_COUNT);
    let cost = ExtraCost { name: "each closed exit", parts, limit: CLOSED_EXIT_NS_MAX, goal: "B9" };
    Ok(cost.rows((ROW_NAME, "ns/frame"), CacheRoundTrip::measure(), &samples))
}

impl CountingProgram {
    /// Loads a program that counts a frame once for each filter. If `exits` is true, each filter
    /// also has an exit for readers. These exits are closed, because there are no readers.
    pub(super) fn load(exits: bool) -> Result<Self, String> {
        let text = |why: sys::Error| why.to_string();
        let cpus = sys::machine::count_possible_processors().map_err(text)?;
        let cpus = u32::try_from(cpus).map_err(|why| why.to_string())?;
        let shape =
            RingsLayout { cpus, sinks: 1, pointers: 1 << 12, bytes: 1 << 20, record_max: 2048 };
        let scratch = ScratchLayout::new(1, 0, FILTER_COUNT.into()).ok_or("too many filters")?;
        let records = ProgramRings::create("records", shape.records_only()).map_err(text)?;
        let pointers = ProgramRings::create("pointers", shape.pointers_only()).map_err(text)?;
        let doorbell = RingBuffer::create("bell", 1 << 16).map_err(text)?;
        let base = cpus * scratch.stride;
        let switches = SwitchLayout { map: 0, base, places: FILTER_COUNT.into() };
        let counters =
            Map::array("counters", base + SWITCHED_WORD_SIZE * switches.list_index(1), 1, true);
        let counters = counters.map_err(text)?;
        let (own, of_line) = (records.own_layout(), pointers.own_layout());
        let pointer_ring = PointerRing {
            map: 2,
            doorbell_map: 3,
            stride: of_line.region_size(),
            pointers_at: of_line.sink_pointers_offset(0),
            pointers: of_line.pointers,
            wake: crate::tap::default_policy(shape),
        };
        let ring = FrameRing {
            map: 1,
            stride: own.region_size(),
            records_at: own.records_offset(),
            bytes: own.bytes,
            record_max: own.record_max,
            pointer_rings: vec![pointer_ring],
        };
        let layout = FusedTap {
            cpus,
            observes_sent: false,
            user: None,
            scratch,
            rings: vec![ring],
            egresses: Vec::new(),
            withheld_mark: None,
            switches: exits.then_some(switches),
        };
        let made = fused_tap(
            Hook::Tc,
            &layout,
            |s, on, _| {
                for filter in 0..FILTER_COUNT {
                    // Each arm releases the values of its filter from the stack.
                    s.arm(|s, closed| {
                        let length = s.view_length(on);
                        s.add_to_tally(filter, length);
                        if exits {
                            s.leave_unless_exit_open(filter.into(), closed);
                            s.record_frame_for_open_exits(filter.into(), on);
                        }
                    });
                }
                Ok(())
            },
            |_, _| {},
        );
        let maps = [counters.as_fd(), records.as_fd(), pointers.as_fd(), doorbell.map().as_fd()];
        let maps = maps.map(|map| map.as_raw_fd());
        let code = made.map_err(|unfit| unfit.why.into_owned())?.relocate(&maps);
        let code = code.ok_or("the program has other maps")?;
        let loaded = Program::load(ProgramKind::Tc, "bench_exits", &insn::encode(&code));
        let program = loaded.map_err(|why| format!("{why}\n{}", why.log))?;
        Ok(Self { program, _maps: (counters, doorbell, records, pointers) })
    }
}
