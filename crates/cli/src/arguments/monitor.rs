//! Arguments for metrics and alarms of a run.

use crate::monitor::Condition;
use clap::Args;
use streamline::metrics::MetricsTarget;

/// Metrics and alarms of a run.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct MonitorArguments {
    /// Serve metrics for Prometheus at [ADDRESS]:PORT or unix:PATH, or write them into FILE every
    /// 5 s and at the end; may be repeated
    #[arg(long, value_name = "[ADDRESS]:PORT|FILE")]
    pub(crate) metrics: Vec<MetricsTarget>,
    /// Raise an alarm while a condition holds, such as 'lost>0' or 'fill>=90% for 5s': a warning,
    /// and exit status 4; may be repeated. Numbers: lost, dropped, late, blocks, bytes, held, fill,
    /// and per second lost/s, dropped/s, blocks/s, bytes/s
    #[arg(long, value_name = "CONDITION")]
    pub(crate) alarm: Vec<Condition>,
    /// Run this shell command for each alarm, with STREAMLINE_ALARM, STREAMLINE_VALUE and
    /// STREAMLINE_PATH in its environment
    #[arg(long, value_name = "COMMAND", requires = "alarm")]
    pub(crate) alarm_exec: Option<String>,
}

impl MonitorArguments {
    /// Converts these arguments back to command-line words, to pass them to another command.
    pub(crate) fn to_words(&self) -> Vec<String> {
        let metrics = self.metrics.iter().map(|target| format!("--metrics={target}"));
        let alarms = self.alarm.iter().map(|condition| format!("--alarm={condition}"));
        let commands = self.alarm_exec.iter().map(|command| format!("--alarm-exec={command}"));
        metrics.chain(alarms).chain(commands).collect()
    }
}
