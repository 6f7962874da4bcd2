//! Construction of paths that are ready to run, from a prepared request.

use crate::error::OpenError;
use crate::options::Options;
use crate::prepared::{PreparedRequest, unplaceable_error};
use crate::ready::ReadyRequest;
use crate::{record, workers};
use engine::build::{self, BuildError, BuiltPath, PathOptions, RunSettings};
use engine::path::AdaptationSettings;
use engine::record::RecordMode;

impl PreparedRequest {
    /// Builds the plan and registers the path with the daemon. If the kernel refuses a filter,
    /// places the filter elsewhere. If an error occurs, releases everything that was acquired.
    pub fn build(self, options: &Options) -> Result<ReadyRequest, OpenError> {
        if !self.workers.is_empty() {
            return workers::build(self, options);
        }
        let recording = record::create_recording(&self, options)?;
        let record_mode = recording.clone().map_or_else(RecordMode::default, RecordMode::Record);
        let adapt = recording
            .is_none()
            .then(|| AdaptationSettings::permitted_by(&self.plan, &self.machine))
            .flatten();
        let extras = PathOptions {
            record_mode,
            history_bytes: options.history,
            adaptation: adapt,
            ..PathOptions::default()
        };
        let mut ready = self.build_with(options, extras)?;
        ready.recording = recording;
        Ok(ready)
    }

    /// Builds the plan as [`build`](Self::build) does, with additional options for the paths, such
    /// as a record to replay or a flow to trace.
    pub fn build_with(
        self,
        options: &Options,
        extras: PathOptions,
    ) -> Result<ReadyRequest, OpenError> {
        let steps = options.steps.clone();
        let (helper, registry) = (options.helper.clone(), options.own.registry_for_changes());
        let extras = PathOptions { helper, registry, steps: steps.clone(), ..extras };
        let ready = self.build_ready_request(options, &extras);
        if ready.is_err() {
            steps.roll_back();
        }
        ready
    }

    fn build_ready_request(
        mut self,
        options: &Options,
        extras: &PathOptions,
    ) -> Result<ReadyRequest, OpenError> {
        let settings = RunSettings {
            count: options.count,
            timed: options.timed,
            programs_timed: options.programs_timed,
            refuses: options.injected_refusal,
            ..options.own.settings()
        };
        let paths = self.build_paths(settings, extras)?;
        for refused in &self.plan.refusals {
            let name = self.plan.graph.node(refused.node).name();
            let space = &self.plan.space_of(refused.node).name;
            options.notices.raise_note(&format!("`{name}` runs in {space}: {}", refused.why));
        }
        ReadyRequest::from_built_paths(self, paths, options)
    }

    /// Builds the paths of the plan. If the kernel refuses a filter, makes a new plan that runs
    /// this filter outside the kernel, and tries again.
    pub(crate) fn build_paths(
        &mut self,
        settings: RunSettings,
        extras: &PathOptions,
    ) -> Result<Vec<BuiltPath>, OpenError> {
        loop {
            let error = match build::build_with_options(&self.plan, settings, &self.hosts, extras) {
                Ok(paths) => {
                    paths.iter().take(1).for_each(|path| path.live().set_request_text(&self.text));
                    return Ok(paths);
                }
                Err(error) => error,
            };
            let again = match &error {
                BuildError::Refused(what) => {
                    self.plan.replan_after_refusals(&self.machine, std::slice::from_ref(what))
                }
                _ => None,
            };
            let Some(again) = again else {
                let (text, plan) = (self.text.clone(), Box::new(self.plan.clone()));
                return Err(OpenError::Build { text, plan, error: Box::new(error) });
            };
            self.plan = again.map_err(|refused| {
                unplaceable_error(&self.text, self.plan.graph.clone(), refused)
            })?;
        }
    }
}
