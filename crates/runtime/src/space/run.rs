//! The run loop of a space: passes over its inputs until all of them have ended.

use super::cpu_pin::CpuPin;
use super::input::Input;
use super::node::Operator;
use super::pass::PassResult;
use super::results::SpaceResults;
use super::{AttachedPrograms, Clock, Space};
use crate::commands::BorrowRequest;
use crate::failure::PathFailure;
use filter::Time;
use std::panic::{AssertUnwindSafe, catch_unwind};

impl Space {
    /// Runs until all sources have ended, or the path is stopped or fails. Then releases held
    /// blocks unless the path has failed, and ends the sinks and rings. Blocks until then.
    pub fn run(mut self) -> SpaceResults {
        self.ports.commands.0.record_thread(self.resources());
        let mut cpu_pin = CpuPin::default();
        cpu_pin.pin_to(self.processor);
        if let Some(reader) = self.ports.events.take_event_reader() {
            return self.replay(reader);
        }
        loop {
            let mut pass = self.run_pass();
            if let Some(request) = self.ports.borrow.take() {
                match request.lend(self) {
                    Ok(back) => self = back,
                    Err(results) => return *results,
                }
                // The swap may have changed the CPU of the space.
                cpu_pin.pin_to(self.processor);
                continue;
            }
            if pass.expects_input && !pass.moved && self.graph.pass.failure.is_none() {
                self.flush_outputs();
                // A notification after this point makes the space check its inputs again before it
                // sleeps.
                let ticket = self.ports.doorbell.prepare_to_sleep();
                pass = self.run_pass();
                if pass.expects_input && !pass.moved && self.graph.pass.failure.is_none() {
                    self.sleep(pass, ticket);
                }
            }
            if !self.should_continue_after_pass(pass) {
                return self.end();
            }
        }
    }

    /// Returns true if a borrower is waiting for the space. Callers check this before they call
    /// [`Space::lend`], because that call moves the space, which costs as much as a walk.
    pub const fn has_borrow_request(&self) -> bool {
        self.ports.borrow.is_some()
    }

    /// Lends the space to a waiting borrower, if any, and blocks until the borrower returns it. If
    /// the borrower drops the space instead, fails with results that contain only this failure.
    pub fn lend(mut self) -> Result<Self, Box<SpaceResults>> {
        match self.ports.borrow.take() {
            Some(request) => request.lend(self),
            None => Ok(self),
        }
    }

    /// Stores a request of another thread to borrow the space. The space lends itself before its
    /// next pass.
    pub fn request_borrow(&mut self, request: BorrowRequest) {
        self.ports.borrow = Some(request);
    }

    /// Runs one pass without sleeping. Returns true if more input may arrive and the path has not
    /// failed. Intended for callers that run several spaces in one thread.
    pub fn step(&mut self) -> bool {
        let pass = self.run_pass();
        if !pass.moved {
            self.flush_outputs();
        }
        self.should_continue_after_pass(pass)
    }

    fn should_continue_after_pass(&mut self, pass: PassResult) -> bool {
        if self.is_limit_reached() {
            self.ports.control.stop();
        }
        if !self.programs.inputs.is_empty() {
            self.poll_programs();
        }
        self.graph.pass.failure.is_none() && pass.expects_input
    }

    /// Returns true if the limit on delivered blocks (`-c`) is reached.
    pub(super) fn is_limit_reached(&self) -> bool {
        self.graph.pass.count_limit.as_ref().is_some_and(|left| left.is_used_up())
    }

    /// Checks the programs of the space. Stops the path if the sources upstream of a program that
    /// has closed its input can no longer reach any sink, and fails the path if a program has
    /// failed.
    fn poll_programs(&mut self) {
        let AttachedPrograms { inputs, demand, .. } = &mut self.programs;
        let (nodes, control) = (&self.graph.nodes, &self.ports.control);
        let mut failure = None;
        inputs.retain_mut(|(at, is_reported)| {
            let node = &nodes[*at];
            let Some(process) = node.exec_process().filter(|process| process.has_closed_input())
            else {
                return true;
            };
            if !std::mem::replace(is_reported, true) && demand.close(node.number) {
                control.stop();
            }
            let ended = process.try_wait();
            if let Some(Err(bad)) = &ended {
                let describe = || PathFailure::from_program(node.name.clone(), bad.clone());
                failure.get_or_insert_with(describe);
            }
            ended.is_none()
        });
        self.graph.pass.failure = self.graph.pass.failure.take().or(failure);
    }

    /// Ends the space after its last pass. Releases held blocks unless the path has failed, and
    /// then ends sinks and rings. Stops the path's other spaces if the path has failed, or if a
    /// sink fails when it writes its last data.
    pub fn end(mut self) -> SpaceResults {
        self.stop_failed_path();
        // Other spaces may continue, and position requests then use these final counts.
        if self.ports.control.position_request_count() > 0 {
            self.store_source_positions(true);
        }
        let now = self.now();
        self.finish_all_nodes(now);
        self.stop_failed_path();
        self.report_local_replica_finished(true);
        if self.publishes {
            self.publish_filter_states(false);
        }
        self.ports.commands.store_final_counters(self.counters());
        self.into_results()
    }

    /// Stops the path's other spaces if the path has failed.
    fn stop_failed_path(&self) {
        if self.graph.pass.failure.is_some() {
            self.ports.control.stop();
        }
    }

