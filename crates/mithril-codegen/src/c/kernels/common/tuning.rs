//! Tuning tasks: kernels with several candidate implementations take the one that was measured to be the fastest, else the
//! one that is estimated to be.
//!
//! A kernel that has candidates adds a [`TuningTask`] for its specification. `autotune` of the runtime compiles the program
//! with each candidate, measures, and passes the fastest as [`Choices`].

use crate::c::request::Choices;

/// A specification for which there are candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TuningTask {
    /// What is computed, as a text: all that the time depends on.
    pub specification: String,
    /// Names of the implementations.
    pub candidates: Vec<String>,
    /// Which of them is estimated to be the fastest.
    pub estimate: usize,
}

impl TuningTask {
    /// The position of the candidate in `choices`; of the estimate if there is none.
    pub fn chosen(&self, choices: &Choices) -> usize {
        let choice = choices.get(&self.specification);
        choice.and_then(|name| self.candidates.iter().position(|c| c == name)).unwrap_or(self.estimate)
    }
}

/// The tuning tasks of a program, and the choices made for them.
#[derive(Debug, Clone, Default)]
pub(crate) struct TuningTasks {
    pub choices: Choices,
    pub tasks: Vec<TuningTask>,
    /// Specifications of the tasks of the current step.
    pub recent: Vec<String>,
}

impl TuningTasks {
    pub fn add(&mut self, task: TuningTask) {
        if task.candidates.len() < 2 {
            return;
        }
        self.recent.push(task.specification.clone());
        if !self.tasks.contains(&task) {
            self.tasks.push(task);
        }
    }
}
