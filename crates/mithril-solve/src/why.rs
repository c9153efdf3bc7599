//! Reasons for facts, which messages about contradictions show.

use std::sync::Arc;

use mithril_ir::Place;

/// The reason for a fact: a clause, and its place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Why {
    /// A clause that follows "because", e.g. "`skip` was declared [batch, 32]".
    pub text: Arc<str>,
    /// Path in the model and the user's line. The path of a relation names the use: `block.add`.
    pub place: Place,
}

impl Why {
    /// A reason without a known place.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self { text: text.into(), place: Place::default() }
    }
    /// The same reason with a place.
    #[must_use]
    pub fn at(mut self, place: Place) -> Self {
        self.place = place;
        self
    }
}

/// Index of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WhyId(pub u32);

impl WhyId {
    /// No reason.
    pub const NONE: Self = Self(u32::MAX);
}