    /// Executes the queued commands. A panic in a command fails the path.
    #[cold]
    pub(super) fn execute_commands(&mut self) {
        while let Some(command) = self.ports.commands.0.next_command() {
            let done = catch_unwind(AssertUnwindSafe(|| command(self)));
            if let Err(panic) = done {
                // The state of the space is unknown after a panic.
                let failed = || PathFailure::from_panicked_filter(self.name.clone(), &*panic, None);
                self.graph.pass.failure.get_or_insert_with(failed);
            }
        }
    }

    /// Runs one pass: executes queued commands, takes at most one batch from each input and each
    /// writer, and publishes filter state. If no blocks arrived, calls the filters whose timers
    /// have expired.
    fn run_pass(&mut self) -> PassResult {
        let mut pass = PassResult::default();
        if self.ports.commands.0.has_queued_command() {
            self.execute_commands();
            if self.ports.borrow.is_some() {
                return PassResult { moved: true, expects_input: true, ..pass };
            }
        }
        if self.ports.control.position_request_count() != self.ports.answered_requests {
            self.store_source_positions(false);
        }
        let next = self.next_source();
        for i in 0..self.inputs.list.len() {
            if self.graph.pass.failure.is_some() {
                break;
            }
            match &self.inputs.list[i] {
                Input::Source { node, intake } => {
                    self.pull_in_time_order(i, (*node, *intake), next, &mut pass);
                }
                Input::Ring { .. } => self.import_ring(i, &mut pass),
                Input::Replica { .. } => self.walk_dispatched_batch(i, &mut pass),
                Input::Join(_) => self.join_replicas(i, &mut pass),
            }
        }
        if self.has_writers {
            self.pull_writers(&mut pass);
        }
        if !pass.moved {
            self.run_expired_timers(&mut pass);
        }
        if pass.moved {
            self.ports.control.notify_input_event();
        }
        if self.publishes {
            self.publish_filter_states(pass.moved);
        }
        pass
    }

    /// Stores how many blocks each source of the space has emitted, in the
    /// [`PathControl`](crate::control::PathControl) that the path's spaces share. Omits programs
    /// that receive input from the path. `last` is true if the values are final.
    pub(super) fn store_source_positions(&mut self, last: bool) {
        self.ports.answered_requests = self.ports.control.position_request_count();
        for input in &self.inputs.list {
            let Input::Source { node, .. } = input else { continue };
            let node = &self.graph.nodes[*node];
            let inner = node.exec_process().is_some_and(|program| !program.is_first_in_request());
            if let (Some(counters), false) = (node.source_counters(), inner) {
                self.ports.control.store_position(node.number, &node.name, counters, last);
            }
        }
    }

    /// Calls the filters whose timers have expired, in a pass without input. Does nothing if the
    /// path's clock is block time, which advances only with blocks.
    fn run_expired_timers(&mut self, pass: &mut PassResult) {
        let now = match self.graph.clock {
            Clock::Live => self.graph.wall_clock_time(),
            // Block time advances only with blocks.
            Clock::BlockTime(_) => return,
        };
        if self.is_timer_due(now) {
            pass.moved = true;
            self.record_timer_calls(now);
            self.graph.run_expired_timers(now, &[]);
            self.record_claims();
            self.end_pass();
        }
    }

    /// Returns true if the timer of at least one filter has expired at time `now`.
    fn is_timer_due(&self, now: Time) -> bool {
        self.graph.nodes.iter().any(|node| node.wake.is_some_and(|wake| wake <= now))
    }

    /// Flushes sinks and rings, and reclaims memory. Called when no input is available.
    pub fn flush_outputs(&mut self) {
        for node in &mut self.graph.nodes {
            let settled = match &mut node.operator {
                Operator::Sink(part) => {
                    let settled = part.sink.on_idle();
                    self.graph.pass.store_long_write(node.number, part.sink.take_longest_write());
                    settled
                        .map_err(|failure| PathFailure::from_endpoint(node.name.clone(), failure))
                }
                Operator::Export(export) => {
                    export.flush().map_err(|why| PathFailure::from_ring(node.name.clone(), why))
                }
                _ => Ok(()),
            };
            if let Err(failure) = settled {
                self.graph.pass.failure = Some(failure);
                return;
            }
        }
        self.end_pass();
        self.ports.events.flush();
    }

    /// Ends a pass over the inputs of the space. No block is borrowed any more, so unpinned memory
    /// may be reused.
    pub(super) fn end_pass(&mut self) {
        self.graph.end_pass();
        self.prune_session_births();
        if !self.graph.shape.dispatchers.is_empty() {
            self.report_local_replica_finished(false);
        }
    }
}

impl Space {
    /// Publishes the changed state of filters. `moved` is true if the pass has processed blocks;
    /// only filters whose update is due then publish. Otherwise the space is idle, and all filters
    /// publish.
    #[cold]
    pub(super) fn publish_filter_states(&mut self, moved: bool) {
        let now = sys::clock::monotonic_ns();
        for node in &mut self.graph.nodes {
            if let (Some(published), Operator::Filter(filter)) =
                (&mut node.published, &mut node.operator)
                && (!moved || now >= published.due)
            {
                published.write_rows(filter, now);
            }
        }
    }
}
