//! Recurrent layers: cells, and sequences of a known length.
pub(super) static LAYERS: &[super::LayerDef] = &[];
