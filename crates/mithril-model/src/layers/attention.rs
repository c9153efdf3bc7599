//! Attention and transformers.
pub(super) static LAYERS: &[super::LayerDef] = &[];
