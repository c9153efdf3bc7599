//! Which of several ways a kernel takes: what was measured for its specification, else what is estimated.
//!
//! A kernel that has candidates makes a [`Question`] of its specification, and takes what the library has chosen. Who
//! measures compiles the same program with other answers (`autotune` of the runtime), and gives the best as
//! [`Choices`].

use crate::c::options::Choices;

/// A specification for which there are candidates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    /// What is computed, as a text: all that the time depends on.
    pub specification: String,
    /// How it may be done.
    pub candidates: Vec<String>,
    /// Which of them is estimated to be the fastest.
    pub estimate: usize,
}

impl Question {
    /// The place of the candidate that is taken with these answers; without one, that of the estimate.
    pub fn chosen(&self, choices: &Choices) -> usize {
        let answer = choices.get(&self.specification);
        answer.and_then(|name| self.candidates.iter().position(|c| c == name)).unwrap_or(self.estimate)
    }
}

/// Questions of a program, and what is answered.
#[derive(Debug, Clone, Default)]
pub(crate) struct Asked {
    pub choices: Choices,
    pub questions: Vec<Question>,
    /// Specifications since the last step.
    pub recent: Vec<String>,
}

impl Asked {
    pub fn ask(&mut self, question: Question) {
        if question.candidates.len() < 2 {
            return;
        }
        self.recent.push(question.specification.clone());
        if !self.questions.contains(&question) {
            self.questions.push(question);
        }
    }
}
